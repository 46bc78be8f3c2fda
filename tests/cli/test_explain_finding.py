"""`ampwatch explain` of a finding that was made."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ampwatch.cli import main
from ampwatch.wire.blackbox import Box, files
from ampwatch.wire.records import RunState
from tests.workshop.boxes import box
from tests.workshop.clocks import SECOND, START
from tests.workshop.records import alarm, identity

if TYPE_CHECKING:
    from pathlib import Path

Said = pytest.CaptureFixture[str]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of reports: run gpt of everything, and run old with an overflow of its own."""
    directory = tmp_path / "runs"
    monkeypatch.setenv("AMPWATCH_REPORT_DIR", str(directory))
    monkeypatch.setenv("COLUMNS", "80")
    old = identity(run="old", started_ns=(START - 9000) * SECOND, world_size=1)
    found = alarm("forward_overflow", "head", summary="head \x1b[31moverflowed")
    files.write(directory, Box(old, RunState.FAILED, "it broke", findings=[found]), most=4)
    files.write(directory, box(), most=4)
    return directory


def test_a_kind_of_a_run_is_its_own_words_then_the_page(runs: Path, capsys: Said) -> None:
    """Sentence, place, evidence, advice; then what the kind means."""
    assert main(["explain", "scale_collapse", "--run", "gpt"]) == 0

    said = capsys.readouterr().out
    own, _, page = said.partition("\n# `scale_collapse`: ")
    assert own.startswith("Run gpt, rank 0 of 2: scale_collapse@optimizer:0\n")
    assert "scale_collapse happened." in own
    assert "What to change: change scale_collapse." in own
    assert "loss scale                       3.051758e-05 (2^-15)" in own
    assert "Explained by: forward_overflow in module decoder.3.ffn" in own
    assert "GradScaler" in page


def test_without_a_kind_it_is_the_finding_at_the_root(runs: Path, capsys: Said) -> None:
    """Of the run that is named."""
    assert main(["explain", "--run", "gpt"]) == 0

    said = capsys.readouterr().out
    assert said.startswith("Run gpt, rank 0 of 2: forward_overflow@decoder.3.ffn\n")
    assert "It explains: scale_collapse in optimizer 0" in said
    assert "\n# `forward_overflow`: " in said


def test_a_key_alone_is_of_the_newest_run_that_has_it(runs: Path, capsys: Said) -> None:
    """A key is what reports and the page's state call a finding."""
    assert main(["explain", "forward_overflow@head"]) == 0
    assert capsys.readouterr().out.startswith("Run old: forward_overflow@head\n")
    assert main(["explain", "forward_overflow@decoder.3.ffn"]) == 0
    assert capsys.readouterr().out.startswith("Run gpt, rank 0 of 2: ")


def test_findings_of_several_kinds_have_each_page_once(runs: Path, capsys: Said) -> None:
    """In the order of the report."""
    assert main(["explain", "scale_collapse", "forward_overflow", "--run", "gpt"]) == 0

    said = capsys.readouterr().out
    assert said.count("\n# `scale_collapse`: ") == said.count("\n# `forward_overflow`: ") == 1
    assert said.index("Run gpt, rank 0 of 2: forward_overflow") < said.index(
        "Run gpt, rank 0 of 2: scale_collapse"
    )


def test_nothing_in_a_finding_reaches_the_terminal_as_a_control(runs: Path, capsys: Said) -> None:
    """Its words are another program's."""
    main(["explain", "--run", "old"])

    said = capsys.readouterr().out
    assert "[31moverflowed" in said
    assert "\x1b" not in said


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["scale_colapse", "--run", "gpt"], 2, "did you mean 'scale_collapse'?"),
        (["divergence", "--run", "gpt"], 2, "it has forward_overflow@decoder.3.ffn, scale"),
        (["x@y"], 2, "has no finding 'x@y'"),
        (["--run", "nobody"], 1, "no run or file 'nobody' in "),
    ],
)
def test_what_is_not_there_is_said(
    arguments: list[str], status: int, told: str, runs: Path, capsys: Said
) -> None:
    """With what is there."""
    assert main(["explain", *arguments]) == status

    said = capsys.readouterr()
    assert said.out == ""
    assert told in said.err


def test_a_run_without_a_finding_has_nothing_to_explain(runs: Path, capsys: Said) -> None:
    """It failed of something else."""
    files.write(runs, Box(identity(run="other"), RunState.FAILED, "out of memory"), most=4)

    assert main(["explain", "--run", "other"]) == 2
    assert "run other has no findings" in capsys.readouterr().err
