"""Does a daemon serve, could one be started: its address, its port, its lock. No torch here."""

from __future__ import annotations

import socket
from pathlib import Path

from ampwatch import __version__
from ampwatch.doctor.check import Check, State
from ampwatch.doctor.places import trouble_with
from ampwatch.errors import RingError
from ampwatch.runtime import DAEMON_LOCK, DAEMON_LOG, runtime_path
from ampwatch.settings import Settings
from ampwatch.wire.rendezvous.lock import DaemonInfo, LockState, reachable, read_lock
from ampwatch.wire.rendezvous.machine import find_daemon
from ampwatch.wire.rendezvous.port_owner import port_owner
from ampwatch.wire.ring.layout import LAYOUT

TIMEOUT_SECONDS = 0.5
"""Time for the daemon to take a connection. Unit: s."""


def daemon(settings: Settings) -> list[Check]:
    """Check for the daemon, or for what would keep one from starting.

    Cost:
        A connection on this machine, bounded by a time-out.
    """
    try:
        directory = runtime_path(settings.runtime_dir)
    except RingError as error:
        return [Check("runtime directory", State.PROBLEM, str(error))]
    found = find_daemon(settings)
    info = None if found is None else found.info
    return [
        _daemon(info),
        _port(settings, info),
        _runtime_directory(directory),
        _lock(directory, _read_lock(directory)),
    ]


def _read_lock(directory: Path) -> LockState:
    """Look at the lock without creating the file; one that cannot be looked at is free."""
    try:
        return read_lock(directory)
    except OSError:
        return LockState(is_held=False, info=None, has_resigned=False)


def _daemon(info: DaemonInfo | None) -> Check:
    if info is None:
        why = "none runs; the first ampwatch.monitor() on this machine starts one"
        return Check("daemon", State.ABSENT, why)
    why = f"ampwatch {info.version} ({info.scope} daemon, pid {info.pid}) serves {info.url}"
    if info.scope == "machine" and not _takes_connections(info):
        why += f"; from here {info.local_url} takes no connection, as from a container with a network of its own"
        return Check("daemon", State.OK, why)
    if not _takes_connections(info):
        why += f", but takes no connection at {info.local_url}"
        return Check("daemon", State.PROBLEM, why, f"see {DAEMON_LOG}, or end it")
    if info.layout != LAYOUT:
        why += f", but reads ring layout {info.layout} where this version writes {LAYOUT}"
        return Check("daemon", State.PROBLEM, why, "end it, the next run starts one that can")
    if info.version != __version__:
        why += f"; this is ampwatch {__version__}"
    return Check("daemon", State.OK, why)


def _takes_connections(info: DaemonInfo) -> bool:
    try:
        address = reachable(info.host).strip("[]"), info.port
        socket.create_connection(address, TIMEOUT_SECONDS).close()
    except OSError:
        return False
    return True


def _port(settings: Settings, info: DaemonInfo | None) -> Check:
    where = f"{settings.host}:{settings.port}"
    if settings.port == 0:
        return Check("port", State.OK, "port 0 is set: any free one will be taken")
    if info is not None and info.port == settings.port:
        return Check("port", State.OK, f"{where} is the daemon's")
    owner = port_owner(settings.port)
    if owner is None:
        return Check("port", State.OK, f"{where} is free")
    why = f"{where} is held by {owner}; the daemon of a training takes any other port"
    return Check("port", State.PROBLEM, why, "end that, or set AMPWATCH_PORT to a free port")


def _runtime_directory(directory: Path) -> Check:
    if trouble := trouble_with(directory):
        why = f"{directory} cannot be used: {trouble}"
        remedy = "set AMPWATCH_RUNTIME_DIR to a writable directory on a local file system"
        return Check("runtime directory", State.PROBLEM, why, remedy)
    return Check("runtime directory", State.OK, f"{directory} takes the daemon's lock and log")


def _lock(directory: Path, lock_state: LockState) -> Check:
    path = directory / DAEMON_LOCK
    if lock_state.is_held and lock_state.info is None:
        why = f"{path} is held, but no daemon serves: one is starting, or hangs"
        return Check(
            "lock", State.PROBLEM, why, f"wait a moment; else see {directory / DAEMON_LOG}"
        )
    return Check(
        "lock", State.OK, f"{path} is {'held by the daemon' if lock_state.is_held else 'free'}"
    )
