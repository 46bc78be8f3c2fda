"""``ampwatch ops``: the table of ops of a training on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ampwatch.cli import main
from ampwatch.wire.ring import RingWriter
from tests.workshop.clocks import SECOND, START
from tests.workshop.records import census, end, identity, op_row, step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ampwatch.wire.records import Record

    Train = Callable[..., None]


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Train]:
    """Writes the rings of trainings, in a directory of their own."""
    monkeypatch.setenv("AMPWATCH_RING_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "120")
    writers: list[RingWriter] = []

    def one(*records: Record, run: str = "gpt", rank: int = 0, started: int = START) -> None:
        who = identity(run=run, rank=rank, started_ns=started * SECOND)
        writers.append(RingWriter.create([tmp_path], who, slots=64))
        for record in records:
            writers[-1].put(record)

    yield one
    for writer in writers:
        writer.close(end(), keep=False)


def of(op: str) -> Record:
    """A census in which ``op`` ran."""
    return census(op_row(op), op_row("", module=f"{op}.module"))


def test_the_newest_census_of_the_newest_training_is_shown(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of its first rank, by op, when nothing else is asked for."""
    train(of("old"), run="before", started=START - 9)
    train(of("second"), rank=1)
    train(of("earlier"), step(1), of("newest"), step(2))

    assert main(["ops"]) == 0

    told = capsys.readouterr().out
    assert told.startswith("Run gpt, rank 0\n")
    assert "newest" in told
    assert "earlier" not in told
    assert ".module" not in told


def test_run_rank_and_grouping_can_be_chosen(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each by its option."""
    train(of("old"), run="before", started=START - 9)
    train(of("first"))
    train(of("second"), rank=1)

    assert main(["ops", "--run", "before"]) == 0
    assert "old" in capsys.readouterr().out
    assert main(["ops", "--rank", "1", "--by", "module"]) == 0
    assert "second.module" in capsys.readouterr().out


def test_a_training_that_is_not_here_is_an_error_that_names_those_that_are(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    """On stderr, with what was asked for."""
    train(of("mm"))

    assert main(["ops", "--run", "bert", "--rank", "3"]) == 1

    said = capsys.readouterr().err
    assert (
        "expected a training with run bert and rank 3 on this machine, found gpt (rank 0)" in said
    )


def test_before_the_first_census_it_says_when_ops_are_counted(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    """No empty table."""
    train(step(0))

    assert main(["ops"]) == 1
    assert "run gpt, rank 0: No op was counted yet" in capsys.readouterr().err


def test_without_any_training_it_says_where_it_looked(
    tmp_path: Path, train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that is no ring is passed over."""
    (tmp_path / "broken.ring").write_bytes(b"nonsense")

    assert main(["ops"]) == 1
    assert f"expected a training of this user on this machine, found none in {tmp_path}" in (
        capsys.readouterr().err
    )
