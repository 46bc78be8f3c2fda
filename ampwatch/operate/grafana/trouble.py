"""Words for answers that are not the one wanted: what they mean, and what to do. Pure."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

OLDEST = (10, 4)
"""The oldest Grafana that the dashboards are made for."""


GO_ON = "what was written before this stays, and the same command goes on from there"

_ADDRESS = "check the address; behind a proxy it has the sub-path as well, like https://example.com/grafana"
_STARTING = "Grafana is starting, or the proxy in front does not reach it; try again"

REMEDIES = {
    401: "the token is wrong, expired, revoked, or of another Grafana or organization; make a new one under"
    " Administration > Users and access > Service accounts",
    403: "the token may not; give its service account the role Editor (Admin for datasources)",
    404: _ADDRESS,
    405: _ADDRESS,
    410: _ADDRESS,
    412: "somebody has saved it in the meantime, or another one has its name; run it again and look at the diff",
    502: _STARTING,
    503: _STARTING,
    504: _STARTING,
}
"""Remedies by the status of the answer."""


class Doing(NamedTuple):
    """Purpose of a request, for its error messages.

    Attributes:
        what: In words, after "to".
        permission: What Grafana's access control calls it.
        remedy: What to do if Grafana answers that it cannot (400); of no request but this one.
    """

    what: str
    permission: str = ""
    remedy: str = ""


def explain(doing: Doing, status: int, said: str, url: str) -> str:
    """Return the message for an answer with an error.

    Args:
        doing: What the request was for.
        status: The status of the answer.
        said: What Grafana said, or another server.
        url: The address of the Grafana.
    """
    quoted = _quoted(said)
    head = f"expected {url} to {doing.what}, got {status}{f': {quoted}' if quoted else ''}"
    return f"{head}; {_remedy(doing, status, quoted)}"


def _remedy(doing: Doing, status: int, quoted: str) -> str:
    if "provisioned dashboard" in quoted.lower():
        return "it is provisioned from a file: change it there, or take it out there"
    if status == 400 and doing.remedy:
        return doing.remedy
    if status in REMEDIES:
        also = (
            f" or the permission {doing.permission}" if status == 403 and doing.permission else ""
        )
        return REMEDIES[status] + also
    return f"Grafana's log says more; {GO_ON}" if status >= 500 else GO_ON


def no_grafana(answer: Any, url: str) -> str:
    """Return the message for an answer that no Grafana gives.

    Args:
        answer: Decoded JSON, or text.
        url: The address that was asked.
    """
    quoted = _quoted(answer) if isinstance(answer, str) else ""
    return (
        f"expected a Grafana at {url}, got an answer that is none of Grafana's{f': {quoted}' if quoted else ''};"
        " check the address and its sub-path, and that no login page of a proxy is in front"
    )


def too_old(version: str, url: str) -> str:
    """Return the message for a Grafana that the dashboards are not made for; empty if it is recent.

    Args:
        version: As Grafana says, ``11.6.0`` or ``12.1.0-89012pre``.
        url: The address.
    """
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None or (int(numbers[1]), int(numbers[2])) >= OLDEST:
        return ""
    oldest = ".".join(map(str, OLDEST))
    return f"expected Grafana {oldest} or newer at {url}, got {version}, which would show the dashboards wrongly; upgrade it"


def _quoted(said: str) -> str:
    """Return one line of what a server said; of a page its title."""
    if said.lstrip()[:1] == "<":
        title = re.search(r"<title[^>]*>\s*(.*?)\s*</title>", said, re.IGNORECASE | re.DOTALL)
        said = f"a page of HTML {title[1]!r}" if title else "a page of HTML"
    line = " ".join(said.split())
    line = "".join(character for character in line if character.isprintable())
    return line if len(line) <= 200 else f"{line[:197]}..."
