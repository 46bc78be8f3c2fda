"""The daemon as the process it is: started, asked, killed, left alone."""

from __future__ import annotations

import errno
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace

import pytest

from ampwatch.errors import DaemonError
from ampwatch.host.daemon import app as app_module
from ampwatch.host.daemon import server as server_module
from ampwatch.host.daemon.app import Daemon, DaemonOptions, is_of_own_user
from ampwatch.host.daemon.web_config import WebConfig
from ampwatch.runtime import announcement_path
from ampwatch.settings import Settings
from ampwatch.wire.rendezvous.lock import DaemonLock, read_info, read_lock
from ampwatch.wire.rendezvous.machine import find_daemon
from ampwatch.wire.ring import RingWriter
from tests.host.daemon.parts import ROOT, Place, eventually
from tests.host.daemon.parts import Daemon as Running
from tests.workshop.records import end, identity


def test_the_daemon_loads_neither_torch_nor_what_reads_gpus() -> None:
    """It runs on machines without torch, which needs ten times the memory; pynvml waits for a driver."""
    names = "'torch', 'pynvml', 'ampwatch.host.daemon.app'"
    code = f"import sys, ampwatch.host.daemon.app; print([n in sys.modules for n in ({names})])"

    said = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True)

    assert said == "[False, False, True]\n"


def test_the_lock_file_says_where_the_daemon_looks_for_rings(place: Place, tmp_path: Path) -> None:
    """So that a run elsewhere knows it is not shown; links are resolved."""
    (tmp_path / "link").symlink_to(tmp_path)

    def told(ring_dir: str) -> tuple[str, ...] | None:
        settings = Settings(port=0, ring_dir=ring_dir, runtime_dir=str(place.runtime))
        daemon = Daemon(settings, DaemonOptions())
        daemon._server.server_close()
        return daemon.info(0).ring_directories

    assert told(str(tmp_path / "link" / "rings")) == (str(place.rings),)
    assert told("") == (f"/dev/shm/ampwatch-{os.geteuid()}", str(place.runtime))


def test_a_second_daemon_of_the_same_user_is_refused(running: tuple[Place, Running]) -> None:
    """It says where the first one is and how to end it."""
    place, first = running
    with place.command("daemon") as second:
        _, said = second.communicate(timeout=200)

    assert second.returncode == 1
    assert first.info.url in said
    assert f"kill {first.info.pid}" in said
    assert len(said.splitlines()) == 1


def test_a_lock_that_is_held_for_a_moment_does_not_refuse_a_daemon(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training process that ends looks whether there is one, by taking it."""
    lock = DaemonLock.take(place.runtime)
    clock = SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda _: lock.release())
    monkeypatch.setattr(app_module, "time", clock)

    app_module._lock(place.runtime, None).release()


def test_a_lock_that_nobody_serves_under_is_refused_in_the_end(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what is known, which is little."""
    monkeypatch.setattr(app_module, "LOCK_SECONDS", 0.1)
    lock = DaemonLock.take(place.runtime)

    with pytest.raises(DaemonError, match="starting"):
        app_module._lock(place.runtime, None)
    lock.release()


def test_a_port_in_use_is_an_error_that_names_who_uses_it(place: Place) -> None:
    """Not the bare 'address already in use'."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with place.command("daemon", "--port", str(port)) as process:
            _, said = process.communicate(timeout=200)

    assert process.returncode == 1
    assert f"pid {os.getpid()}" in said
    assert "AMPWATCH_PORT" in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (OSError(errno.EACCES, "Permission denied"), "below 1024"),
        (OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address"), "--host"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "--host"),
    ],
)
def test_an_address_that_is_not_to_be_had_says_why_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, error: OSError, advice: str
) -> None:
    """Expected, given, what to do."""

    def refuse(host: str, port: int) -> None:
        raise error

    monkeypatch.setattr(server_module, "_listen", refuse)

    with pytest.raises(DaemonError, match=advice) as caught:
        Daemon(Settings.resolve({"port": 0}), DaemonOptions())
    assert error.strerror in str(caught.value) or "may not" in str(caught.value)


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_daemon_cleanly(place: Place, stop: signal.Signals) -> None:
    """Exit status 0, the lock free; its file says no more than that trainings leave it ended."""
    with place.daemon() as daemon:
        daemon.process.send_signal(stop)
        assert daemon.process.wait(60) == 0

        assert read_lock(place.runtime).has_resigned
        assert read_info(place.runtime) is None
        assert place.info() is None


@pytest.mark.nightly
def test_a_daemon_that_was_asked_to_ends_when_nothing_is_left_to_watch(place: Place) -> None:
    """Not while a run lives or is shown, whoever has the page open."""
    with (
        place.writer("gpt") as writer,
        place.daemon("--auto", AMPWATCH_GRACE_SECONDS="2") as daemon,
        socket.create_connection((daemon.info.host, daemon.info.port)) as page,
    ):
        page.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with pytest.raises(subprocess.TimeoutExpired):
            daemon.process.wait(2)
        writer.do("finish and keep")
        eventually(lambda: daemon.states() == {"gpt": "finished"})

        assert daemon.process.wait(60) == 0
        assert not writer.path.exists()


def test_a_run_that_comes_while_the_daemon_is_leaving_makes_it_stay(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ring was there before the launcher read the lock file, so one of both must notice."""
    settings = Settings(port=0, ring_dir=str(place.rings), grace_seconds=0.0)
    daemon = Daemon(settings, DaemonOptions(auto=True))
    lock = DaemonLock.take(place.runtime)
    lock.publish(daemon.info(os.getpid()))
    now = [daemon._busy_at + 2.0]
    monkeypatch.setattr(app_module.time, "monotonic", lambda: now[0])
    assert daemon._is_idle()

    with place.writer("late"):
        assert daemon._leave(lock) is False
        assert read_info(place.runtime) == daemon.info(os.getpid())

    daemon._watcher.close()
    daemon._server.server_close()
    lock.release()


@pytest.mark.parametrize("hours_away", [0, 2])
def test_a_daemon_knows_until_when_the_one_before_it_was_there(
    place: Place, hours_away: int
) -> None:
    """However that one ended. Of a run that has ended since then nobody has heard."""
    now = time.time()
    shown = []
    for _ in range(2):
        settings = Settings(port=0, ring_dir=str(place.rings), runtime_dir=str(place.runtime))
        daemon = Daemon(settings, DaemonOptions())
        daemon.step()
        shown.append([rank.run for rank in daemon.fleet.ranks()])
        daemon._watcher.close()
        daemon._server.server_close()
        (mark,) = place.runtime.glob("daemon.read")
        os.utime(mark, (now - hours_away * 3600,) * 2)
        writer = RingWriter.create([place.rings], identity(), slots=64)
        writer.close(end(time_ns=int((now - 3600) * 1e9)), keep=True)
        os.utime(writer.path, (now - 3600,) * 2)

    assert shown == [[], ["gpt"] if hours_away else []]


def test_a_daemon_whose_http_server_died_ends_with_an_error(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Better no page than a frozen one; the lock is free for the next."""
    daemon = Daemon(Settings.resolve({"port": 0, "poll_seconds": 0.05}), DaemonOptions())
    monkeypatch.setattr(daemon._server, "serve_forever", lambda: None)
    monkeypatch.setattr(daemon._server, "shutdown", lambda: None)
    lock = DaemonLock.take(place.runtime)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    try:
        with pytest.raises(DaemonError, match="HTTP server"):
            daemon.run(lock)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    assert place.info() is None


def test_the_state_of_a_loop_that_hangs_is_reported(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After many polls' time without one."""
    daemon = Daemon(Settings.resolve({"port": 0}), DaemonOptions())
    daemon.step()
    start = daemon._polled_at

    monkeypatch.setattr(app_module.time, "monotonic", lambda: start + 29.0)
    assert not daemon._is_stuck()
    monkeypatch.setattr(app_module.time, "monotonic", lambda: start + 31.0)
    assert daemon._is_stuck()

    daemon._server.server_close()


TLS = WebConfig(tls=ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))


@pytest.mark.parametrize(
    ("host", "readers", "web_config", "open_to_all", "shows_token"),
    [
        ("127.0.0.1", "auto", WebConfig(), False, False),
        ("127.0.0.1", "all", WebConfig(), False, False),
        ("0.0.0.0", "auto", WebConfig(), False, True),
        ("0.0.0.0", "auto", TLS, False, False),
        ("0.0.0.0", "all", WebConfig(), True, False),
        ("0.0.0.0", "all", TLS, True, False),
        ("0.0.0.0", "all", WebConfig(users={"alice": b"$2b$04$"}), False, False),
        ("0.0.0.0", "auto", WebConfig(users={"alice": b"$2b$04$"}), False, False),
    ],
)
def test_a_daemon_that_anybody_can_read_is_known_as_such(
    monkeypatch: pytest.MonkeyPatch,
    host: str,
    readers: str,
    web_config: WebConfig,
    *,
    open_to_all: bool,
    shows_token: bool,
) -> None:
    """Beyond loopback without token, password or client certificate: encryption alone is none."""
    monkeypatch.setattr("ampwatch.host.daemon.web_config.load", lambda _: web_config)
    settings = Settings.resolve({"host": host, "port": 0, "readers": readers})

    daemon = Daemon(settings, DaemonOptions(web_config_file="w"))

    assert daemon.is_open_to_all is open_to_all
    assert daemon.shows_token is shows_token
    daemon._server.server_close()


def test_a_daemon_is_known_by_the_address_that_others_open() -> None:
    """A reverse proxy sends its name on, and people are sent to that address, with the token in clear or not."""
    for scheme, is_clear in (("https", False), ("http", True)):
        url = f"{scheme}://train.example.com/node-a/"
        daemon = Daemon(Settings.resolve({"port": 0, "external_url": url}), DaemonOptions())
        info = daemon.info(7)
        daemon._server.server_close()

        assert daemon._server.is_known_as("train.example.com")
        assert (info.url, info.local_url) == (url, f"http://127.0.0.1:{info.port}/")
        assert daemon.shows_token is is_clear


@pytest.mark.parametrize("address", ["no-port", "a b:1", "http://x:1"])
def test_an_external_address_without_sense_is_refused(address: str) -> None:
    """It would go into every Prometheus that asks."""
    with pytest.raises(DaemonError, match="host:port"):
        Daemon(Settings.resolve({"port": 0}), DaemonOptions(external_address=address))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may read every user's rings")
def test_a_machine_wide_daemon_says_so(place: Place, tmp_path: Path) -> None:
    """The launchers of all users find it, for as long as it serves."""
    own = Settings(ring_dir=str(place.rings), runtime_dir=str(tmp_path / "another-users"))
    with place.daemon("--machine") as daemon:
        answer = daemon.ask("/healthz")
        found = eventually(lambda: find_daemon(own), "its announcement")
        # What empties the place, as the epilogue of a job may, hides the daemon for some seconds.
        announcement_path(own.ring_dir).unlink()
        eventually(lambda: find_daemon(own), "its announcement, made again")

    assert answer.status == HTTPStatus.OK
    assert answer.json["scope"] == "machine"
    assert (found.info, found.directory) == (daemon.info, None)
    assert daemon.info.scope == "machine"
    assert find_daemon(own) is None


def test_a_daemon_that_the_system_ends_is_still_needed() -> None:
    """A batch system ends the job that has started it, and other jobs go on."""
    own, other = SimpleNamespace(si_uid=os.geteuid()), SimpleNamespace(si_uid=os.geteuid() + 1)

    assert is_of_own_user(own)  # type: ignore[arg-type] # all that is asked of it
    assert not is_of_own_user(other)  # type: ignore[arg-type] # likewise


def test_a_daemon_that_is_stopped_and_goes_on_does_not_end(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPython answers with a signal that it has not filled in, where the time of an interrupted wait is over."""
    daemon = Daemon(Settings.resolve({"port": 0, "poll_seconds": 0.05}), DaemonOptions())
    came = [signal.Signals.SIGTERM, 0, None]

    def wait(_signals: object, _seconds: float) -> object:
        signo = came.pop()
        return None if signo is None else SimpleNamespace(si_signo=signo, si_uid=os.geteuid())

    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    monkeypatch.setattr(app_module.signal, "sigtimedwait", wait)
    try:
        daemon.run(DaemonLock.take(place.runtime))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    assert came == []
