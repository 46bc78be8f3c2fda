"""Results of the doctor about the daemon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ampwatch import __version__
from ampwatch.doctor import daemon as module
from ampwatch.doctor.check import Check, State
from ampwatch.doctor.daemon import daemon
from ampwatch.settings import Settings
from ampwatch.wire.rendezvous.lock import DaemonInfo, DaemonLock
from ampwatch.wire.rendezvous.machine import Found
from ampwatch.wire.rendezvous.port_owner import PortOwner
from ampwatch.wire.ring.layout import LAYOUT

PORT = 10917


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The checks by name, where a lock names this daemon, and this program has the port."""

    def of(
        info: DaemonInfo | None, owner: PortOwner | None = None, **settings: Any
    ) -> dict[str, Check]:
        found = None if info is None else Found(info, None)
        monkeypatch.setattr(module, "find_daemon", lambda _: found)
        monkeypatch.setattr(module, "port_owner", lambda _: owner)
        monkeypatch.setattr(module, "_takes_connections", lambda _: True)
        checks = daemon(Settings.resolve({"port": PORT} | settings))
        return {check.name: check for check in checks}

    return of


def ours(**changed: Any) -> DaemonInfo:
    told = {"port": PORT, "version": __version__, "layout": LAYOUT} | changed
    return DaemonInfo(pid=7, scheme="http", host="127.0.0.1", **told)


def test_no_daemon_is_nothing_wrong(tmp_path: Path) -> None:
    """The first run starts one; looking for it creates nothing."""
    found = daemon(Settings.resolve({"port": 1, "runtime_dir": tmp_path / "new"}))

    assert [check.state for check in found] == [State.ABSENT, *[State.OK] * 3]
    assert "starts one" in found[0].why
    assert found[1].why == "127.0.0.1:1 is free"
    assert found[3].why.endswith("is free")
    assert not (tmp_path / "new").exists()


def test_a_running_daemon_is_reported_with_its_address_and_version(examined: Any) -> None:
    """The port is the daemon's own."""
    found = examined(ours())

    assert found["daemon"].state is State.OK
    assert f"ampwatch {__version__} (user daemon, pid 7) serves http://" in found["daemon"].why
    assert "is the daemon's" in found["port"].why


def test_a_daemon_that_takes_no_connection_is_a_problem(tmp_path: Path) -> None:
    """It hangs: its lock is held, and nobody listens."""
    lock = DaemonLock.take(tmp_path)
    assert lock is not None
    lock.publish(ours(port=1))
    checks = daemon(Settings.resolve({"port": 0, "runtime_dir": tmp_path}))
    lock.release()

    assert [check.state for check in checks] == [State.PROBLEM, *[State.OK] * 3]
    assert "takes no connection at http://127.0.0.1:1/" in checks[0].why
    assert checks[3].why.endswith("is held by the daemon")


def test_a_machines_daemon_may_be_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """As from a container that has its /dev/shm and not its network: nothing is wrong with it."""
    monkeypatch.setattr(module, "find_daemon", lambda _: Found(ours(port=1, scope="machine"), None))
    (check, *_) = daemon(Settings.resolve({"port": 0}))

    assert check.state is State.OK
    assert "from here http://127.0.0.1:1/ takes no connection" in check.why


def test_a_held_lock_without_a_daemon_is_a_problem(tmp_path: Path, examined: Any) -> None:
    """It is starting, or it hangs; the log says which."""
    lock = DaemonLock.take(tmp_path)
    assert lock is not None

    held = examined(None, runtime_dir=tmp_path)["lock"]
    lock.release()
    free = examined(None, runtime_dir=tmp_path)["lock"]

    assert (held.state, free.state) == (State.PROBLEM, State.OK)
    assert "daemon.log" in held.remedy


@pytest.mark.parametrize("info", [None, ours(port=PORT + 1)])
def test_a_port_that_is_taken_by_another_program_is_a_problem(
    examined: Any, info: DaemonInfo | None
) -> None:
    """Whatever that would answer."""
    found = examined(info, PortOwner(33, 7, "nginx"))

    assert found["port"].state is State.PROBLEM
    assert "is held by pid 7 (nginx) of uid 33" in found["port"].why
    assert "AMPWATCH_PORT" in found["port"].remedy


def test_a_daemon_that_cannot_read_our_rings_is_a_problem(examined: Any) -> None:
    """Of another layout; another version alone is only told."""
    unreadable = examined(ours(version="9.0", layout=LAYOUT + 1))["daemon"]
    readable = examined(ours(version="9.0", scope="machine"))["daemon"]

    assert unreadable.state is State.PROBLEM
    reads = f"but reads ring layout {LAYOUT + 1} where this version writes {LAYOUT}"
    assert reads in unreadable.why
    assert unreadable.remedy == "end it, the next run starts one that can"
    assert readable.state is State.OK
    assert readable.why.endswith(f"this is ampwatch {__version__}")


def test_a_runtime_directory_that_cannot_be_used_is_a_problem(
    tmp_path: Path, examined: Any
) -> None:
    """No lock, no daemon."""
    (tmp_path / "file").write_text("")

    check = examined(None, runtime_dir=tmp_path / "file")["runtime directory"]

    assert check.state is State.PROBLEM
    assert "AMPWATCH_RUNTIME_DIR" in check.remedy
