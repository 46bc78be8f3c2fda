"""``ampwatch report --check``: limits on the numbers that loggers have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ampwatch.cli import main
from ampwatch.report.gate import gate, parse
from ampwatch.wire.blackbox import Box, files
from ampwatch.wire.blackbox.document import to_json
from ampwatch.wire.records import RunState
from ampwatch.wire.ring import RingWriter
from tests.workshop.boxes import box
from tests.workshop.records import IDENTITY, alarm, end, identity, optimizer, step

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("skips<50%, scale>=128, critical<=3", "run gpt: all checks hold"),  # 4 of 10; 2**7
        ("amp/skipped_share = 4e-1", "ok      amp/skipped_share = 4e-1  0.4"),
        ("skips < 40 %, scale>0", "failed  skips < 40 %  40 %"),
        ("scale>128", "run gpt: 1 of 1 check failed\n  failed  scale>128  128"),
        ("findings=0", "failed  findings=0  2"),
        ("nonfinite==0", "ok      nonfinite==0  0"),
        ("amp/memory_bytes<1e9", "failed  amp/memory_bytes<1e9  not known"),
        ("amp/loss!=1", "failed  amp/loss!=1  NaN"),
    ],
)
def test_a_check_holds_or_says_the_number(expression: str, said: str) -> None:
    """By short names and by loggers' keys; a number that is NaN or not known keeps to no limit."""
    holds, text = gate(parse(expression), [box()])

    assert said in text
    assert holds is ("failed" not in said)


def test_a_check_holds_on_each_rank_or_names_the_first_on_which_it_does_not() -> None:
    ranks = [Box(identity(rank=rank), steps=[step(loss_scale=2.0**-rank)]) for rank in range(4)]

    assert gate(parse("scale>0.1"), ranks) == (True, "run gpt: all checks hold\n  ok      scale>0.1  1\n")  # fmt: skip
    assert "scale>=1  0.5 on rank 1 and 2 other ranks\n" in gate(parse("scale>=1"), ranks)[1]


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("", "expected checks as skips<1%, separated by commas, got ''; write a name, one of < <="),
        ("skips<1%,", "got ''"),
        ("skips", "got 'skips'"),
        ("skips!1", "got 'skips!1'"),
        ("scal>1", "expected one of skips, scale, findings, critical, nonfinite or a key of a logger, got 'scal'; did you mean 'scale'?"),
        ("amp/los_scale>1", "did you mean 'amp/loss_scale'?"),
    ],
)  # fmt: skip
def test_an_expression_that_is_none_ends_with_2(
    expression: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever there is to report: a gate that is misspelt must not look like a run that is bad."""
    with pytest.raises(SystemExit) as ended:
        main(["report", "--check", expression])

    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_report_is_let_through_or_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit status says it; what went wrong is there to be read."""
    path = tmp_path / "gpt.json"
    path.write_text(to_json([box()]))

    assert main(["report", str(path), "--check", "skips<=40%"]) == 0
    assert capsys.readouterr().out == "run gpt: all checks hold\n  ok      skips<=40%  40 %\n"
    assert main(["report", str(path), "--check", "critical=0"]) == 1
    assert "\n\ngpt: fail" in capsys.readouterr().out
    (tmp_path / "well.json").write_text(to_json([Box(identity(run="well"), steps=[step(8)])]))
    assert main(["report", f"{tmp_path}/", "--all", "--check", "critical=0"]) == 1
    said = capsys.readouterr().out
    assert "run gpt: 1 of 1 check failed" in said
    assert "run well: all checks hold" in said
    path.unlink()
    assert main(["report", str(path), "--check", "critical=0"]) == 1, "no report, no way through"


def test_a_page_is_not_left_out_without_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["report", "--check", "skips<1%", "--html", "gpt.html"])

    assert ended.value.code == 2
    assert "expected --check without --html" in capsys.readouterr().err


def test_a_run_that_ended_well_is_read_from_its_ring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a daemon it leaves no report; one of a run of that name before it is not the newest."""
    monkeypatch.setenv("AMPWATCH_REPORT_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("AMPWATCH_RING_DIR", str(tmp_path / "rings"))
    before = Box(identity(started_ns=1, pid=1), RunState.FAILED, findings=[alarm()])
    files.write(tmp_path / "runs", before, most=64)
    writer = RingWriter.create([tmp_path / "rings"], IDENTITY, slots=64)
    writer.put(step(8))
    writer.put(optimizer(total_steps=100, total_skipped=(1, 0, 0, 0)))
    writer.close(end(), keep=True)

    assert main(["report", "gpt"]) == 0
    assert "FINISHED" in capsys.readouterr().out
    assert main(["report", "gpt", "--check", "skips<=1%, findings=0"]) == 0
    assert main(["report", "--check", "skips<1%"]) == 1
