"""The state that this user's daemon shows, for commands: found as ``ampwatch url`` finds it, and asked.

Whom the lock names is asked, and nobody else who listens on the port: the token goes along.
Where a web-config file wants a password instead, it is taken from where curl takes it: a netrc file.
"""

from __future__ import annotations

import base64
import http.client
import netrc
import os
import ssl
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus

from msgspec import MsgspecError

from ampwatch.errors import DaemonError, ReportError
from ampwatch.report.rank_list import RankList, unpacked
from ampwatch.runtime import runtime_directory
from ampwatch.settings import Settings
from ampwatch.wire.blackbox.files import paths, report_directory
from ampwatch.wire.rendezvous.lock import DaemonInfo, reachable
from ampwatch.wire.rendezvous.machine import Found, find_daemon, readers_token
from ampwatch.wire.rendezvous.token import TOKEN_FILE

TIMEOUT_SECONDS = 10.0
"""Time for the daemon to answer: with many ranks on a busy machine it takes seconds. Unit: s."""

MAX_ANSWER = 1 << 28
"""Bytes of an answer that are read."""

MAX_REASON = 200
"""Bytes of a refusal that are shown."""

PATH = "/ranks"
"""Where the list of ranks is."""


def read(settings: Settings, clean: Callable[[str], str] = str) -> RankList:
    """Return the newest list of ranks of the daemon that shows the runs of this user.

    That may be this user's or that of the machine. It is looked for each time: another one may have taken its place.
    ``clean`` makes of each text one that can be shown.

    Raises:
        DaemonError: If none serves, it does not answer, it refuses, or it is of another release.
    """
    found = shown_by(settings)
    info, token = found.info, token_of(found)
    status, body, challenge = _get(info, f"Bearer {token}" if token else "")
    login = None
    if status == HTTPStatus.UNAUTHORIZED and "basic" in challenge.lower().split():
        login = _login(info.host)
        if login is not None:
            proof = base64.b64encode(":".join(login).encode()).decode()
            status, body, _ = _get(info, f"Basic {proof}")
    if status == HTTPStatus.OK:
        with suppress(MsgspecError):
            return unpacked(body, clean)
    answer = body[:MAX_REASON].decode("utf-8", "replace").strip()
    if status in (HTTPStatus.OK, HTTPStatus.NOT_FOUND):
        what = OTHER_RELEASE
    elif status == HTTPStatus.UNAUTHORIZED:
        what = _refusal(found, token, login, answer.partition("\n")[0].strip())
    else:
        what = f"answered with status {status}: {answer!r}"
    msg = f"the daemon on {_address(info)} {what}"
    raise DaemonError(msg)


OTHER_RELEASE = "does not send the list of ranks of this release; if it is of another release, end it: the next training or `ampwatch daemon` starts one of this release; until then its page shows the runs"


def _refusal(found: Found, token: str, login: tuple[str, str] | None, answer: str) -> str:
    if login is not None:
        return f"refused the password of {login[0]!r} in {_netrc_file()!r}: {answer!r}"
    if token and found.directory is not None:
        return f"refused the token in {str(found.directory / TOKEN_FILE)!r}; end that daemon, and the next one accepts it"
    return f"asks for a password: {answer!r}; put the name and password of its web-config file in {_netrc_file()!r}, as `machine localhost login NAME password PASSWORD`, or open its page in a browser"


def _address(info: DaemonInfo) -> str:
    """Return host and port, as in a URL."""
    return f"{reachable(info.host)}:{info.port}"


def shown_by(settings: Settings) -> Found:
    """Return the daemon that shows the runs of this user, as a lock names it.

    Raises:
        DaemonError: If there is none.
    """
    found = find_daemon(settings)
    if found is None:
        directory = runtime_directory(settings.runtime_dir)
        msg = f"no daemon shows your runs (none in {str(directory)!r}); start one with a training or `ampwatch daemon`{of_ended_runs(settings)}"
        raise DaemonError(msg)
    return found


def token_of(found: Found) -> str:
    """Return the token that a daemon wants of readers; empty if it wants none.

    Raises:
        DaemonError: If there is no token that only this user can read.
    """
    token = readers_token(found)
    if token is None:
        if found.directory is None:
            msg = f"the daemon at {found.info.url} asks for the token of the user it runs as; ask that user"
            raise DaemonError(msg)
        msg = f"there is no token in {str(found.directory / TOKEN_FILE)!r} that only this user can read; end the daemon with `kill {found.info.pid}`, and the next one makes it"
        raise DaemonError(msg)
    return token


def of_ended_runs(settings: Settings) -> str:
    """Return the end of a message about what is not shown (any more): the command that still knows of it.

    Empty if no run has left a report. Cost: some entries of a directory are read.
    """
    try:
        is_left = any(True for _ in paths(report_directory(settings.report_dir)))
    except ReportError:  # no home directory
        is_left = False
    return "; `ampwatch report` says what went wrong in runs that ended" if is_left else ""


def _netrc_file() -> str:
    """Return the file that curl reads as well, by its variable or in the home directory."""
    return os.environ.get("NETRC") or os.path.expanduser("~/.netrc")  # noqa: PTH111 - fails for nobody


def _login(host: str) -> tuple[str, str] | None:
    """Return the name and the password for the daemon on ``host``; ``None`` if there are none.

    Raises:
        DaemonError: If the file is none, or others may read it.
    """
    path = _netrc_file()
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - as above
        if mode & 0o077:
            msg = f"others can read {path!r}, which has passwords: its mode is {mode & 0o777:04o}; run: chmod 600 {path}"
            raise DaemonError(msg)
        known = netrc.netrc(path).hosts
    except FileNotFoundError:
        return None
    except (OSError, netrc.NetrcParseError, UnicodeDecodeError) as error:
        msg = f"{path!r} is not a valid netrc file: {error}"
        raise DaemonError(msg) from error
    # Never `default`: that is for hosts of the network, and no daemon of ours is meant.
    found = next((known[name] for name in (host, "localhost", "127.0.0.1") if name in known), None)
    return (found[0], found[2] or "") if found else None


def _get(info: DaemonInfo, authorization: str) -> tuple[int, bytes, str]:
    """Return status and body, and how it wants to be asked if that is not clear."""
    host = reachable(info.host).strip("[]")
    connection: http.client.HTTPConnection
    if info.scheme == "https":
        # On this machine, by the lock of this user: the certificate is for names that others use.
        context = ssl._create_unverified_context()  # noqa: S323, SLF001 - as above
        connection = http.client.HTTPSConnection(
            host, info.port, timeout=TIMEOUT_SECONDS, context=context
        )
    else:
        connection = http.client.HTTPConnection(host, info.port, timeout=TIMEOUT_SECONDS)
    # By the name of loopback: it answers by that one, whatever address it listens on.
    headers = {"Host": f"localhost:{info.port}", "Connection": "close"}
    if authorization:
        headers["Authorization"] = authorization
    try:
        connection.request("GET", PATH, headers=headers)
        response = connection.getresponse()
        challenge = response.getheader("WWW-Authenticate", "")
        return response.status, response.read(MAX_ANSWER), challenge
    except TimeoutError as error:
        msg = f"the daemon on {_address(info)} did not answer within {TIMEOUT_SECONDS:.0f} s"
        raise DaemonError(msg) from error
    except (OSError, http.client.HTTPException) as error:
        why = str(error) or type(error).__name__
        msg = f"the daemon on {_address(info)} did not answer: {why}"
        raise DaemonError(msg) from error
    finally:
        connection.close()
