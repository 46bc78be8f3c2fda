"""Check and measure on a GPU what nothing else can show, in ten minutes, and write one page.

    python -m benchmarks.gpu                       everything
    python -m benchmarks.gpu --list                names of the steps
    python -m benchmarks.gpu --only syncs values   these alone
    python -m benchmarks.gpu --device cpu          a rehearsal, with tiny sizes

It wants a checkout and a Python with PyTorch, and no network. Ends with 0 if all is green, with 1 if
something is red, with 2 where there is no GPU, and with 3 if nothing is red and something was left out. How to read it: README.md in the folder above.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from datetime import datetime, timezone
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.gpu.page import as_json, as_markdown, facts
from benchmarks.gpu.steps import LEFT_OUT, RED, ROOT, STEPS, Outcome, run

RESULTS = ROOT / "benchmarks" / "results"


def main(arguments: list[str] | None = None) -> int:
    """Run what is asked for, and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--list", action="store_true", help="name the steps")
    add("--only", nargs="+", metavar="NAME", choices=[step.name for step in STEPS])
    add("--out", type=Path, default=RESULTS, metavar="DIR", help="where the page goes")
    add("--device", choices=("cuda", "cpu"), default="cuda")
    add("--minutes", type=float, default=9.5, help="after which what still runs is ended")
    add("--tiny", action="store_true", help=argparse.SUPPRESS)
    add("--step", help=argparse.SUPPRESS)
    add("--answer", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.list:
        for step in STEPS:
            print(f"{step.name:20} {step.limit_s:4.0f} s  {step.question}")
        return 0
    is_tiny = args.tiny or args.device == "cpu"
    if args.step:
        answer(args.step, args.device, args.answer, is_tiny=is_tiny)
        return 0
    return everything(args, is_tiny=is_tiny)


def everything(args: argparse.Namespace, *, is_tiny: bool) -> int:
    """Run the steps, write the page, and return the exit status."""
    # The machine comes first, whatever is asked for: without a GPU there is nothing to run.
    chosen = [s for s in STEPS if s.name == "machine" or not args.only or s.name in args.only]
    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    kind = "gpu" if args.device == "cuda" else "rehearsal"
    path = args.out / f"{date[:16].replace(':', '')}-{kind}.md"
    outcomes: list[Outcome] = []
    with TemporaryDirectory(prefix="ampwatch-gpu-") as place:
        until = time.monotonic() + 60 * args.minutes
        for outcome in run(chosen, args.device, tiny=is_tiny, until=until, out=Path(place)):
            outcomes.append(outcome)
            if not facts(outcomes):
                print(f"expected a GPU that PyTorch can use, got none: {outcome.said}")
                return 2
            took = f"{outcome.step.name:24} {outcome.seconds:5.1f} s"
            print(f"{outcome.state:8} {took}  {outcome.said}", flush=True)
            write(path, outcomes, date, args.device)  # each time: whoever waits may not
    print(f"\n{path.read_text(encoding='utf-8')}\nwritten to {path}, and as JSON beside it")
    states = {outcome.state for outcome in outcomes}
    return 1 if RED in states else 3 if LEFT_OUT in states else 0


def write(path: Path, outcomes: list[Outcome], date: str, device: str) -> None:
    """Write the page, and beside it everything as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(as_markdown(outcomes, date, device), encoding="utf-8")
    everything = json.dumps(as_json(outcomes, date, device), indent=2)
    path.with_suffix(".json").write_text(everything + "\n", encoding="utf-8")


def answer(name: str, device: str, path: Path, *, is_tiny: bool) -> None:
    """Run one step in this process, and write what it has found."""
    step = next(step for step in STEPS if step.name == name)
    module, _, function = step.program.partition(":")
    program = getattr(import_module(f"benchmarks.gpu.{module}"), function)
    found = program(device, tiny=is_tiny, **step.options)
    path.write_text(json.dumps(found.as_dict()), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
