"""The file that the ranks of a machine share: what was read of it is not read again."""

from __future__ import annotations

import fcntl
import time
from threading import Event, Thread
from typing import TYPE_CHECKING

import pytest

from ampwatch.training import said as said_module
from ampwatch.training.said import Said, path_for
from tests.workshop.records import identity

if TYPE_CHECKING:
    from pathlib import Path


def test_only_what_is_new_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing is lost or doubled for that."""
    path = tmp_path / "ranks.said"
    ranks = [Said(path, rank) for rank in range(2)]
    parsed: list[int] = []
    original = said_module._parsed

    def counted(text: bytes) -> list[said_module._Line]:
        parsed.append(text.count(b"\n"))
        return original(text)

    monkeypatch.setattr(said_module, "_parsed", counted)
    for number in range(5):
        ranks[number % 2].found(f"{number}")
        assert ranks[0].finders(f"{number}") == [number % 2]
        assert ranks[0].present() == [0, 1]
    assert parsed == [3, 1, 1, 1, 1]
    assert ranks[1].finders_among(["0", "1", "other"]) == {"0": [0], "1": [1]}


def test_a_line_that_is_cut_short_is_read_when_it_is_whole(tmp_path: Path) -> None:
    """As after a write that was interrupted."""
    path = tmp_path / "ranks.said"
    rank = Said(path, 0)
    line = path.read_bytes().replace(b"here - 0", b"here - 1")
    with path.open("ab") as file:
        file.write(line[:-3])
        file.flush()
        assert rank.present() == [0]
        file.write(line[-3:])

    assert rank.present() == [0, 1]


def test_a_file_that_takes_the_place_of_another_is_read_from_its_beginning(tmp_path: Path) -> None:
    """As where somebody has removed the first one."""
    path = tmp_path / "ranks.said"
    rank = Said(path, 0)
    rank.found("one thing")
    assert rank.finders("one thing") == [0]
    path.rename(path.with_name("away"))
    rank.found("another")

    assert rank.finders("another") == [0]
    assert rank.finders("one thing") == []


class Patience:
    """Time that stands still for who waits for a lock: it waits for as long as it takes."""

    def __init__(self) -> None:
        self.is_waited = Event()

    def monotonic(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        self.is_waited.set()
        time.sleep(seconds)


def test_who_comes_while_a_file_is_being_removed_has_one_that_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job is started again: one rank removes what the last start has left while another comes."""
    who = identity(run="again", world_size=2)
    path = path_for(tmp_path, who, "log")
    path.write_text("here - 1 1-1\n")  # of a process that has ended
    read, comers, patience = said_module._read, list[Thread](), Patience()

    def as_another_comes(of: Path) -> list[said_module._Line]:
        lines = read(of)
        if not comers:
            comers.append(Thread(target=Said, args=(path, 0)))
            comers[0].start()
            # It writes now, or waits until the file is gone.
            while comers[0].is_alive() and not patience.is_waited.wait(0.01):
                pass
        return lines

    monkeypatch.setattr(said_module, "_read", as_another_comes)
    monkeypatch.setattr(said_module, "time", patience)
    said_module._remove_those_that_are_over(tmp_path)
    comers[0].join()

    assert Said(path, 1).present() == [0, 1]


def test_a_rank_that_is_stopped_as_it_comes_or_goes_is_not_waited_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then each speaks for itself."""
    monkeypatch.setattr(said_module, "LOCK_SECONDS", 0.0)
    path = tmp_path / "gpt.said"
    one = Said(path, 0)
    with path.open() as stopped:
        fcntl.flock(stopped, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="unavailable"):
            Said(path, 1)
        with pytest.raises(OSError, match="unavailable"):
            one.close()
    assert path.exists()
