"""Results of the doctor about the places of rings."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from ampwatch.doctor.check import State
from ampwatch.doctor.places import _place, rings, trouble_with
from ampwatch.errors import RingError
from ampwatch.runtime import private_directory
from ampwatch.settings import Settings

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


@pytest.mark.usefixtures("usual_places")
def test_no_place_at_all_blocks(tmp_path: Path) -> None:
    """No ring, no page: that is the main job."""
    (tmp_path / "file").write_text("")
    settings = Settings.resolve({"runtime_dir": tmp_path / "file"})

    checks = rings(settings, tmp_path / "file")

    assert [check.blocks for check in checks] == [True, True]
    assert "AMPWATCH_RING_DIR" in checks[0].remedy


def test_a_ring_directory_that_is_set_is_the_only_place(tmp_path: Path) -> None:
    """The places are those of the training process."""
    (check,) = rings(Settings.resolve({"ring_dir": tmp_path}))

    assert (check.name, check.state) == ("AMPWATCH_RING_DIR", State.OK)


def test_a_place_without_room_is_a_problem(tmp_path: Path) -> None:
    """A small file system, such as /dev/shm of a container, which has 64 MiB by default."""
    check = _place("shared memory", tmp_path, slots=2**52)

    assert check.state is State.PROBLEM
    assert "a ring takes 1,099,511,627,776.0 MiB" in check.why


@pytest.mark.usefixtures("usual_places", "no_temporary_directory")
def test_a_machine_without_a_temporary_directory_has_shared_memory(tmp_path: Path) -> None:
    """With a read-only root one place is enough."""
    (memory,) = rings(Settings.resolve(), tmp_path / "shm")

    assert memory.state is State.OK


def test_a_ring_on_a_small_file_system_is_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The size is the one the writer makes: a 64th of the shared memory of a container."""
    status = SimpleNamespace(f_frsize=4096, f_blocks=16384)
    monkeypatch.setattr("ampwatch.wire.ring.writer.os.statvfs", lambda _: status)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(total=2**26, free=2**26))

    check = _place("shared memory", tmp_path, slots=8192)

    assert check.why.endswith("64.0 MiB free of 64.0 MiB; a ring takes 1.0 MiB")


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
