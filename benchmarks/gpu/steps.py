"""Steps of the run, each in a process of its own with a time limit. Needs nothing but Python."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

ROOT = Path(__file__).parents[2]
MODULE = "benchmarks.gpu"

GREEN, RED, LEFT_OUT = "green", "red", "left out"

MAX_OUTPUT = 4000
"""Characters of the output of a step that are kept, from its end."""


@dataclass(frozen=True)
class Step:
    """One step of the run.

    Attributes:
        name: How it is asked for.
        question: What it answers.
        limit_s: Seconds after which it is ended.
        program: Module and function that are called, with the device and whether it is to be tiny.
        needs: Packages without which it is left out.
        options: Further arguments of the function.
        aim: What its figures are held against, in words; nothing is red for missing it.
    """

    name: str
    question: str
    limit_s: float
    program: str
    needs: tuple[str, ...] = ("torch",)
    options: Mapping[str, Any] = field(default_factory=dict)
    aim: str = ""


@dataclass(frozen=True)
class Outcome:
    """What became of a step.

    Attributes:
        step: The step.
        state: One of green, red and left out.
        seconds: How long it took.
        said: One line about it.
        reds: What is wrong, a sentence each.
        rows: Its figures, one mapping a row.
        output: End of what it printed.
        is_cut: Whether it was ended for taking too long.
    """

    step: Step
    state: str
    seconds: float
    said: str
    reds: tuple[str, ...] = ()
    rows: tuple[Mapping[str, Any], ...] = ()
    output: str = ""
    is_cut: bool = False


WATCHES = ("torch", "msgspec")
KERNEL = ("torch", "triton")

STEPS = (
    Step("machine", "what is there", 60, "checks:machine"),
    Step(
        "values",
        "does the kernel count as the reference does",
        90,
        "checks:values",
        (*KERNEL, "numpy"),
    ),
    Step("syncs", "does anything wait for the device", 90, "checks:syncs", WATCHES, aim="none"),
    *(
        Step(
            f"capture-{case}",
            "does a user's CUDA graph survive",
            45,
            "checks:capture",
            WATCHES,
            {"case": case},
        )
        for case in ("graphed", "graphed-scaled", "whole", "eager-then-whole")
    ),
    Step("attribution", "whose kernels are they", 45, "checks:attribution", aim="none wrong"),
    Step("names", "which kernels does no rule know", 60, "checks:names", WATCHES),
    Step("tests", "does tests/gpu pass", 150, "checks:tests", (*WATCHES, "pytest", "hypothesis")),
    Step(
        "memory",
        "what does each level add to the peak",
        60,
        "speed:memory",
        WATCHES,
        aim="steps add at most 64 MiB",
    ),
    Step(
        "bandwidth",
        "how fast is the kernel beside a copy",
        60,
        "speed:bandwidth",
        (*KERNEL, "msgspec"),
        aim="85 % of a copy",
    ),
    *(
        Step(
            f"overhead-{name}",
            "GPT-2 124M at standard, watched / bare",
            limit,
            "speed:overhead",
            (*WATCHES, "prometheus_client"),
            {"variant": name},
            aim="1.005",
        )
        for name, limit in (
            ("fp16-fused", 75),
            ("fp16-foreach", 75),
            ("bf16-fused", 75),
            ("bf16-foreach", 75),
            ("graphs", 75),
            ("compiled", 200),
        )
    ),
)
"""What invalidates the rest comes first."""


def run(
    steps: Iterable[Step],
    device: str,
    *,
    tiny: bool,
    until: float,
    out: Path,
    clock: Callable[[], float] = time.monotonic,
    command: Callable[[Step, str, bool, Path], list[str]] | None = None,
) -> Iterator[Outcome]:
    """Run steps one after the other, and hand out what became of each as it ends.

    Args:
        steps: The steps.
        device: ``cuda``, or ``cpu`` for a rehearsal.
        tiny: Whether sizes are those of a rehearsal.
        until: Time of ``clock`` after which no step runs on.
        out: Folder for the answers of the steps.
        clock: Clock. Unit: s.
        command: Makes the command line of a step; its own by default.
    """
    for step in steps:
        missing = [name for name in step.needs if find_spec(name) is None]
        left_s = min(step.limit_s, until - clock())
        if missing and device != "cpu":
            reason = f"not installed: {', '.join(missing)}"
            outcome = Outcome(step, LEFT_OUT, 0.0, reason)
        elif left_s <= 0:
            outcome = Outcome(step, LEFT_OUT, 0.0, "the time was up")
        else:
            answer = out / f"{step.name}.json"
            words = (command or command_of)(step, device, tiny, answer)
            outcome = run_one(step, words, answer, left_s, clock)
            if outcome.is_cut and left_s < step.limit_s:
                outcome = replace(outcome, state=LEFT_OUT, said="the time was up", reds=())
        yield outcome


def command_of(step: Step, device: str, tiny: bool, answer: Path) -> list[str]:  # noqa: FBT001 - a rehearsal or not
    """Return the command line that runs one step in a process of its own."""
    words = [sys.executable, "-m", MODULE, "--step", step.name, "--answer", str(answer)]
    return [*words, "--device", device, *(["--tiny"] if tiny else [])]


def run_one(
    step: Step, command: list[str], answer: Path, limit_s: float, clock: Callable[[], float]
) -> Outcome:
    """Run one step, and end it with all that it has started if it takes too long."""
    answer.unlink(missing_ok=True)
    began = clock()
    is_cut = False
    environment = {**os.environ, "PYTHONPATH": _path(), "PYTHONUNBUFFERED": "1"}
    # A file and no pipe: a process that was left behind would hold the other end of a pipe open.
    with TemporaryFile("w+", errors="replace") as printed:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            problem = _end_of(process.wait(limit_s))
        except subprocess.TimeoutExpired:
            is_cut = True
            problem = f"took more than {limit_s:.0f} s"
        finally:
            with suppress(ProcessLookupError):  # nobody is left
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        printed.seek(0)
        output = printed.read()[-MAX_OUTPUT:]
    seconds = clock() - began
    try:
        found = json.loads(answer.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = {}
        problem = problem or "gave no answer"
    if problem:
        last = next((line for line in reversed(output.splitlines()) if line.strip()), "")
        said = f"{problem}: {last}" if last else problem
        rows = tuple(found.get("rows", ()))
        return Outcome(step, RED, seconds, said, (said,), rows, output, is_cut)
    reds = tuple(found["reds"])
    said = reds[0] if reds else found["said"]
    kept = output if reds else ""
    return Outcome(step, RED if reds else GREEN, seconds, said, reds, tuple(found["rows"]), kept)


def _end_of(code: int) -> str:
    if code < 0:
        return f"died of {signal.Signals(-code).name}"
    return f"ended with {code}" if code else ""


def _path() -> str:
    """Return PYTHONPATH with this checkout first: another one may be installed."""
    rest = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join([str(ROOT), *([rest] if rest else [])])
