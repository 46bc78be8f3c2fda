"""Finding the daemon, or starting exactly one."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from ampwatch import __version__
from ampwatch.runtime import DAEMON_LOG
from ampwatch.settings import Settings
from ampwatch.training import launcher
from ampwatch.training.launcher import daemon_is_running, ensure_daemon, start_daemon
from ampwatch.wire.rendezvous.lock import DaemonInfo, DaemonLock
from ampwatch.wire.rendezvous.machine import Found
from ampwatch.wire.ring.layout import LAYOUT
from tests.host.daemon.parts import ROOT, Place, ask, eventually


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A place whose daemon is ended after the test."""
    place = Place(tmp_path)
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(launcher, "START_SECONDS", 60.0)
    yield place
    if (info := place.info()) is not None and info.pid != os.getpid():
        os.kill(info.pid, signal.SIGTERM)
        eventually(lambda: place.info() is None, "the end of the daemon")


def settings(**given: Any) -> Settings:
    return Settings.resolve(given)


def published(place: Place, **changes: Any) -> DaemonLock:
    """The lock of a daemon that says of itself what it is told."""
    usual = DaemonInfo(
        *(4711, "http", "127.0.0.1", 10917, __version__, LAYOUT),
        ring_directories=(str(place.rings),),
    )
    lock = DaemonLock.take(place.runtime)
    assert lock is not None
    lock.publish(replace(usual, **changes))
    return lock


def test_a_daemon_is_started_and_then_found(place: Place) -> None:
    """It serves before ensure_daemon returns, is no child of this process, and holds no terminal."""
    started = ensure_daemon(settings())
    found = ensure_daemon(settings())

    info = place.info()
    assert (started.state, started.message) == ("started", "")
    assert (found.state, found.url, found.message) == ("running", started.url, "")
    assert ask(("127.0.0.1", info.port), "/healthz").json["pid"] == info.pid
    with pytest.raises(ChildProcessError):
        os.waitpid(info.pid, os.WNOHANG)
    assert daemon_is_running(settings())
    assert os.getsid(info.pid) != os.getsid(0)
    process = Path(f"/proc/{info.pid}")
    assert (process / "cwd").readlink() == Path("/")
    assert (process / "fd/0").readlink() == Path("/dev/null")
    for standard in (1, 2):
        assert (process / f"fd/{standard}").readlink() == place.runtime / DAEMON_LOG


def test_the_started_daemon_has_the_settings_of_this_process(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those given as arguments, and relative paths, whatever its directory is."""
    monkeypatch.chdir(place.rings.parent)
    monkeypatch.setenv("LD_PRELOAD", "")
    monkeypatch.setenv("AMPWATCH_LEVLE", "off")  # of which the training warns

    ensure_daemon(settings(ring_dir="rings", grace_seconds=7.0))

    path = Path(f"/proc/{place.info().pid}/environ")
    environment = dict(entry.split("=", 1) for entry in path.read_text().split("\0") if entry)
    assert environment["AMPWATCH_RING_DIR"] == str(place.rings)
    assert environment["AMPWATCH_GRACE_SECONDS"] == "7.0"
    assert not environment.keys() & {"LD_PRELOAD", "AMPWATCH_LEVLE"}


def test_a_daemon_started_from_a_checkout_finds_it_from_anywhere(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkout is put on the path, the path that was there is kept."""
    monkeypatch.setenv("PYTHONPATH", "/somewhere")

    environment = launcher._environment(settings(), place.runtime)

    assert environment["PYTHONPATH"] == f"{ROOT}{os.pathsep}/somewhere"


def test_the_standard_library_is_not_hidden_from_an_installed_daemon(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site directory must not come first on the path."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(launcher.sysconfig, "get_path", lambda _: str(ROOT))

    assert "PYTHONPATH" not in launcher._environment(settings(), place.runtime)


@pytest.mark.rotating
def test_of_eight_that_begin_to_start_a_daemon_one_does(place: Place) -> None:
    """Whoever does waits for nothing; the others leave it to him."""
    with ThreadPoolExecutor(8) as pool:
        begun = [p for p in pool.map(lambda _: start_daemon(settings()), range(8)) if p is not None]
    (process,) = begun

    assert process.wait(60) == 0
    assert place.info().auto
    assert start_daemon(settings()) is None


@pytest.mark.parametrize(
    ("version", "layout", "said"),
    [("9.9", LAYOUT, "is of ampwatch 9.9"), ("9.9", LAYOUT + 1, "cannot read this run")],
)
def test_a_daemon_of_another_version_is_used_with_a_warning(
    place: Place, version: str, layout: int, said: str
) -> None:
    """It says what was expected, what was found, and how to end that."""
    lock = published(place, version=version, layout=layout)

    status = ensure_daemon(settings())
    lock.release()

    assert (status.state, status.url) == ("running", "http://127.0.0.1:10917/")
    assert said in status.message
    assert "kill 4711" in status.message


def test_a_daemon_on_another_port_than_asked_for_is_used_with_a_warning(place: Place) -> None:
    """One daemon per user: the port asked for is not opened as well."""
    lock = published(place)

    status = ensure_daemon(settings(port=12345))
    lock.release()

    assert status.state == "running"
    assert "12345" in status.message


def test_a_daemon_that_looks_elsewhere_for_rings_does_not_count(place: Place) -> None:
    """It would not show this run, and nobody would remove its ring."""
    lock = published(place, ring_directories=("/dev/shm/ampwatch-0", "/elsewhere"))

    status = ensure_daemon(settings())
    running = daemon_is_running(settings())
    lock.release()

    assert (status.state, status.url) == ("running", "http://127.0.0.1:10917/")
    assert f"this run writes to {str(place.rings)!r}" in status.message
    assert "reads the rings in /dev/shm/ampwatch-0, /elsewhere" in status.message
    assert "kill 4711" in status.message
    assert not running


def test_a_daemon_is_recognised_by_where_its_links_lead(place: Place, tmp_path: Path) -> None:
    """The same directory under two names is one."""
    (tmp_path / "link").symlink_to(tmp_path)
    lock = published(place)

    status = ensure_daemon(settings(ring_dir=tmp_path / "link" / "rings"))
    running = daemon_is_running(settings(ring_dir=tmp_path / "link" / "rings"))
    lock.release()

    assert status.message == ""
    assert running


@pytest.mark.rotating
def test_a_port_held_by_another_program_is_left_to_it_and_another_one_taken(place: Place) -> None:
    """Whatever that would answer. One sentence says who it is, where the page is, and what to do."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert not daemon_is_running(settings(port=port))
        status = ensure_daemon(settings(port=port))
        again = ensure_daemon(settings(port=port))

        assert (status.state, again.state) == ("started", "running")
        assert status.url == again.url == place.info().url
        assert place.info().port != port
        assert ask(("127.0.0.1", place.info().port), "/healthz").status == 200
        # Of the ranks of a job one says it.
        assert status.message == again.message
        assert f"port {port} is in use by pid {os.getpid()}" in status.message
        assert f"using {status.url}; set AMPWATCH_PORT" in status.message
        assert daemon_is_running(settings(port=port))


@pytest.mark.parametrize(
    ("changes", "ring_dir", "running", "said"),
    [
        ({"scope": "machine"}, "", True, ""),
        ({"scope": "machine"}, "rings", False, "set AMPWATCH_RING_DIR to the same"),
        ({"scope": "machine", "layout": LAYOUT + 1}, "", True, "service manager"),
        ({}, "", False, "set AMPWATCH_RING_DIR to the same"),
    ],
)
def test_a_daemon_with_its_lock_elsewhere_is_used(
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    ring_dir: str,
    *,
    running: bool,
    said: str,
) -> None:
    """That of the machine, and of this user in a login session beside a batch job."""
    info = DaemonInfo(7, "http", "127.0.0.1", 4321, __version__, LAYOUT, ("/elsewhere",))
    monkeypatch.setattr(launcher, "find_daemon", lambda _: Found(replace(info, **changes), None))
    own = settings(port=4321, ring_dir=ring_dir and str(place.rings))

    status = ensure_daemon(own)

    assert (status.state, status.url, status.info) == ("running", "http://127.0.0.1:4321/", None)
    assert said in status.message
    assert bool(said) == bool(status.message)
    assert daemon_is_running(own) == running
    assert place.info() is None


def test_a_daemon_that_does_not_start_says_why(place: Place) -> None:
    """The one line of its stderr; the lock is free again."""
    status = ensure_daemon(settings(host="192.0.2.1", port=0))

    assert status.state == "unavailable"
    assert "192.0.2.1" in status.message
    assert "--host" in status.message
    assert place.info() is None


def test_an_interpreter_that_cannot_be_run_is_unavailable(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where Python is embedded in another program."""
    monkeypatch.setattr(sys, "executable", "")

    status = ensure_daemon(settings())

    assert status.state == "unavailable"
    assert "ampwatch daemon" in status.message


def test_a_lock_whose_holder_never_serves_is_unavailable_in_the_end(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training does not wait for ever."""
    monkeypatch.setattr(launcher, "START_SECONDS", 0.2)
    lock = DaemonLock.take(place.runtime)

    status = ensure_daemon(settings())
    lock.release()

    assert status.state == "unavailable"
    assert DAEMON_LOG in status.message


@pytest.mark.usefixtures("place", "no_temporary_directory")
def test_a_machine_without_a_temporary_directory_has_no_daemon_and_says_why() -> None:
    """As with a read-only root: a status, not an exception in the training script."""
    status = ensure_daemon(settings())

    assert status.state == "unavailable"
    assert "set AMPWATCH_RUNTIME_DIR" in status.message
    assert not daemon_is_running(settings())
