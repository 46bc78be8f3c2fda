"""Finds the daemon of this machine, or starts one: exactly one, however many ranks ask.

Whoever wants to start one takes the daemon's lock first and hands it to the child,
so that it is never free in between. No torch here, and no Prometheus.
"""

from __future__ import annotations

import os
import site
import subprocess
import sys
import sysconfig
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ampwatch import __version__
from ampwatch.errors import AmpwatchError
from ampwatch.runtime import DAEMON_LOG, ring_directories, runtime_directory, runtime_path
from ampwatch.settings import ATTACH, ENVIRONMENT_PREFIX
from ampwatch.wire.rendezvous import probe
from ampwatch.wire.rendezvous.lock import DaemonInfo, DaemonLock, read_info
from ampwatch.wire.rendezvous.token import read_token
from ampwatch.wire.ring.layout import LAYOUT

if TYPE_CHECKING:
    from ampwatch.settings import Settings
    from ampwatch.wire.rendezvous.probe import Answer

START_SECONDS = 20.0
"""Patience with a starting daemon: usually half a second, more on a busy shared file system."""

ASK_AGAIN_SECONDS = 0.05

HARMFUL_VARIABLES = frozenset(
    {ATTACH, "LD_PRELOAD", "PYTHONINSPECT", "PYTHONSTARTUP", "PYTHONWARNINGS"}
)
"""Variables that are meant for the training process and would profile, stop or break the daemon."""


@dataclass(frozen=True, slots=True)
class DaemonStatus:
    """The outcome of the search for a daemon.

    Attributes:
        url: Address of the page, empty if there is none.
        state: ``running`` before, ``started`` now, or ``unavailable``.
        message: What the user should know, in a sentence; empty if all is well.
    """

    url: str
    state: Literal["running", "started", "unavailable"]
    message: str = ""


def ensure_daemon(settings: Settings) -> DaemonStatus:
    """Return the daemon that watches this user's runs, started if there was none.

    Call it after the ring exists: a daemon that is about to end for want of rings searches
    for them a last time.

    Returns:
        The status. Trouble is a status as well, never an exception.

    Cost:
        A few ms if there is a daemon, half a second to start one, 20 s at the very most.
    """
    try:
        return _find_or_start(settings, runtime_directory(settings.runtime_dir))
    except (AmpwatchError, OSError) as error:
        return DaemonStatus("", "unavailable", str(error))


def daemon_is_running(settings: Settings) -> bool:
    """Return whether a daemon runs right now that reads the rings of these settings.

    Cost:
        Well below a ms with a daemon of this user, a few ms without.
    """
    try:
        directory = runtime_directory(settings.runtime_dir)
        lock = DaemonLock.take(directory)
        if lock is not None:
            lock.release()
    except (AmpwatchError, OSError):
        return False
    if lock is None and (info := read_info(directory)) is not None:
        return _ring_directory(settings) in info.ring_directories
    if not _is_usual(settings):
        return False  # whoever answers on the port does not say which directories it reads
    answer = probe.ask(settings.host, settings.port)
    return answer.is_daemon and (answer.scope == "machine" or answer.uid == os.geteuid())


def token_for(settings: Settings, url: str) -> str:
    """Return the token that the daemon at ``url`` wants of readers, if it is this user's; else empty."""
    try:
        directory = runtime_path(settings.runtime_dir)
    except AmpwatchError:
        return ""
    info = read_info(directory)
    if info is None or info.url != url or not info.wants_token:
        return ""
    return read_token(directory) or ""


def _ring_directory(settings: Settings) -> str:
    """Return the best place for a ring, without links."""
    return os.path.realpath(ring_directories(settings.ring_dir, settings.runtime_dir)[0])


def _is_usual(settings: Settings) -> bool:
    """Return whether rings are where a daemon without any settings reads them."""
    return _ring_directory(settings) == os.path.realpath(ring_directories()[0])


def _find_or_start(settings: Settings, directory: Path) -> DaemonStatus:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        lock = DaemonLock.take(directory)
        if lock is not None:
            try:
                return _elsewhere(settings) or _start(settings, directory, lock)
            finally:
                lock.let_go()
        # Somebody holds the lock. Without an address it is still starting: wait for that.
        info = read_info(directory)
        if info is not None:
            return _running(settings, info)
        time.sleep(ASK_AGAIN_SECONDS)
    msg = f"expected the daemon that holds the lock in {str(directory)!r} to serve within {START_SECONDS:.0f} s, got nothing; see {DAEMON_LOG} there"
    return DaemonStatus("", "unavailable", msg)


def _running(settings: Settings, info: DaemonInfo) -> DaemonStatus:
    message = _mismatch(info.version, info.layout, f"`kill {info.pid}`")
    place = _ring_directory(settings)
    if not message and place not in info.ring_directories:
        message = f"expected a daemon that reads the rings in {place!r}, found one at {info.url} that reads {', '.join(info.ring_directories)} and does not show this run; set AMPWATCH_RING_DIR to the same for both, or end it with `kill {info.pid}` and start the run again"
    if not message and settings.port not in (0, info.port):
        message = f"expected the daemon on port {settings.port}, found it at {info.url} already; that one is used"
    return DaemonStatus(info.url, "running", message)


def _mismatch(version: str, layout: int, how_to_end: str) -> str:
    """Return the message about a daemon of another version than this one; empty if it is equal."""
    if layout != LAYOUT:
        return f"expected a daemon that reads ring layout {LAYOUT}, got ampwatch {version} with layout {layout}, which cannot read this run; end it with {how_to_end} and start the run again"
    if version != __version__:
        return f"expected a daemon of ampwatch {__version__}, got {version}; it can read this run, end it with {how_to_end} to have the newer one"
    return ""


def _elsewhere(settings: Settings) -> DaemonStatus | None:
    """Return the status if somebody holds the port although the lock is free; ``None`` if nobody does."""
    if settings.port == 0:
        return None
    answer = probe.ask(settings.host, settings.port)
    if not answer.taken:
        return None
    if answer.wants_certificate or not answer.is_daemon:
        return DaemonStatus("", "unavailable", _stranger(settings, answer))
    # One of this user's was started with another runtime directory.
    is_machine = answer.scope == "machine"
    if is_machine or answer.uid == os.geteuid():
        how_to_end = "the service manager" if is_machine else "`kill`"
        known = answer.version != ""
        message = _mismatch(answer.version, answer.layout, how_to_end) if known else ""
        return DaemonStatus(answer.url, "running", message or _doubt(settings, answer.url))
    msg = f"expected port {settings.port} for a daemon of uid {os.geteuid()}, got: it is held by {answer}, which may not read this user's runs; set AMPWATCH_PORT to a free port, or run one daemon for all with `ampwatch daemon --machine`"
    return DaemonStatus("", "unavailable", msg)


def _stranger(settings: Settings, answer: Answer) -> str:
    """Return the message about somebody on our port who is not known to be a daemon."""
    remedy = "end that, or"
    if answer.wants_certificate:
        remedy = (
            f"if that is the daemon of this machine, open {answer.url} with your certificate, else"
        )
    return f"expected port {settings.port} for the ampwatch daemon, got: it is held by {answer}; {remedy} set AMPWATCH_PORT to a free port"


def _doubt(settings: Settings, url: str) -> str:
    """Return the message about a daemon whose settings are not known; empty if ours are the usual."""
    if _is_usual(settings):
        return ""
    return f"expected the daemon at {url} to read the rings in {settings.ring_dir!r}, and cannot tell whether it does; it shows this run only if AMPWATCH_RING_DIR is the same for both"


def _start(settings: Settings, directory: Path, lock: DaemonLock) -> DaemonStatus:
    """Start a daemon; it detaches and exits as soon as it listens."""
    command = [sys.executable, "-m", "ampwatch", "daemon", "--auto"]
    command += ["--log-level", "warning", "--lock-fd", str(lock.fd)]
    try:
        child = subprocess.run(  # noqa: S603 - our own interpreter and package
            command,
            env=_environment(settings, directory),
            cwd="/",
            # Its own session and no pipe but stderr, which it closes when it detaches: a daemon that
            # held ours would keep `training | tee` from ending, and would get our Ctrl-C.
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=[lock.fd],
            start_new_session=True,
            timeout=START_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        msg = f"expected {sys.executable!r} to start the daemon, got: {error}; start it by hand with `ampwatch daemon`"
        return DaemonStatus("", "unavailable", msg)
    info = read_info(directory)
    if child.returncode == 0 and info is not None:
        return DaemonStatus(info.url, "started")
    lines = child.stderr.decode(errors="replace").strip().splitlines()
    reason = lines[-1].removeprefix("ampwatch: ") if lines else f"exit status {child.returncode}"
    return DaemonStatus("", "unavailable", f"the daemon did not start: {reason}")


def _environment(settings: Settings, directory: Path) -> dict[str, str]:
    """Return the environment in which the child has the same settings and the same ampwatch."""
    environment = {k: v for k, v in os.environ.items() if k not in HARMFUL_VARIABLES}
    # Its working directory is another one, so paths must be absolute.
    given = {f.name: str(getattr(settings, f.name)) for f in fields(settings)}
    given["runtime_dir"] = str(directory.absolute())
    for name in ("ring_dir", "report_dir"):
        if given[name]:
            given[name] = str(Path(given[name]).absolute())
    environment |= {ENVIRONMENT_PREFIX + name.upper(): value for name, value in given.items()}
    home = str(Path(__file__).parents[2])
    # A site directory is found anyway; first on the path it would hide the standard library.
    if home not in {sysconfig.get_path("purelib"), site.getusersitepackages()}:
        paths = [home, os.environ.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return environment
