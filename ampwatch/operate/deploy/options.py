"""Options of a deployment, checked before anything is written."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ampwatch.errors import DeployError
from ampwatch.settings import DEFAULT_PORT

SCRAPE_SECONDS = (5, 60)
"""The scrape intervals that the rules hold for: their shortest range is two minutes."""

MAX_PORT = 65535

_TARGET = re.compile(
    r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?"
)
_LOOPBACK = re.compile(r"localhost|127\.[0-9.]+|\[::1\]")


@dataclass(frozen=True, slots=True)
class DeployOptions:
    """Differences from the files as they are shipped; none by default."""

    targets: tuple[str, ...] = ()  # daemons to scrape, ``host:port``
    # base of the runbooks' addresses, with a slash at its end; empty for the project's own
    runbooks: str = ""
    webhook: str = ""  # where Alertmanager sends alerts; empty for the placeholder
    grafana: str = ""  # address of Grafana, with a slash at its end; empty for no links to it
    alertmanager: str = ""  # address of Alertmanager, likewise
    external: str = ""  # address by which others open the page of this machine's daemon, likewise
    scrape_seconds: int = 0  # how often Prometheus scrapes; 0 for as shipped. Unit: s
    port: int = DEFAULT_PORT  # where daemons listen
    # file with the token that the daemon of this machine wants; empty for none
    token_file: str = ""


def checked_port(text: str) -> int:
    """Return the port that daemons listen on.

    Raises:
        DeployError: If it is none. 0, for any free one, is none either: nobody would find it.
    """
    port = int(text) if re.fullmatch(r"[0-9]{1,5}", text) else 0
    if not 1 <= port <= MAX_PORT:
        msg = f"`--port`: expected 1 to {MAX_PORT}, got {text!r}"
        raise DeployError(msg)
    return port


def checked_target(text: str, default_port: int = DEFAULT_PORT) -> str:
    """Return ``host:port``, with the daemons' port if none is given.

    Raises:
        DeployError: If it is none.
    """
    match = _TARGET.fullmatch(text)
    port = int(match[2]) if match and match[2] else default_port
    if match is None or not 1 <= port <= MAX_PORT:
        msg = f"`--target`: expected the host and port of a daemon, as node-a:{default_port}, got {text!r}"
        if "://" in text:
            msg += "; leave the scheme and the path out, Prometheus adds them"
        raise DeployError(msg)
    return f"{match[1]}:{port}"


def is_loopback(target: str) -> bool:
    """Return whether a checked target is the machine that asks, whichever that is."""
    return _LOOPBACK.fullmatch(target.rpartition(":")[0]) is not None


def checked_seconds(text: str) -> int:
    """Return a scrape interval in seconds.

    Raises:
        DeployError: If it is none, or one that the rules do not hold for.
    """
    match = re.fullmatch(r"([0-9]{1,3})s|1m", text)
    seconds = int(match[1] or 60) if match else 0
    low, high = SCRAPE_SECONDS
    if not low <= seconds <= high:
        msg = f"`--scrape-interval`: expected {low}s to {high}s, the intervals that the rules and dashboards hold for, got {text!r}"
        raise DeployError(msg)
    return seconds
