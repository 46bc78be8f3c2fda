"""``ampwatch diff``: text, JSON, exit status, and what it refuses."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from ampwatch.cli import main
from ampwatch.lab.tape.rows import RowKind
from tests.workshop.tapes import HEAD, row, step, write_tape

if TYPE_CHECKING:
    from pathlib import Path


def test_two_runs_that_are_the_same_end_with_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The verdict says so."""
    a, b = (write_tape(tmp_path / f"{name}.tape", [step(0), step(1)]) for name in "ab")

    assert main(["diff", str(a), str(b)]) == 0
    assert "the same: no sum of any tensor differs" in capsys.readouterr().out


@pytest.mark.each_commit
def test_two_runs_that_part_end_with_3_and_name_the_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An op that makes another number of the same inputs, in step 1."""
    a = write_tape(tmp_path / "a.tape", [step(0), step(1)])
    b = write_tape(tmp_path / "b.tape", [step(0), step(1, 1.01)])

    assert main(["diff", str(a), str(b)]) == 3
    assert "op addmm in first, forward of step 1" in capsys.readouterr().out

    assert main(["diff", str(a), str(b), "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    first = document["departures"][0]
    assert document["verdict"] == "differ"
    assert (first["step"], first["module"], first["name"]) == (1, "first", "addmm")
    assert first["distance"] == pytest.approx(0.01 / 1.01)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (
            [replace(step(0), rows=[row(RowKind.WEIGHT, "first.weight", shape=[4, 8])])],
            "two runs of one model",
        ),
        ([replace(step(0), rows=[row(RowKind.WEIGHT, "other.weight")])], "two runs of one model"),
        ([], "with a recorded step"),
    ],
    ids=["shape", "names", "empty"],
)
def test_what_cannot_be_compared_is_a_sentence(
    other: list[object], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Expected, given, and what to do; exit status 1."""
    a = write_tape(tmp_path / "a.tape", [step(0)])
    b = write_tape(tmp_path / "b.tape", other)  # type: ignore[arg-type]

    assert main(["diff", str(a), str(b)]) == 1
    said = capsys.readouterr().err
    assert said.startswith("ampwatch: expected")
    assert words in said


def test_ranks_of_other_numbers_are_compared_by_gradients_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One process against eight: outputs are of other batches, which is said and is no difference."""
    a = write_tape(tmp_path / "a.tape", [step(0)])
    b = write_tape(tmp_path / "b.tape", [step(0, 2.0)], replace(HEAD, world_size=8))

    assert main(["diff", str(a), str(b)]) == 0
    assert "A has 1 ranks and B 8" in " ".join(capsys.readouterr().out.split())
