"""Findings sent to an HTTP endpoint, from a thread of its own that training never waits for."""

from __future__ import annotations

import json
import math
import re
import time
from dataclasses import asdict
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from ampwatch.errors import SettingsError
from ampwatch.guard import Log
from ampwatch.report.accounts import cut, place
from ampwatch.report.one_line import named, printable
from ampwatch.training.actions.base import Action
from ampwatch.training.courier import Courier
from ampwatch.wire.records import Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ampwatch.diagnosis.news import News
    from ampwatch.wire.records import RunIdentity

logger = Log()

BODY_VERSION = 1
"""Version of the JSON body; a field that is added is no new version."""

TRY_AGAIN = (408, 425, 429)
"""Answers below 500 after which the same request may yet succeed."""


MAX_CHAT_TITLE = 128
MAX_CHAT_TEXT = 2000
"""Characters of a message. Slack takes 150 and 3000; Discord 256 and 4096, of which each may be escaped."""

_DISCORD_MARKS = re.compile(r"([\\*_~`|<>\[\]])")
"""What Discord reads as Markdown."""

_DISCORD_COLOURS = {"info": 0x3498DB, "warning": 0xF1C40F, "critical": 0xE74C3C}


class _NoRedirect(HTTPRedirectHandler):
    """Follows nothing: a redirected POST becomes a GET, and headers may hold a secret."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Webhook(Action):
    """Posts each finding as JSON; see ``ampwatch.actions.webhook``.

    Attributes:
        sent: Findings that the endpoint has accepted.
        retried: Requests that were repeated.
        failed: Findings that were given up after the last attempt, or at the end.
    """

    min_severity: ClassVar[Severity] = Severity.WARNING

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        timeout_seconds: float,
        retries: int,
        backoff_seconds: float,
        queue_size: int,
        close_seconds: float,
    ) -> None:
        self.sent = 0
        self.retried = 0
        self.failed = 0
        self._place = _checked(url)
        self._shaped = _shape_for(url)
        self._url = url
        self._headers = {"User-Agent": "ampwatch", **headers, "Content-Type": "application/json"}
        self._timeout_s = timeout_seconds
        self._retries = retries
        self._backoff_s = backoff_seconds
        self._close_s = close_seconds
        self._opener = build_opener(_NoRedirect)
        self._courier = Courier("ampwatch-webhook", self._deliver, queue_size)
        self._run: dict[str, Any] = {}

    def __repr__(self) -> str:
        # Without path, query and headers: that is where endpoints keep their secrets.
        return f"webhook({self._place})"

    def open(self, identity: RunIdentity) -> None:
        """Note which run it is, for the body of each request."""
        self._run = {
            "run": identity.run,
            "rank": identity.rank,
            "world_size": identity.world_size,
            "host": identity.host,
            "pid": identity.pid,
        }
        self._courier.open()

    @property
    def dropped(self) -> int:
        """Findings that did not fit into the queue."""
        return self._courier.dropped

    def notify(self, news: News) -> None:
        """Put the finding in the queue, with what it has become worse than. Never waits."""
        self._courier.put(self._body(news))

    def close(self) -> None:
        """Send what is left, one attempt each, for ``close_seconds`` at most."""
        given_up = self._courier.close(self._close_s)
        if given_up is None:
            return
        self.failed += given_up
        logger.warning(
            "%r: the endpoint did not take the last findings within %g s; %d and the one in transit"
            " are lost",
            self,
            self._close_s,
            given_up,
        )

    def _body(self, news: News) -> bytes:
        finding, since = news.finding, news.escalated_from
        fields = asdict(finding) | {"advice": finding.advice}
        fields["severity"] = finding.severity.value
        fields["evidence"] = {name: _number(value) for name, value in finding.evidence.items()}
        fields["tried"] = [tried._asdict() for tried in finding.tried]
        body = {
            "version": BODY_VERSION,
            **self._run,
            "time": time.time(),
            "severity": news.severity.value,
            "escalated_from": "" if since is None else since.value,
            "place": place(finding),
            "explained_by": "" if news.root is finding else named(news.root),
            "finding": fields,
        }
        return json.dumps(self._shaped(body), allow_nan=False).encode()

    def _deliver(self, body: bytes) -> None:
        for attempt in range(self._retries + 1):
            trouble, lasting = self._post(body)
            if not trouble:
                self.sent += 1
                return
            last = attempt == self._retries or lasting
            # At the end of the program nobody waits for the pause between two attempts.
            if last or self._courier.ending.wait(self._backoff_s * 2**attempt):
                break
            self.retried += 1
        self.failed += 1
        logger.warning("%r: the endpoint did not take a finding: %s", self, trouble)

    def _post(self, body: bytes) -> tuple[str, bool]:
        """Return the trouble, empty if there was none, and whether it would come again."""
        try:
            # Each time anew: urllib notes in a request where it went, and what it has added.
            request = Request(self._url, data=body, headers=self._headers, method="POST")  # noqa: S310 - checked to be http
            with self._opener.open(request, timeout=self._timeout_s):
                return "", False
        except HTTPError as error:
            with error:
                return f"status {error.code}", error.code < 500 and error.code not in TRY_AGAIN
        except URLError as error:
            # Not the error itself: its text may hold the address, and so the secret in it.
            reason = error.reason
            return (reason.strerror if isinstance(reason, OSError) else "") or type(
                reason
            ).__name__, False
        except (OSError, HTTPException) as error:
            return type(error).__name__, False
        except Exception as error:  # noqa: BLE001 - it would end the thread, and with it all that is to come
            return type(error).__name__, True


def _checked(url: str) -> str:
    """Return the part of ``url`` that may be shown: scheme, host and port.

    Raises:
        SettingsError: If it is no HTTP address; it is not quoted, as it may hold a secret.
    """
    try:
        parts = urlsplit(url)
        place = f"{parts.scheme}://{parts.hostname or ''}" + (
            f":{parts.port}" if parts.port else ""
        )
    except (ValueError, AttributeError, TypeError):
        msg = "`url`: expected an address that begins with http:// or https://, got one that cannot be read"
        raise SettingsError(msg) from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        msg = (
            f"`url`: expected an address that begins with http:// or https://, got one of {place!r}"
        )
        raise SettingsError(msg)
    if parts.username is not None or parts.password is not None:
        msg = f"`url`: expected an address without a password, got one for {place}; use headers={{'Authorization': ...}}"
        raise SettingsError(msg)
    return place


def _shape_for(url: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return what makes a message of a body, for chats that are known by their address."""
    parts = urlsplit(url)
    host, path = parts.hostname or "", parts.path
    is_discord = re.fullmatch(r"(\w+\.)?discord(app)?\.com", host) and path.startswith("/api/")
    # Discord takes messages of Slack below an address of its own.
    if (re.fullmatch(r"hooks\.slack(-gov)?\.com", host) and path.startswith("/services/")) or (
        is_discord and path.endswith("/slack")
    ):
        return _for_slack
    if is_discord:
        return _for_discord
    # Teams: webhooks of a channel, and workflows, which have taken their place.
    if re.search(r"\.(webhook\.office|logic\.azure|api\.powerplatform)\.(com|us)$", host):
        return _for_teams
    return lambda body: body


def _words(body: Mapping[str, Any]) -> tuple[str, str]:
    """Return what a body says to people: a title, and paragraphs."""
    finding, since = body["finding"], body["escalated_from"]
    title = f"{body['severity'].upper()}: {finding['kind']} in {body['place']}, run {body['run']}"
    ranks = f", rank {body['rank']} of {body['world_size']}" if body["world_size"] > 1 else ""
    worse = f"; escalated from {since}" if since else ""
    since_step = f"first seen at step {finding['first_step']}"
    op = f", op {finding['op']}" if finding["op"] else ""
    line = f", at {finding['source']}" if finding["source"] else ""
    paragraphs = [
        f"Step {finding['last_step']}, {since_step}{op}{line}{ranks}, on {body['host']}{worse}.",
        finding["summary"],
        f"Explained by {body['explained_by']}." if body["explained_by"] else "",
        finding["advice"],
    ]
    text = "\n\n".join(printable(paragraph) for paragraph in paragraphs if paragraph)
    return cut(printable(title), MAX_CHAT_TITLE), cut(text, MAX_CHAT_TEXT)


def _for_slack(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return blocks of plain text, in which a name can call nobody, and a title for notices."""
    title, text = _words(body)
    notice = title.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    blocks = [
        {"type": kind, "text": {"type": "plain_text", "text": content}}
        for kind, content in (("header", title), ("section", text))
    ]
    return {"text": notice, "blocks": blocks}


def _for_discord(body: Mapping[str, Any]) -> dict[str, Any]:
    title, text = (_DISCORD_MARKS.sub(r"\\\1", words) for words in _words(body))
    embed = {"title": title, "description": text, "color": _DISCORD_COLOURS[body["severity"]]}
    return {"embeds": [embed], "allowed_mentions": {"parse": []}}


def _for_teams(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return an adaptive card of runs of text, which are read as no Markdown."""
    title, text = _words(body)
    runs = [
        {"text": title, "weight": "Bolder"},
        *({"text": content} for content in text.split("\n\n")),
    ]
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.2",
        "body": [
            {"type": "RichTextBlock", "inlines": [{"type": "TextRun", **run}]} for run in runs
        ],
    }
    kind = "application/vnd.microsoft.card.adaptive"
    return {"type": "message", "attachments": [{"contentType": kind, "content": card}]}


def _number(value: float) -> float | str:
    """Return ``value`` for JSON, which has no NaN and no infinities: those become strings."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
