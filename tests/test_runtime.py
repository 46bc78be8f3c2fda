"""Tests of the places on a machine: which, in which order, and private to one user."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest

from ampwatch import runtime
from ampwatch.errors import RingError
from ampwatch.host.daemon.discovery import MachineDirectories
from ampwatch.runtime import (
    private_directory,
    ring_directories,
    runtime_directory,
)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a service manager and a session, whose places are the test's own."""
    for variable in ("RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(variable, raising=False)
    for name in ("shm", "tmp"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(runtime, "SHARED_MEMORY", tmp_path / "shm")
    monkeypatch.setattr(runtime, "SESSIONS", tmp_path / "run")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path


def mode(path: Path) -> int:
    """Return the permission bits."""
    return stat.S_IMODE(path.stat().st_mode)


def test_a_private_directory_is_made_with_its_parents(tmp_path: Path) -> None:
    """Nobody else may list, read or write it, whatever the umask."""
    before = os.umask(0)
    try:
        made = private_directory(tmp_path / "a" / "b")
    finally:
        os.umask(before)

    assert made == tmp_path / "a" / "b"
    assert mode(made) == mode(made.parent) == 0o700


@pytest.mark.parametrize("bits", [0o1777, 0o755, 0o710])
def test_a_directory_that_others_can_enter_is_refused_and_left_as_it_is(
    tmp_path: Path, bits: int
) -> None:
    """It may be /dev/shm itself, which everybody on the machine needs as it is."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(bits)

    with pytest.raises(
        RingError, match=r"other users can enter .*: its mode is d.*, not 0700; name"
    ):
        private_directory(tmp_path / "open")
    assert mode(tmp_path / "open") == bits
    assert mode(private_directory(tmp_path / "open" / "own")) == 0o700


def test_a_directory_that_is_private_already_is_left_alone(tmp_path: Path) -> None:
    """Contents of the directory stay."""
    private_directory(tmp_path / "own").joinpath("file").write_text("kept")

    assert private_directory(tmp_path / "own").joinpath("file").read_text() == "kept"


def test_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    """Another user could turn it around after it was checked."""
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")

    with pytest.raises(
        RingError, match=r"is not a directory of uid .*: it has mode l.*; remove it or"
    ):
        private_directory(tmp_path / "link")


def test_a_directory_of_somebody_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner could replace the files in it."""
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)

    with pytest.raises(RingError, match=f"directory of uid {other}: .* to uid {other - 1};"):
        private_directory(tmp_path)


def test_a_file_in_the_way_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    """Expected, given, remedy."""
    (tmp_path / "file").write_text("")

    with pytest.raises(RingError, match=r"cannot be created \(.*\); set AMPWATCH_RUNTIME_DIR to"):
        private_directory(tmp_path / "file" / "below")


def test_the_runtime_directory_is_searched_for_in_order(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Temporary directory, session, service manager, setting: each beats those before it."""
    session, service = machine / "session", machine / "service"
    session.mkdir()
    own = f"ampwatch-{os.geteuid()}"

    assert runtime_directory() == machine / "tmp" / own
    assert mode(runtime_directory()) == 0o700
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(session))
    assert runtime_directory() == session / "ampwatch"
    monkeypatch.setenv("RUNTIME_DIRECTORY", f"{service}:/run/second")
    assert runtime_directory() == service
    assert runtime_directory(str(machine / "set")) == machine / "set"


def test_a_session_directory_that_is_gone_is_passed_over(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``su`` and ``sudo`` leave the variable of a session that one may not write to."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(machine / "gone"))

    assert runtime_directory().parent == machine / "tmp"


def test_rings_are_in_shared_memory_first(machine: Path) -> None:
    """The runtime directory is used where that does not work; neither is created by asking."""
    directories = ring_directories()

    own = f"ampwatch-{os.geteuid()}"
    assert directories == [machine / "shm" / own, machine / "tmp" / own]
    assert not any(directory.exists() for directory in directories)


@pytest.mark.usefixtures("no_temporary_directory")
def test_a_machine_without_a_temporary_directory_has_shared_memory(machine: Path) -> None:
    """With a read-only root rings work, and what needs the other place says so."""
    own = machine / "shm" / f"ampwatch-{os.geteuid()}"
    own.mkdir(mode=0o700)

    assert ring_directories() == [own]
    assert own in MachineDirectories("")()
    with pytest.raises(RingError, match=r"\(No usable.*\); set AMPWATCH_RUNTIME_DIR"):
        runtime_directory()


def test_a_ring_directory_that_is_set_is_the_only_one(machine: Path) -> None:
    """Whoever sets it means it."""
    assert ring_directories(str(machine / "rings")) == [machine / "rings"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_daemon_for_all_users_looks_into_the_places_of_each(machine: Path) -> None:
    """Shared memory, session and temporary directory of every user, and its own at the end."""
    for place, uid in {
        "shm/ampwatch-7": 7,
        "shm/ampwatch-8": 8,
        "run/7/ampwatch": 7,
        "tmp/ampwatch-7": 7,
        "shm/other": 7,
    }.items():
        (machine / place).mkdir(parents=True)
        os.chown(machine / place, uid, uid)

    found = MachineDirectories(str(machine / "daemon"))()

    assert found == [
        machine / "run" / "7" / "ampwatch",
        machine / "shm" / "ampwatch-7",
        machine / "shm" / "ampwatch-8",
        machine / "tmp" / "ampwatch-7",
        machine / "shm" / "ampwatch-0",
        machine / "daemon",
    ]


def test_a_daemon_for_all_users_follows_no_links_and_believes_no_names(machine: Path) -> None:
    """Anybody can make /tmp/ampwatch-0, and have it lead anywhere."""
    uid = os.geteuid()
    (machine / "elsewhere").mkdir()
    (machine / "tmp" / f"ampwatch-{uid}").symlink_to(machine / "elsewhere")
    (machine / "shm" / f"ampwatch-{uid + 1}").mkdir()
    (machine / "shm" / "ampwatch-x").mkdir()
    (machine / "shm" / f"ampwatch-{uid}").mkdir()

    found = MachineDirectories(str(machine / "daemon"))()

    assert found == [machine / "shm" / f"ampwatch-{uid}", machine / "daemon"]
