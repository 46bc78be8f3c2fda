"""Finding rings among whatever lies in the ring directories."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ampwatch import runtime
from ampwatch.errors import DaemonError
from ampwatch.host.daemon import discovery
from ampwatch.host.daemon.discovery import (
    REFRESH_SECONDS,
    MachineDirectories,
    check_may_tidy_all,
    find_rings,
)
from ampwatch.host.daemon.watcher import RingWatcher
from ampwatch.host.fleet import Fleet
from ampwatch.settings import Settings
from ampwatch.wire.ring import RingWriter
from tests.workshop.clocks import Clock
from tests.workshop.records import end, identity, step

OTHER_UID = 54321
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def test_rings_are_found_and_everything_else_is_passed_over(tmp_path: Path) -> None:
    """Only files with the suffix, in every directory that exists."""
    for name in ("a.ring", "b.ring.part", "notes.txt"):
        (tmp_path / name).touch()

    found = find_rings([tmp_path, tmp_path / "absent"], any_user=False)

    assert list(found.rings) == [tmp_path / "a.ring"]
    assert found.problems == {}


def test_a_replaced_file_has_another_signature(tmp_path: Path) -> None:
    """A new file under an old name is noticed."""
    ring = tmp_path / "a.ring"
    ring.touch()
    before = find_rings([tmp_path], any_user=False).rings[ring]
    (tmp_path / "new").touch()
    (tmp_path / "new").rename(ring)

    after = find_rings([tmp_path], any_user=False).rings[ring]

    assert after.inode != before.inode


def test_links_and_pipes_are_problems_and_not_rings(tmp_path: Path) -> None:
    """A link could lead anywhere, a pipe would never answer."""
    (tmp_path / "link.ring").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "pipe.ring")

    found = find_rings([tmp_path], any_user=False)

    assert found.rings == {}
    assert {path.name for path in found.problems} == {"link.ring", "pipe.ring"}


def test_a_directory_that_is_a_link_is_not_entered(tmp_path: Path) -> None:
    """Another user could point /dev/shm/ampwatch-0 elsewhere."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.ring").touch()
    (tmp_path / "link").symlink_to("real")

    found = find_rings([tmp_path / "link"], any_user=True)

    assert found.rings == {}
    assert "not a directory" in found.problems[tmp_path / "link"]


def test_a_directory_that_is_replaced_while_it_is_listed_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner could turn it into a link to somebody else's rings at any moment."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "a.ring").touch()
    real = os.open

    def swap_and_open(path: Path, flags: int) -> int:
        (tmp_path / "mine").rmdir()
        (tmp_path / "mine").symlink_to("theirs")
        return real(path, flags)

    monkeypatch.setattr(os, "open", swap_and_open)

    assert find_rings([tmp_path / "mine"], any_user=True).rings == {}


@needs_root
def test_a_directory_of_another_user_is_for_the_machine_wide_daemon_only(tmp_path: Path) -> None:
    """A user's daemon believes that user alone."""
    (tmp_path / "a.ring").touch()
    for path in (tmp_path / "a.ring", tmp_path):
        os.chown(path, OTHER_UID, OTHER_UID)

    assert find_rings([tmp_path], any_user=False).rings == {}
    assert list(find_rings([tmp_path], any_user=True).rings) == [tmp_path / "a.ring"]


@needs_root
def test_a_file_of_another_user_than_its_directory_is_not_taken(tmp_path: Path) -> None:
    """Nobody slips a ring under another user's name."""
    (tmp_path / "a.ring").touch()
    os.chown(tmp_path / "a.ring", OTHER_UID, OTHER_UID)

    found = find_rings([tmp_path], any_user=True)

    assert found.rings == {}
    assert f"uid {OTHER_UID}" in found.problems[tmp_path / "a.ring"]


def test_no_more_rings_than_bearable_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Touching files does not exhaust the daemon's descriptors; the newest, oldest first."""
    monkeypatch.setattr(discovery, "MAX_RINGS", 2)
    for name, age in {"a": 0, "b": 20, "c": 10}.items():
        (tmp_path / f"{name}.ring").touch()
        os.utime(tmp_path / f"{name}.ring", (1000 - age, 1000 - age))

    found = find_rings([tmp_path], any_user=False)

    assert [path.name for path in found.rings] == ["c.ring", "a.ring"]
    assert "there are 3 rings, more than 2" in found.problems[tmp_path]


def test_the_directories_of_all_users_are_listed_anew_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who comes later is found, without a glob at each poll."""
    shared = tmp_path / "shm"
    shared.mkdir()
    monkeypatch.setattr("ampwatch.runtime.SHARED_MEMORY", shared)
    monkeypatch.setattr(discovery.runtime, "ring_directories", lambda *_: [])
    clock = Clock()
    places = MachineDirectories(str(tmp_path / "runtime"), clock)
    places()
    own = shared / f"ampwatch-{os.geteuid()}"
    own.mkdir()

    assert own not in places()
    clock.now += REFRESH_SECONDS
    assert own in places()


@pytest.mark.parametrize(
    ("capabilities", "will_do"),
    [
        ("0000000000000000", False),
        ("0000000000000004", False),
        ("000001ffffffffff", True),
        ("0000000000000002", True),
    ],
)
def test_a_process_without_the_right_is_refused(
    tmp_path: Path, capabilities: str, *, will_do: bool
) -> None:
    """--machine is refused where reading alone leaves every ring; CAP_DAC_OVERRIDE is enough."""
    status = tmp_path / "status"
    status.write_text(f"Name:\tpython\nCapEff:\t{capabilities}\n")

    with nullcontext() if will_do else pytest.raises(DaemonError, match="CAP_DAC_OVERRIDE"):
        check_may_tidy_all(status)


def test_of_a_directory_that_somebody_has_filled_a_part_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million names would take seconds, twice a second."""
    monkeypatch.setattr(discovery, "MAX_ENTRIES", 4)
    filled = tmp_path / "filled"
    filled.mkdir()
    for number in range(9):
        (filled / f"{number}.ring").touch()

    assert len(find_rings([filled], any_user=False).rings) == 4


@pytest.mark.parametrize("name", ["ampwatch-x{}", "ampwatch-7{}"])
def test_files_of_a_stranger_in_shared_memory_delay_nobodys_news(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A pass reads a part of them; known runs are read in each pass, one behind them is found later."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(discovery, "MAX_ENTRIES", most := 512)
    monkeypatch.setattr(runtime, "SHARED_MEMORY", tmp_path / "shm")
    monkeypatch.setattr(runtime, "SESSIONS", tmp_path / "none")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    of_user = f"ampwatch-{os.geteuid()}"
    scandir, lstat, did = os.scandir, Path.lstat, Counter[str]()

    def listed(place: Path | int) -> Any:
        return nullcontext(strangers()) if place == tmp_path / "shm" else scandir(place)

    def strangers() -> Iterator[Any]:
        for number in range(5000):
            did["entries"] += 1
            yield SimpleNamespace(name=name.format(number), is_dir=lambda **_: True)

    def counted(path: Path) -> os.stat_result:
        did["lstats"] += 1
        return lstat(path)

    monkeypatch.setattr(os, "scandir", listed)
    monkeypatch.setattr(Path, "lstat", counted)
    clock = Clock()
    places = MachineDirectories(str(tmp_path / "runtime"), clock)
    fleet = Fleet(Settings(), clock)
    watcher = RingWatcher(fleet, places, grace_seconds=600.0, any_user=True, clock=clock)

    def newest() -> dict[str, int]:
        return {rank.run: rank.newest.step for rank in fleet.ranks() if rank.newest}

    with ExitStack() as undo:
        undo.callback(watcher.close)
        writers = []
        for place in ("shm", "tmp"):
            writer = RingWriter.create([tmp_path / place / of_user], identity(run=place), slots=64)
            undo.callback(writer.close, end(), keep=False)
            writers.append(writer)
        seen, counts = [], []
        for number in range(1 + 5000 // most):
            for writer in writers:
                writer.put(step(number))
            did.clear()
            watcher.poll()
            counts.append(max(did.values()))
            seen.append(newest())
        clock.now += REFRESH_SECONDS
        writers[1].put(step(99))
        watcher.poll()
        again = newest()

    assert max(counts) <= most + 10, "a few of its own"
    assert [runs["shm"] for runs in seen] == list(range(len(seen)))
    assert ["tmp" in runs for runs in seen] == [False] * (len(seen) - 1) + [True]
    assert again["tmp"] == 99
