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
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

from ampwatch.errors import AmpwatchError
from ampwatch.runtime import (
    DAEMON_LOG,
    ring_directories,
    runtime_directory,
    runtime_path,
)
from ampwatch.settings import ENVIRONMENT_PREFIX
from ampwatch.version import __version__
from ampwatch.wire.rendezvous.lock import DaemonInfo, DaemonLock, read_info, read_lock
from ampwatch.wire.rendezvous.machine import find_daemon
from ampwatch.wire.rendezvous.port_owner import port_owner
from ampwatch.wire.rendezvous.token import read_token
from ampwatch.wire.ring.layout import LAYOUT

if TYPE_CHECKING:
    from ampwatch.settings import Settings

START_SECONDS = 20.0
"""Patience with a starting daemon: usually half a second, more on a busy shared file system."""

ASK_AGAIN_SECONDS = 0.05

HARMFUL_VARIABLES = frozenset({"LD_PRELOAD", "PYTHONINSPECT", "PYTHONSTARTUP", "PYTHONWARNINGS"})
"""Variables that are meant for the training process and would profile, stop or break the daemon."""


class DaemonStatus(Struct, frozen=True):
    """The outcome of the search for a daemon.

    Attributes:
        url: Address of the page, empty if there is none.
        state: ``running`` before, ``started`` now, or ``unavailable``.
        message: What the user should know, in a sentence; empty if all is well.
        info: What the lock file in the runtime directory says of it; ``None`` for one whose lock is
            elsewhere.
    """

    url: str
    state: Literal["running", "started", "unavailable"]
    message: str = ""
    info: DaemonInfo | None = None


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
        Well below a ms.
    """
    found = find_daemon(settings)
    try:
        return found is not None and _reads(settings, found.info)
    except AmpwatchError:  # no place for rings
        return False


def start_daemon(settings: Settings) -> subprocess.Popen[bytes] | None:
    """Begin to start a daemon and wait for nothing: the lock file says where it serves, soon.

    Returns:
        The process that ends when the daemon listens, or cannot; to be polled. ``None`` if
        somebody else holds the lock: another rank that does the same, or a daemon.

    Raises:
        AmpwatchError, OSError: If it cannot be started.

    Cost:
        Some ms, however much memory this process has: its page tables are not copied (vfork).
    """
    directory = runtime_directory(settings.runtime_dir)
    lock = DaemonLock.take(directory)
    if lock is None:
        return None
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        log = os.open(directory / DAEMON_LOG, flags, 0o600)
        try:
            return subprocess.Popen(  # noqa: S603 - our own interpreter and package
                _command(lock),
                env=_environment(settings, directory),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                pass_fds=[lock.fd],
                start_new_session=True,
            )
        finally:
            os.close(log)
    finally:
        lock.let_go()


def token_for(settings: Settings, status: DaemonStatus) -> str:
    """Return the token that a daemon which was found wants of readers, if it is this user's; else empty."""
    if status.info is None or not status.info.wants_token:
        return ""
    return read_token(runtime_path(settings.runtime_dir)) or ""


def _ring_directory(settings: Settings) -> str:
    """Return the best place for a ring, without links."""
    return os.path.realpath(ring_directories(settings.ring_dir, settings.runtime_dir)[0])


def _is_usual(settings: Settings) -> bool:
    """Return whether rings are where the daemon of a machine looks for them."""
    return _ring_directory(settings) == os.path.realpath(ring_directories()[0])


def _reads(settings: Settings, info: DaemonInfo) -> bool:
    """Return whether a daemon reads the rings of these settings."""
    is_machines = info.scope == "machine" and _is_usual(settings)
    return is_machines or _ring_directory(settings) in info.ring_directories


def _find_or_start(settings: Settings, directory: Path) -> DaemonStatus:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        lock = DaemonLock.take(directory)
        if lock is not None:
            try:
                # Its lock is in another place of this user, or it is the machine's.
                if (found := find_daemon(settings)) is not None:
                    return replace(_running(settings, found.info), info=None)
                return _start(settings, directory, lock)
            finally:
                lock.let_go()
        # Somebody holds the lock. Without an address it is still starting: wait for that.
        info = read_lock(directory).info
        if info is not None:
            return _running(settings, info)
        time.sleep(ASK_AGAIN_SECONDS)
    msg = f"the daemon that holds the lock in {str(directory)!r} did not serve within {START_SECONDS:.0f} s; see {DAEMON_LOG} there"
    return DaemonStatus("", "unavailable", msg)


def _running(settings: Settings, info: DaemonInfo) -> DaemonStatus:
    is_machines = info.scope == "machine"
    how_to_end = "the service manager" if is_machines else f"`kill {info.pid}`"
    message = _mismatch(info.version, info.layout, how_to_end)
    if not message and not _reads(settings, info):
        places = ", ".join(info.ring_directories)
        message = f"the daemon at {info.url} does not show this run: it reads the rings in {places}, this run writes to {_ring_directory(settings)!r}; set AMPWATCH_RING_DIR to the same for both, or end it with {how_to_end} and start the run again"
    if not message and not is_machines:
        message = _other_port(settings, info, was_running=True)
    return DaemonStatus(info.url, "running", message, info)


def _other_port(settings: Settings, info: DaemonInfo, *, was_running: bool) -> str:
    """Return the message about a daemon on another port than asked for; empty if it is on that.

    Each rank of a job comes to the same sentence, so that one of them says it.
    """
    if settings.port in (0, info.port):
        return ""
    owner = port_owner(settings.port)
    if owner is None and was_running:
        return f"a daemon already serves at {info.url}; using it instead of port {settings.port}"
    holder = owner or "a program that has ended since, or is not to be seen from here"
    return f"port {settings.port} is in use by {holder}; using {info.url}; set AMPWATCH_PORT to choose another port"


def _mismatch(version: str, layout: int, how_to_end: str) -> str:
    """Return the message about a daemon of another version than this one; empty if it is equal."""
    if layout != LAYOUT:
        return f"the daemon of ampwatch {version} cannot read this run: it reads ring layout {layout}, this run writes {LAYOUT}; end it with {how_to_end} and start the run again"
    if version != __version__:
        return f"the daemon is of ampwatch {version}, this run of {__version__}; it can read this run; end it with {how_to_end} to replace it"
    return ""


def _start(settings: Settings, directory: Path, lock: DaemonLock) -> DaemonStatus:
    """Start a daemon; it detaches and exits as soon as it listens."""
    try:
        child = subprocess.run(  # noqa: S603 - our own interpreter and package
            _command(lock),
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
        msg = f"the daemon could not be started with {sys.executable!r} ({error}); start it by hand with `ampwatch daemon`"
        return DaemonStatus("", "unavailable", msg)
    info = read_info(directory)
    if child.returncode == 0 and info is not None:
        return DaemonStatus(
            info.url, "started", _other_port(settings, info, was_running=False), info
        )
    lines = child.stderr.decode(errors="replace").strip().splitlines()
    reason = lines[-1].removeprefix("ampwatch: ") if lines else f"exit status {child.returncode}"
    return DaemonStatus("", "unavailable", f"the daemon did not start: {reason}")


def _command(lock: DaemonLock) -> list[str]:
    """Return the command that goes on holding ``lock``."""
    command = [sys.executable, "-m", "ampwatch", "daemon", "--auto"]
    return [*command, "--log-level", "warning", "--lock-fd", str(lock.fd)]


def _environment(settings: Settings, directory: Path) -> dict[str, str]:
    """Return the environment in which the child has the same settings and the same ampwatch."""
    # All settings are given below; what else has the prefix is the training's, or a slip of the pen.
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in HARMFUL_VARIABLES and not name.startswith(ENVIRONMENT_PREFIX)
    }
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
