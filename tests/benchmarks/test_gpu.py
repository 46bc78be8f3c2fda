"""The run that wants a GPU, where there is none: its frame with small programs, its steps in tiny."""

from __future__ import annotations

import json
import sys
import textwrap
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu.__main__ import main
from benchmarks.gpu.page import as_markdown
from benchmarks.gpu.steps import GREEN, RED, STEPS, Outcome, Step, run

GOOD = """
    import json, sys
    found = {"said": "all is well", "reds": [], "rows": [{"size": 1}]}
    open(sys.argv[1], "w").write(json.dumps(found))
"""


def outcome_of(
    code: str, out: Path, limit_s: float = 30.0, *, left_s: float = 100.0, **more: Any
) -> Outcome:
    """Run one step whose program is ``code``, told where its answer goes."""
    step = Step("made-up", "is it", limit_s, "none:none", **({"needs": ()} | more))
    (outcome,) = run(
        [step],
        "cuda",
        tiny=True,
        until=time.monotonic() + left_s,
        out=out,
        command=lambda *given: [sys.executable, "-c", textwrap.dedent(code), str(given[-1])],
    )
    return outcome


def test_a_step_that_finds_something_is_red_with_its_figures(tmp_path: Path) -> None:
    """And with what it has printed."""
    code = GOOD.replace('"reds": []', '"reds": ["float16: 1 of 3", "more"]') + "    print('hm')"

    outcome = outcome_of(code, tmp_path)

    assert (outcome.state, outcome.said) == (RED, "float16: 1 of 3")
    assert outcome.reds == ("float16: 1 of 3", "more")
    assert outcome.rows == ({"size": 1},)
    assert outcome.output == "hm\n"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import os; os.kill(os.getpid(), 11)", "died of SIGSEGV"),
        ("print('the reason'); raise SystemExit(3)", "ended with 3: the reason"),
        ("print('hello')", "gave no answer: hello"),
        ("import sys; open(sys.argv[1], 'w').write('{')", "gave no answer"),
        ("import os; os.abort()", "died of SIGABRT"),
    ],
)
def test_a_step_that_dies_is_red_and_says_how(code: str, said: str, tmp_path: Path) -> None:
    """A device that is lost takes its step along, and no other."""
    outcome = outcome_of(code, tmp_path)

    assert (outcome.state, outcome.said, outcome.reds) == (RED, said, (said,))


@pytest.mark.nightly
def test_a_step_that_hangs_is_ended_with_all_that_it_has_started(tmp_path: Path) -> None:
    """What it has started may hold the device."""
    code = f"""
        import subprocess, time
        child = subprocess.Popen(["sleep", "600"])
        open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
        time.sleep(600)
    """
    outcome = outcome_of(code, tmp_path, limit_s=3.0)

    assert (outcome.state, outcome.said) == (RED, "took more than 3 s")
    pid = int((tmp_path / "pid").read_text())
    for _ in range(100):
        state = _state(pid)
        if state in ("", "Z"):
            break
        time.sleep(0.05)
    assert state in ("", "Z")


def _state(pid: int) -> str:
    """Return the letter of a process's state, empty if it is gone; Z if nobody has asked for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


@pytest.mark.rotating
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device on this machine")
def test_without_a_gpu_there_is_one_sentence_and_no_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing else is tried."""
    assert main(["--out", str(tmp_path / "out")]) == 2

    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("expected a GPU that PyTorch can use, got none: torch ")
    assert not (tmp_path / "out").exists()


MACHINE = Outcome(
    Step("machine", "what is there", 1, ""),
    GREEN,
    1.0,
    "there",
    rows=({"gpu": "Some GPU", "driver": "580.1", "torch": "2.11.0", "triton": ""},),
)
SLOW = Outcome(
    Step("bandwidth", "how fast", 1, "", aim="85 % of a copy"),
    GREEN,
    2.0,
    "62 %",
    rows=({"dtype": "float16", "GB/s": 1234.5678}, {"dtype": "float32", "note": "a|b"}),
)
BROKEN = Outcome(Step("syncs", "does it wait", 1, ""), RED, 3.0, "two", ("at a.py:1", "at b.py:2"))


def test_the_page_says_what_ran_where_and_how_to_see_what_is_red_alone() -> None:
    """Date, GPU, driver and versions; the aim beside figures."""
    page = as_markdown([MACHINE, BROKEN, SLOW], "2026-01-02T03:04:05+00:00", "cuda")

    assert "# A run on a GPU, 2026-01-02T03:04:05+00:00" in page
    assert "gpu Some GPU, driver 580.1, torch 2.11.0." in page
    assert "2 green, 1 red, 0 left out." in page
    assert "`python3 -m benchmarks.gpu --only syncs`\n\n- at a.py:1\n- at b.py:2\n" in page
    assert "--only bandwidth" not in page
    assert "## bandwidth (aim: 85 % of a copy)" in page
    assert "| float16 | 1235 |  |\n| float32 |  | a\\|b |" in page
    assert "rehearsal" not in page


IN_PROCESSES = ("tests", "overhead")
"""Steps that set the environment of their process, or run pytest in it."""


@pytest.mark.rotating
@pytest.mark.parametrize(
    "step", [s for s in STEPS if not s.name.startswith(IN_PROCESSES)], ids=lambda s: s.name
)
def test_each_step_runs_on_a_cpu(step: Step) -> None:
    """A rehearsal, so that no step rots until somebody has a GPU."""
    module, _, function = step.program.partition(":")
    program = getattr(import_module(f"benchmarks.gpu.{module}"), function)

    found = program("cpu", tiny=True, **step.options)

    assert found.reds == []
    assert found.said
    assert json.loads(json.dumps(found.as_dict()))["rows"] == found.rows


@pytest.mark.nightly
def test_the_whole_run_is_rehearsed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In processes of their own, to the page."""
    out = tmp_path / "out"
    chosen = ["tests", "overhead-fp16-fused"]

    status = main(["--device", "cpu", "--out", str(out), "--only", *chosen])

    page, kept = sorted(out.iterdir(), reverse=True)
    assert status == 0, page.read_text(encoding="utf-8")
    assert page.name.endswith("-rehearsal.md")
    steps = json.loads(kept.read_text(encoding="utf-8"))["steps"]
    assert [s["step"]["name"] for s in steps] == ["machine", *chosen]
    assert page.read_text(encoding="utf-8") in capsys.readouterr().out
