"""Tapes as files: what was written is read, and nothing else raises anything else."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from msgspec.structs import replace

from ampwatch.errors import DiffError
from ampwatch.lab.tape.files import find_tapes, read_tape
from ampwatch.lab.tape.rows import RowKind
from tests.workshop.tapes import HEAD, row, step, write_tape


@pytest.mark.each_commit
def test_what_is_written_is_read(tmp_path: Path) -> None:
    """Head, steps and outcomes come back equal, and the file is its owner's."""
    path = write_tape(tmp_path / "a.tape", [step(0), step(5, 2.0)])

    tape = read_tape(path)

    assert tape.head == HEAD
    assert tape.steps == {0: step(0), 5: step(5, 2.0)}
    assert tape.outcomes[5].loss == 1.0
    assert not tape.is_cut
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_tape_that_ends_within_a_record_is_read_up_to_there(tmp_path: Path) -> None:
    """Wherever a run was killed, whole steps are there, and it is known that more was coming."""
    path = write_tape(tmp_path / "a.tape", [step(0), step(1)])
    data = path.read_bytes()
    path.write_bytes(data[:-200])

    tape = read_tape(path)

    assert list(tape.steps) == [0]
    assert tape.is_cut


@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_tape_is_read_or_refused_with_a_sentence(seed: int, tmp_path: Path) -> None:
    """Whatever bytes are changed, nothing but ``DiffError`` is raised."""
    drawn = random.Random(seed)
    path = write_tape(tmp_path / "a.tape", [step(0), step(1)])
    data = bytearray(path.read_bytes())
    for _ in range(drawn.randint(1, 8)):
        data[drawn.randrange(len(data))] = drawn.randrange(256)
    path.write_bytes(bytes(data[: drawn.randrange(len(data) // 2, len(data))]))

    try:
        tape = read_tape(path)
    except DiffError:
        return
    assert all(known in (step(0), step(1)) for known in tape.steps.values())


@pytest.mark.parametrize(
    "fields",
    [
        {"sources": [3]},
        {"sources": [-1]},
        {"sketch": b"short"},
        {"norm": float("nan")},
        {"scale": 0.0},
        {"kind": 99},
        {"shape": [-1]},
    ],
    ids=str,
)
def test_a_row_that_cannot_be_is_refused(fields: dict[str, object], tmp_path: Path) -> None:
    """A record may be whole and make no sense: it is refused before anything is computed of it."""
    bad = replace(step(0), rows=[replace(row(RowKind.OP, "mm"), **fields)])

    with pytest.raises(DiffError, match="step 0 is damaged"):
        read_tape(write_tape(tmp_path / "a.tape", [bad]))


def test_a_tape_of_another_layout_is_refused_with_its_version(tmp_path: Path) -> None:
    """The message says which layout it is, who wrote it, and what to do."""
    head = replace(HEAD, version=0, ampwatch="0.0.9")

    with pytest.raises(DiffError, match=r"layout 0, written by ampwatch 0\.0\.9; record it again"):
        read_tape(write_tape(tmp_path / "a.tape", [step(0)], head))


def test_another_file_is_refused(tmp_path: Path) -> None:
    """A pickle or a JSON file is told from a tape by its first bytes, and not opened further."""
    (tmp_path / "a.pt").write_bytes(b"\x80\x04cos\nsystem\n.")

    with pytest.raises(DiffError, match="another kind of file"):
        read_tape(tmp_path / "a.pt")


def test_a_directory_without_a_tape_says_how_to_record_one(tmp_path: Path) -> None:
    """A run without a recording has left nothing: the setting is named."""
    with pytest.raises(DiffError, match="record_dir"):
        find_tapes(tmp_path)


def test_of_a_directory_the_ranks_of_the_newest_run_are_taken(tmp_path: Path) -> None:
    """A run before it, with a tape of a rank that the newest has not left, is not mixed in."""
    for name, began, ranks in (("old", 1, (0, 1, 2)), ("new", 100, (2, 1)), ("alone", 50, (0,))):
        for rank in ranks:
            size = 1 if name == "alone" else 3
            head = replace(HEAD, rank=rank, world_size=size, started_ns=began + 5 * rank)
            write_tape(tmp_path / f"{name}-rank{rank}.tape", [step(0)], head)
    (tmp_path / "killed-rank0.tape").write_bytes(b"ampwatch tape\n")

    found = find_tapes(tmp_path)

    assert {rank: path.name for rank, path in found.items()} == {
        1: "new-rank1.tape",
        2: "new-rank2.tape",
    }
