"""The daemon put together: rings in, the fleet in the middle, HTTP out, and the loop that drives it.

No torch here, nor in anything this imports: the daemon runs on machines without it.
"""

from __future__ import annotations

import errno
import gc
import logging
import math
import os
import signal
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ampwatch import __version__, runtime
from ampwatch.errors import DaemonError
from ampwatch.host.daemon import web_config
from ampwatch.host.daemon.access import Access
from ampwatch.host.daemon.detach import detach
from ampwatch.host.daemon.discovery import MachineDirectories, check_may_tidy_all
from ampwatch.host.daemon.ended import MACHINE, OPEN_TO_ALL, EndedRuns
from ampwatch.host.daemon.handler import parse_address
from ampwatch.host.daemon.push import open_pusher
from ampwatch.host.daemon.server import Server
from ampwatch.host.daemon.site import Site
from ampwatch.host.daemon.watcher import RingWatcher
from ampwatch.host.fleet import Fleet
from ampwatch.host.fleet.fleet import CollectorPass
from ampwatch.host.gpu.collector import gpu_collector
from ampwatch.wire.rendezvous.lock import DaemonInfo, DaemonLock, read_lock
from ampwatch.wire.rendezvous.machine import Announcement
from ampwatch.wire.ring.layout import LAYOUT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from ampwatch.settings import Settings

STOP_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM})

SIGNALS = STOP_SIGNALS | {signal.SIGHUP}
"""The signals that the loop takes; SIGHUP lets the web-config be read again."""

MIN_IDLE_SECONDS = 1.0
"""Least time that a daemon with ``--auto`` stays when it has nothing to show. Unit: s."""

STUCK_SECONDS = 30.0
STUCK_POLLS = 10
"""The loop counts as stuck when the rings were not read for both of these. Unit: s; polls."""

MARK_SECONDS = 10.0
"""Time between two marks of how far the rings were read. Runs that end after the last one of a daemon
that is killed are shown by the next one as if they had ended just then. Unit: s."""

COLLECT_SECONDS = 600.0
"""Time between two collections of all objects. Python would begin one whenever there are a quarter
more of them, as when a page is opened, and stop everything for it: 0.3 s with 256 ranks. Hardly
anything here is freed by them. Unit: s."""

LOCK_SECONDS = 2.0
"""Patience with somebody who holds the lock without serving: a daemon that starts, or
a training process that takes it for a moment to find out whether there is one. Unit: s."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonOptions:
    """Wishes of the command line that are no settings.

    Attributes:
        machine: Read the rings of every user.
        auto: End when nothing is left to watch.
        web_config_file: Path of the web-config file, empty for none.
        external_address: ``host:port`` under which others reach it, empty if as they come.
        otlp: Base address to push metrics and findings to, empty for that of the standard variables of
            OpenTelemetry; ``None`` to push nothing.
    """

    machine: bool = False
    auto: bool = False
    web_config_file: str = ""
    external_address: str = ""
    otlp: str | None = None


class Daemon:
    """A daemon that listens already; ``run`` serves.

    Args:
        clock: Unix time. Unit: s.

    Raises:
        DaemonError: If it cannot listen, or cannot honour a wish.
    """

    def __init__(
        self,
        settings: Settings,
        options: DaemonOptions,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._options = options
        web = web_config.WebConfig()
        if options.web_config_file:
            web = web_config.load(options.web_config_file)
        self.fleet = Fleet(settings, clock)
        directory = runtime.runtime_directory(settings.runtime_dir)
        self._mark = directory / runtime.DAEMON_READ
        self._watcher = RingWatcher(
            self.fleet,
            _directories(settings, options),
            grace_seconds=settings.grace_seconds,
            read_until_ns=_date_of(self._mark),
            any_user=options.machine,
            # The rings of others go into no directory of theirs: a link there could lead anywhere.
            leftovers=None if options.machine else settings,
            clock=clock,
        )
        # The daemon of one user finds the rings of that user alone, whose all names are then.
        if options.machine:
            self.fleet.owners.keep_in(directory)
        self._gpus = gpu_collector(self.fleet, settings)
        site = Site(
            self.fleet,
            machine=options.machine,
            external_address=options.external_address,
            is_stuck=self._is_stuck,
            https=web.tls is not None,
            external_url=settings.external_url,
            ended=EndedRuns(self.fleet, settings.report_dir, refusal=self._why_no_reports),
        )
        self._access = Access(site.scope, settings.readers, directory)
        self._server = self._listening(site, web)
        self._pusher = None
        if options.otlp is not None:
            machine = socket.gethostname()
            instance = options.external_address or f"{machine}:{self._server.server_port}"
            try:
                self._pusher = open_pusher(self.fleet, options.otlp, instance, machine)
            except DaemonError:
                self._server.server_close()
                raise
        # TLS neither comes nor goes while the daemon runs (protection.py).
        self._scheme = "https" if web.tls else "http"
        self._polled_at = self._busy_at = self._collected_at = time.monotonic()
        self._marked_at = -math.inf
        self._announcement: Announcement | None = None
        self._has_complained = False

    def _listening(self, site: Site, web: web_config.WebConfig) -> Server:
        host, port = self._settings.host, self._settings.port
        names = _own_names(self._options, self._settings)
        try:
            return Server(host, port, site, web, names, self._access)
        except DaemonError as error:
            # Whoever holds the port, a training is to be watched: its log has the true address. Who
            # names a port by hand gets that port, or an error.
            is_held = getattr(error.__cause__, "errno", None) == errno.EADDRINUSE
            if not (is_held and self._options.auto):
                raise
            logger.warning("%s; any other port is taken", error)
        return Server(host, 0, site, web, names, self._access)

    def info(self, pid: int) -> DaemonInfo:
        """Return what the lock file says about this daemon, which runs as ``pid``."""
        settings = self._settings
        places = runtime.ring_directories(settings.ring_dir, settings.runtime_dir)
        return DaemonInfo(
            pid=pid,
            scheme=self._scheme,
            host=settings.host,
            port=self._server.server_port,
            version=__version__,
            layout=LAYOUT,
            ring_directories=tuple(map(os.path.realpath, places)),
            auto=self._options.auto,
            wants_token=self.wants_token,
            external_url=settings.external_url,
            scope="machine" if self._options.machine else "user",
        )

    @property
    def wants_token(self) -> bool:
        """True if readers need the token of the user."""
        return self._access.wants_token(asks_who=self._server.asks_who)

    @property
    def is_open_to_all(self) -> bool:
        """True if other machines are answered whoever asks."""
        return not (self._server.is_loopback or self._server.asks_who or self.wants_token)

    @property
    def shows_token(self) -> bool:
        """True if the token crosses the network in clear."""
        is_private = self._server.is_loopback or self._server.is_tls
        is_proxied = self._settings.external_url.startswith("http://")
        return self.wants_token and (is_proxied or not is_private)

    def _why_no_reports(self) -> str:
        """Return why readers see no reports, which the files let their user alone read; empty if they do."""
        if self._options.machine:
            return MACHINE
        return "" if self.wants_token or self._server.asks_who else OPEN_TO_ALL

    def run(self, lock: DaemonLock) -> None:
        """Serve until a signal ends it, or until idle; then let go of everything, of the lock last.

        Raises:
            DaemonError: If a part of the daemon died: better no page than a frozen one.
        """
        # Before any thread: all of them inherit it, and the signals wait for the loop.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        young, middle, _ = gc.get_threshold()
        # Everything is collected by the loop, when it is time.
        gc.set_threshold(young, middle, 1_000_000)
        # A daemon thread: where the loop ends by an error, it must not keep the process alive.
        listener = threading.Thread(target=self._server.serve_forever, daemon=True)
        listener.start()
        collectors = [each for each in (self._gpus, self._pusher) if each is not None]
        for collector in collectors:
            collector.start()
        was_to_end = False
        try:
            was_to_end = self._loop(lock, listener)
            self._mark_read()
        finally:
            self._server.shutdown()
            self._server.server_close()
            self._watcher.close()
            for collector in collectors:
                collector.stop()
            self.fleet.owners.save()
            if self._announcement is not None:
                self._announcement.retract()
            # Last: whoever takes the lock next binds the same port.
            if was_to_end:
                lock.resign()
            else:
                lock.release()
        logger.info("the daemon has ended")

    def step(self) -> None:
        """Read the rings once."""
        started = time.monotonic()
        success = self._watcher.poll()
        self._polled_at = time.monotonic()
        # A scrape reads the passes under this lock, from a thread of the server.
        with self.fleet.lock:
            self.fleet.passes["rings"] = CollectorPass(success, self._polled_at - started)
        if self._polled_at - self._marked_at > MARK_SECONDS:
            self._mark_read()
            self._announce()
        if self._watcher.num_followed or self.fleet.ranks():
            self._busy_at = self._polled_at
        if self._gpus is not None:
            self._gpus.check()
        self.fleet.compare_views()
        self.fleet.owners.save_if_due()
        if self._polled_at - self._collected_at > COLLECT_SECONDS:
            self._collected_at = self._polled_at
            gc.collect()

    def _announce(self) -> None:
        """Announce the daemon of a machine to all users, again where somebody has emptied the place."""
        place = runtime.announcement_path(self._settings.ring_dir)
        # What another daemon has put there since is left alone: one of the two is announced.
        if not self._options.machine or (self._announcement and os.path.lexists(place)):
            return
        try:
            if self._announcement is not None:
                self._announcement.retract()
            self._announcement = Announcement(place, self.info(os.getpid()))
        except DaemonError as error:
            self._announcement = None
            if not self._has_complained:
                self._has_complained = True
                logger.warning("%s; each user's trainings start a daemon of their own", error)

    def _mark_read(self) -> None:
        """Note for the next daemon that the rings were read until now."""
        self._marked_at = self._polled_at
        with suppress(OSError):  # no room: that one shows what it does not know of
            self._mark.touch(0o600)

    def _loop(self, lock: DaemonLock, listener: threading.Thread) -> bool:
        """Serve to the end; return whether nobody is to bring the daemon back."""
        self.step()
        # The signals are taken here, not in a handler: that could interrupt a lock's holder.
        # An answer of neither is no signal: CPython returns one that it has not filled in where the wait was
        # interrupted, by SIGCONT, and its time was over by then.
        while (taken := signal.sigtimedwait(SIGNALS, self._settings.poll_seconds)) is None or (
            taken.si_signo not in STOP_SIGNALS
        ):
            if taken is not None and taken.si_signo == signal.SIGHUP:
                self._server.protection.refresh(force=True)
            self.step()
            # Without its listener the loop would go on for ever behind a page that nobody can reach.
            if not listener.is_alive():
                msg = "the HTTP server ended while the daemon was running; see the traceback above"
                raise DaemonError(msg)
            if self._options.auto and self._is_idle() and self._leave(lock):
                return True
        return is_of_own_user(taken)

    def _is_idle(self) -> bool:
        patience = max(MIN_IDLE_SECONDS, self._settings.grace_seconds / 10)
        return time.monotonic() - self._busy_at > patience

    def _leave(self, lock: DaemonLock) -> bool:
        """Say that nobody serves here any more; stay nevertheless if a run came meanwhile.

        A run that creates its ring and then reads the lock file either finds it empty,
        and waits for the lock, or its ring is found here.
        """
        # In this order: the other way round a run could come between the last reading and the retraction.
        lock.retract()
        self.step()
        if self._is_idle():
            return True
        lock.publish(self.info(os.getpid()))
        return False

    def _is_stuck(self) -> bool:
        patience = max(STUCK_SECONDS, STUCK_POLLS * self._settings.poll_seconds)
        return time.monotonic() - self._polled_at > patience


def _date_of(path: Path) -> float:
    """Return when a file was written, as Unix time; infinite if it is not known. Unit: ns."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return math.inf


def is_of_own_user(signal_info: signal.struct_siginfo) -> bool:
    """Return whether it was this user who has ended the daemon, and not the system.

    A person who ends it wants it gone. A batch system that ends the job which has started it is
    root, or looks like that from within a container: other jobs still need the daemon.
    """
    return signal_info.si_uid == os.geteuid()


def serve(settings: Settings, options: DaemonOptions, lock_fd: int | None = None) -> None:
    """Be the daemon, in this process or, for the launcher, in a detached child.

    The launcher gives the descriptor of the lock that it took. Then the daemon detaches as soon as
    it listens, and this process exits with 0.

    Raises:
        DaemonError: If it cannot start, or a part of it died.
    """
    directory = runtime.runtime_directory(settings.runtime_dir)
    lock = _lock(directory, lock_fd)
    daemon = Daemon(settings, options)
    # Before the lock file says whom to end: whoever reads it may do so at once.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    if lock_fd is not None:
        detach(directory, parent_says=lambda pid: lock.publish(daemon.info(pid)))
    else:
        lock.publish(daemon.info(os.getpid()))
    info = daemon.info(os.getpid())
    logger.info("ampwatch %s serves %s as pid %d", __version__, info.local_url, info.pid)
    if daemon.is_open_to_all:
        logger.warning(
            "anybody who can connect to %s can read: give a --web.config.file", info.local_url
        )
    if daemon.shows_token:
        logger.warning(
            "clients from elsewhere send the token to %s in clear: give a --web.config.file with TLS",
            info.url,
        )
    if daemon.wants_token:
        logger.info("it asks for a token: `ampwatch url` prints the address with it")
    daemon.run(lock)


def _lock(directory: Path, lock_fd: int | None) -> DaemonLock:
    if lock_fd is not None:
        return DaemonLock.adopt(lock_fd, directory)
    deadline = time.monotonic() + LOCK_SECONDS
    while (lock := DaemonLock.take(directory)) is None:
        # Without an address it is held for a moment: by who starts a daemon, or looks for one.
        if (info := read_lock(directory).info) is not None or time.monotonic() > deadline:
            raise DaemonError(_other_daemon(info))
        time.sleep(LOCK_SECONDS / 40)
    return lock


def _other_daemon(info: DaemonInfo | None) -> str:
    expected = f"another daemon of uid {os.geteuid()} is running: "
    if info is None:
        return f"{expected}one that is starting; try again"
    return f"{expected}ampwatch {info.version} at {info.url}; open that, or end it with `kill {info.pid}`"


def _directories(settings: Settings, options: DaemonOptions) -> Callable[[], Iterable[Path]]:
    if options.machine and not settings.ring_dir:
        check_may_tidy_all()
        return MachineDirectories(settings.runtime_dir)
    places = runtime.ring_directories(settings.ring_dir, settings.runtime_dir)
    return lambda: places


def _own_names(options: DaemonOptions, settings: Settings) -> frozenset[str]:
    """Return the further names under which clients may come."""
    names = set[str]()
    if options.external_address:
        address = parse_address(options.external_address)
        if address is None or address[1] is None:
            msg = f"`--web.external-address`: expected host:port, got {options.external_address!r}"
            raise DaemonError(msg)
        names.add(address[0])
    if host := urlsplit(settings.external_url).hostname:
        names.add(f"[{host}]" if ":" in host else host)
    return frozenset(names)
