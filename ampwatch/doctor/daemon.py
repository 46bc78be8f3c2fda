"""Does a daemon serve, could one be started: its address, its port, its lock. No torch here."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ampwatch import __version__
from ampwatch.doctor.check import Check, State
from ampwatch.doctor.places import trouble_with
from ampwatch.errors import RingError
from ampwatch.runtime import DAEMON_LOCK, DAEMON_LOG, runtime_path, runtime_paths
from ampwatch.wire.rendezvous import probe
from ampwatch.wire.rendezvous.lock import Sight, look_at
from ampwatch.wire.rendezvous.probe import SERVICE, Answer
from ampwatch.wire.ring.layout import LAYOUT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ampwatch.settings import Settings
    from ampwatch.wire.rendezvous.lock import DaemonInfo


def daemon(settings: Settings, ask: Callable[[str, int], Answer] | None = None) -> list[Check]:
    """Check for the daemon, or for what would keep one from starting.

    Args:
        settings: Address, port and runtime directory.
        ask: Asks who answers on a port, and believes what a training would believe.

    Cost:
        A few connections on this machine, each bounded by a time-out.
    """
    try:
        directory = runtime_path(settings.runtime_dir)
    except RingError as error:
        return [Check("runtime directory", State.PROBLEM, str(error))]
    ask = ask or partial(probe.ask, places=runtime_paths(settings.runtime_dir))
    sight = _look_at(directory)
    serving = _serving(settings, sight.info, ask)
    return [
        _daemon(serving),
        _port(settings, serving, ask),
        _runtime_directory(directory),
        _lock(directory, sight, serving),
    ]


def _look_at(directory: Path) -> Sight:
    """Look at the lock without creating the file; one that cannot be looked at is free."""
    try:
        return look_at(directory)
    except OSError:
        return Sight(is_held=False, info=None, has_resigned=False)


def _serving(
    settings: Settings, info: DaemonInfo | None, ask: Callable[[str, int], Answer]
) -> Answer | None:
    """Return the daemon that would show this user's runs: the one in the lock file, else on the port."""
    addresses = [(info.host, info.port)] if info else []
    if settings.port:
        addresses.append((settings.host, settings.port))
    for host, port in addresses:
        answer = ask(host, port)
        if info and port == info.port and not answer.is_daemon and answer.taken:
            # Whatever it answers, as one that wants a certificate says nothing: a lock that is held
            # is held by a process of this user.
            return replace(
                answer,
                service=SERVICE,
                scope="user",
                uid=os.geteuid(),
                version=info.version,
                layout=info.layout,
            )
        if answer.is_daemon:
            return answer
    return None


def _daemon(serving: Answer | None) -> Check:
    if serving is None:
        why = "none runs; the first ampwatch.monitor() on this machine starts one"
        return Check("daemon", State.ABSENT, why)
    why = f"{serving} serves {serving.url}"
    # A daemon with a password gives its version only to those who know it.
    if serving.version and serving.layout != LAYOUT:
        why += f", but reads ring layout {serving.layout} where this version writes {LAYOUT}"
        return Check("daemon", State.PROBLEM, why, "end it, the next run starts one that can")
    if serving.version not in ("", __version__):
        why += f"; this is ampwatch {__version__}"
    return Check("daemon", State.OK, why)


def _port(settings: Settings, serving: Answer | None, ask: Callable[[str, int], Answer]) -> Check:
    where = f"{settings.host}:{settings.port}"
    if settings.port == 0:
        return Check("port", State.OK, "port 0 is set: any free one will be taken")
    answer = ask(settings.host, settings.port)
    if not answer.taken:
        return Check("port", State.OK, f"{where} is free")
    if serving is not None and serving.url == answer.url:
        return Check("port", State.OK, f"{where} is the daemon's")
    why = f"{where} is held by {answer}; the daemon of a training takes any other port"
    return Check("port", State.PROBLEM, why, "end that, or set AMPWATCH_PORT to a free port")


def _runtime_directory(directory: Path) -> Check:
    if trouble := trouble_with(directory):
        why = f"{directory} cannot be used: {trouble}"
        remedy = "set AMPWATCH_RUNTIME_DIR to a writable directory on a local file system"
        return Check("runtime directory", State.PROBLEM, why, remedy)
    return Check("runtime directory", State.OK, f"{directory} takes the daemon's lock and log")


def _lock(directory: Path, sight: Sight, serving: Answer | None) -> Check:
    path = directory / DAEMON_LOCK
    if sight.is_held and serving is None:
        why = f"{path} is held, but no daemon answers: one is starting, or hangs"
        return Check(
            "lock", State.PROBLEM, why, f"wait a moment; else see {directory / DAEMON_LOG}"
        )
    return Check("lock", State.OK, f"{path} is {'held by the daemon' if sight.is_held else 'free'}")
