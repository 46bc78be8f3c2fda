"""Results of the doctor about the places of rings, and about the daemon."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ampwatch import __version__
from ampwatch.doctor import daemon as module
from ampwatch.doctor.check import Check, State
from ampwatch.doctor.daemon import daemon
from ampwatch.doctor.places import _place, reports, rings, trouble_with
from ampwatch.errors import RingError
from ampwatch.runtime import private_directory
from ampwatch.settings import Settings
from ampwatch.wire.rendezvous.lock import DaemonInfo, DaemonLock
from ampwatch.wire.rendezvous.machine import Found
from ampwatch.wire.rendezvous.port_owner import PortOwner
from ampwatch.wire.ring.layout import LAYOUT

NOBODY = 65534


@pytest.fixture
def usual_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """No ring directory is set."""
    monkeypatch.delenv("AMPWATCH_RING_DIR")


@pytest.mark.usefixtures("usual_places")
def test_shared_memory_and_its_fallback_are_checked(tmp_path: Path) -> None:
    """With the room they have and the room a ring takes; nothing is created."""
    settings = Settings.resolve({"runtime_dir": tmp_path / "new" / "runtime"})

    memory, fallback = rings(settings, tmp_path / "shm")

    assert (memory.state, fallback.state) == (State.OK, State.OK)
    assert str(tmp_path / "shm" / f"ampwatch-{os.geteuid()}") in memory.why
    assert "a ring takes 2.0 MiB" in memory.why
    assert not (tmp_path / "shm").exists()
    assert not (tmp_path / "new").exists()


@pytest.mark.usefixtures("usual_places")
def test_one_place_is_enough(tmp_path: Path) -> None:
    """Without shared memory there is a problem, and ampwatch works."""
    (tmp_path / "shm").write_text("not a directory")

    memory, fallback = rings(Settings.resolve(), tmp_path / "shm")

    assert (memory.state, fallback.state) == (State.PROBLEM, State.OK)
    assert not memory.blocks


def test_a_ring_directory_that_is_set_is_the_only_place(tmp_path: Path) -> None:
    """The places are those of the training process."""
    (check,) = rings(Settings.resolve({"ring_dir": tmp_path}))

    assert (check.name, check.state) == ("AMPWATCH_RING_DIR", State.OK)


def small(monkeypatch: pytest.MonkeyPatch, total: int, free: int) -> None:
    """Have each file system be so large, as /dev/shm of a container, which has 64 MiB by default."""
    status = SimpleNamespace(f_frsize=4096, f_blocks=total // 4096)
    monkeypatch.setattr("ampwatch.wire.ring.writer.os.statvfs", lambda _: status)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(total=total, free=free))


@pytest.mark.parametrize(
    ("free", "why"),
    [
        (0, "0.0 KiB free of 64.0 KiB; a ring takes 20.0 KiB, so there is room for 0, and"),
        (2**15, "32.0 KiB free of 64.0 KiB; a ring takes 20.0 KiB, so there is room for 1, and"),
    ],
)
def test_a_place_without_room_is_a_problem(
    free: int, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the ranks of a machine; it blocks where not even one has room."""
    small(monkeypatch, 2**16, free)

    (check,) = rings(Settings.resolve({"ring_dir": tmp_path}))

    assert (check.state, check.blocks) == (State.PROBLEM, not free)
    assert f"{tmp_path}: {why} each rank has one" == check.why


def test_a_place_that_has_no_limit_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a tmpfs says that it has 0 bytes, of which 0 are free."""
    small(monkeypatch, 0, 0)

    assert _place("shared memory", tmp_path, slots=8192) == Check(
        "shared memory", State.OK, f"{tmp_path}: without a limit; a ring takes 2.0 MiB"
    )


@pytest.mark.parametrize(
    ("where", "given", "state", "said"),
    [
        ("runs", {}, State.OK, " is made for the first one; "),
        ("", {}, State.OK, " takes them; "),
        ("file", {}, State.PROBLEM, "/file cannot be used: Not a directory"),
        ("file/runs", {}, State.PROBLEM, "Not a directory"),
        ("link", {"run": "gpt"}, State.PROBLEM, "it is not a directory (l"),
        ("", {"report_files": 0}, State.ABSENT, "report_files is 0"),
    ],
)
def test_the_directory_of_reports_is_checked(
    where: str, given: dict[str, Any], state: State, said: str, tmp_path: Path
) -> None:
    """By what a run does with it, which makes a directory of its own in it; nothing is created."""
    (tmp_path / "file").write_text("")
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "gpt").symlink_to(tmp_path)
    before = sorted(tmp_path.rglob("*"))

    (check,) = reports(Settings.resolve({"report_dir": tmp_path / where, **given}))

    assert (check.state, check.blocks) == (state, False)
    assert said in check.why
    assert bool(check.remedy) is (state is State.PROBLEM)
    assert sorted(tmp_path.rglob("*")) == before


def test_reports_want_room_and_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk takes none; and without a home directory one has to be named."""
    small(monkeypatch, 2**30, 2**15)
    (full,) = reports(Settings.resolve({"report_dir": tmp_path}))
    monkeypatch.setenv("XDG_STATE_HOME", "")
    monkeypatch.setattr(Path, "home", lambda: Path("~nobody-at-all").expanduser())
    (homeless,) = reports(Settings.resolve())

    assert (full.state, homeless.state) == (State.PROBLEM, State.PROBLEM)
    assert full.why == f"{tmp_path}: 32.0 KiB free, and a report takes up to 1.0 MiB"
    assert "set AMPWATCH_REPORT_DIR" in homeless.why


@pytest.mark.usefixtures("usual_places", "no_temporary_directory")
def test_a_machine_without_a_temporary_directory_has_shared_memory(tmp_path: Path) -> None:
    """With a read-only root one place is enough."""
    (memory,) = rings(Settings.resolve(), tmp_path / "shm")

    assert memory.state is State.OK


@pytest.mark.parametrize(
    "kind", ["new", "private", "open", "file", "link", "below a file", "dangling"]
)
def test_the_rules_are_those_of_the_writer(tmp_path: Path, kind: str) -> None:
    """Places that the doctor calls usable the writer can use, and the other way round."""
    path = tmp_path / "place"
    if kind == "private":
        path.mkdir(mode=0o700)
    elif kind == "open":
        path.mkdir()
        path.chmod(0o1777)
    elif kind == "file":
        path.write_text("")
    elif kind == "link":
        (tmp_path / "real").mkdir()
        path.symlink_to(tmp_path / "real")
    elif kind == "below a file":
        path.write_text("")
        path = path / "rings"
    elif kind == "dangling":
        path.symlink_to(tmp_path / "nowhere")

    trouble = trouble_with(path)

    if trouble:
        with pytest.raises(RingError):
            private_directory(path)
    else:
        assert private_directory(path) == path


def test_a_directory_that_is_not_writable_is_a_trouble() -> None:
    """With the uid and the directory. Asked in a child that is not root: root may write anywhere."""
    user = NOBODY if os.geteuid() == 0 else os.geteuid()
    answer, ask = os.pipe()
    child = os.fork()
    if child == 0:
        if os.geteuid() == 0:
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        os.write(ask, trouble_with(Path("/no-such-directory/rings")).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(ask)
    with os.fdopen(answer) as said:
        assert said.read() == f"uid {user} may not write to /"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_somebody_else_is_a_trouble(tmp_path: Path) -> None:
    """They could replace the files in it."""
    os.chown(tmp_path, 12345, -1)

    assert "belongs to uid 12345" in trouble_with(tmp_path)


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
