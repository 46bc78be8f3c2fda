"""What is asked of a Grafana, by the package grafana-client, and what its failures mean."""

from __future__ import annotations

import importlib.util
import math
import re
from operator import attrgetter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ampwatch import __version__
from ampwatch.errors import GrafanaError, SettingsError

ADDRESS = re.compile(r"(?i)https?://(\[[\da-f:.]+\]|[\w.-]+)(:\d+)?(/[^@?#\s]*)?")

VERSIONS = "dashboard_versions.get_dashboard_versions_by_uid"

REQUESTS: dict[str, tuple[str, str, Any]] = {
    "client.GET": ("answer at {}", "", dict),
    "folder.get_folder": ("say whether there is a folder {!r}", "folders:read", dict),
    "folder.create_folder": ("make the folder {!r}", "folders:create", dict),
    "datasource.get_datasource_by_uid": ("show the datasource {!r}", "datasources:read", dict),
    "datasource.list_datasources": ("list its datasources", "datasources:read", list),
    "datasource.create_datasource": ("make the datasource {[uid]}", "datasources:create", dict),
    "datasource.update_datasource_by_uid": ("change the datasource {}", "datasources:write", dict),
    "datasource.health": ("reach Prometheus through the datasource {}", "datasources:query", dict),
    "dashboard.get_dashboard": ("show the dashboard {!r}", "dashboards:read", dict),
    "dashboard.update_dashboard": ("save {[dashboard][uid]}", "dashboards:write", dict),
    VERSIONS: ("show the versions of {!r}", "dashboards:write", (dict, list)),
    "search.search_dashboards": ("list its dashboards", "dashboards:read", list),
}
"""Methods of the client: what they are for, the permission they need, the type of the answer."""

GO_ON = "what was written before this stays, and the same command goes on from there"
ACCOUNTS = "Administration > Users and access > Service accounts"

REMEDIES: dict[int | str, str] = {
    401: f"the token is wrong, expired, revoked, or of another Grafana or organization; make a new one under {ACCOUNTS}",
    403: "the token may not; give its service account the role Editor (Admin for datasources) or the permission ",
    404: "check the address; behind a proxy it has the sub-path as well, like https://example.com/grafana",
    412: "it was saved by hand in the meantime, or another one has its name; run it again and look at the diff",
    500: f"Grafana's log says more; {GO_ON}",
    **dict.fromkeys((502, 503, 504), "Grafana is starting, or its proxy does not reach it; wait"),
    "datasource.health": "check its address as Grafana sees it, and that Prometheus runs there",
}
"""What to do, by the status of an answer, or else by the method."""

NO_GRAFANA = "expected a Grafana at {url}, got an answer that is none of Grafana's: {reply}; check the address and its sub-path, and that no login page of a proxy is in front"

FAILURES = {
    "GrafanaTimeoutError": "expected an answer of {url} within {timeout:g} s, got none; give more with --timeout, or look whether it is well",
    "TooManyRedirects": "expected a Grafana at {url}, got a redirect to another address; give that one, with its sub-path",
    "SSLCertVerificationError": "expected a certificate that is trusted at {url}, got: {reply}; name its authority with --ca-file",
    "SSLError": "expected TLS at {url}, got: {reply}; is it http:// there?",
    "JSONDecodeError": NO_GRAFANA,
    "Exception": "expected a Grafana at {url}, got no connection: {reply}; check the address, and that it runs",
}
"""What it means that there is no answer, by the class of an exception."""

NOT_INSTALLED = """\
expected the package grafana-client, which is not installed here. It brings a package that takes the place of \
urllib3, so give it an environment of its own, not the one that trains:
  uvx --from 'ampwatch[grafana]' ampwatch grafana ...
  pipx install 'ampwatch[grafana]'"""


def expect(is_right: object, option: str, what: str, got: object) -> None:
    """Raise a SettingsError if ``is_right`` is false. An address with a password is not quoted."""
    if not is_right:
        quoted = "one with a user" if "@" in str(got) else repr(got)
        msg = f"{option}: expected {what}, got {quoted}"
        raise SettingsError(msg)


class GrafanaServer:
    """The Grafana at ``url``, of which the organization ``org_id``, or that of the token.

    ``token`` is of a service account, and in no message and no ``repr``; ``verify`` is whether to verify
    certificates, or the PEM file with the authorities to trust; an answer may take ``timeout_s``.
    Raises a SettingsError if one of them is not usable, a GrafanaError without grafana-client.
    """

    def __init__(
        self, url: str, token: str, *, org_id: int | None, verify: bool | str, timeout_s: float
    ) -> None:
        like = "an address like http://localhost:3000, without a user, `?` and `#`"
        expect(ADDRESS.fullmatch(url), "GRAFANA_URL or `--url`", like, url)
        expect(0 < timeout_s < math.inf, "`--timeout`", "seconds above 0", timeout_s)
        expect(org_id is None or org_id > 0, "`--org-id`", "the number of an organization", org_id)
        is_file = isinstance(verify, bool) or Path(verify).is_file()
        expect(is_file, "`--ca-file`", "a PEM file with certificates", verify)
        # One of a few characters could not be kept out of a message without making that unreadable.
        what = f"the token of a service account and nothing else, 46 characters from {ACCOUNTS}"
        is_token = re.fullmatch(r"[!-~]{8,}", token)
        expect(is_token, "GRAFANA_TOKEN or `--token-file`", what, len(token))
        if importlib.util.find_spec("grafana_client") is None:
            raise GrafanaError(NOT_INSTALLED)
        from grafana_client import GrafanaApi  # noqa: PLC0415 - an extra

        self._url, self._token, self._timeout_s = url.rstrip("/"), token, timeout_s
        parts = urlsplit(self._url)
        self._api = GrafanaApi(
            token,
            protocol=parts.scheme,
            host=parts.netloc,
            url_path_prefix=f"{parts.path}/".lstrip("/"),
            verify=verify,
            timeout=timeout_s,
            organization_id=org_id,
            user_agent=f"ampwatch/{__version__}",
        )
        # A redirected POST becomes a GET, and a token must not travel on to where it points.
        self._api.client.s.max_redirects = 0

    def ask(self, method: str, *args: Any, instead: Any = None, **options: Any) -> Any:
        """Return the answer of one of ``REQUESTS``, or what ``instead`` has for its status.

        Raises:
            GrafanaError: If there is none. It has no cause and no context: the exceptions of the
                client hold the request, and this the token.
        """
        try:
            answer = attrgetter(method)(self._api)(*args, **options)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not be shown as it is
            status = getattr(error, "status_code", 0)
            if status in (instead or {}):
                return instead[status]
            failure = self._failure(error, method, *args)
        else:
            if isinstance(answer, REQUESTS[method][2]):
                return answer
            failure = self._error(NO_GRAFANA, answer)
        raise failure

    def check(self) -> None:
        """Raise a GrafanaError if it is not reached, is no Grafana, or one that is too old."""
        health = self.ask("client.GET", "/health")
        # One that hides its version is taken as it is.
        numbers = re.match(r"(\d+)\.(\d+)", str(health.get("version")))
        if numbers and (int(numbers[1]), int(numbers[2])) < (10, 4):
            msg = "expected Grafana 10.4 or newer at {url}, got {reply}, which would show the dashboards wrongly; upgrade it"
            raise self._error(msg, health["version"])
        if "database" not in health:
            raise self._error(NO_GRAFANA, health)

    def trouble(self, datasource: str) -> str:
        """Return what is wrong with a datasource as Grafana itself tries it, empty if nothing is."""
        try:
            self.ask("datasource.health", datasource)
        except GrafanaError as error:
            return str(error)
        return ""

    def _failure(self, error: Any, method: str, *args: Any) -> GrafanaError:
        what, permission, _ = REQUESTS[method]
        if status := getattr(error, "status_code", 0):
            reply = error.response
            reply = reply.get("message") or reply if isinstance(reply, dict) else reply
            remedy = REMEDIES.get(status) or REMEDIES.get(method) or GO_ON
            remedy += permission if remedy is REMEDIES[403] else ""
            if "provisioned dashboard" in str(reply):
                remedy = "it is provisioned from a file: change it there, or take it out there"
            text = f"expected {{url}} to {{what}}, got {status}: {{reply}}; {remedy}"
            return self._error(text, reply, what.format(*args))
        reason = error
        while (cause := reason.__cause__ or reason.__context__) is not None:
            reason = cause
        names = {each.__name__ for one in (reason, error) for each in type(one).__mro__}
        text = next(text for name, text in FAILURES.items() if name in names)
        reply = [getattr(reason, name, None) for name in ("verify_message", "reason", "strerror")]
        return self._error(text, next(filter(None, reply), reason))

    def _error(self, text: str, reply: object, what: str = "") -> GrafanaError:
        """Return an error with one line of what a server has answered; of a page its title."""
        # Before it is cut: a part of the token is too much as well.
        reply = str(reply or "").replace(self._token, "<token>")
        if reply.lstrip().startswith("<"):
            title = re.search(r"(?is)<title[^>]*>\s*(.*?)\s*</title>", reply)
            reply = f"a page of HTML {title[1] if title else ''!r}"
        reply = "".join(each for each in " ".join(reply.split()) if each.isprintable())[:200]
        known = {"url": self._url, "timeout": self._timeout_s, "what": what}
        return GrafanaError(text.format(reply=reply or "nothing", **known))
