"""Hostile input for as long as one likes: ``make fuzz ARGS="--seconds 60 --target reports"``.

What shows a defect is kept in ``corpus/``, where every run of the tests replays it. Ends with 1 if there was one.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

import ampwatch
from tests.fuzz.engine import Outcome, keep, search, targets

SECONDS = 60.0


def main() -> int:
    """Search; return the exit status."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    add = parser.add_argument
    add("--target", action="append", choices=targets(), help="one of them, may be repeated; all if not given")  # fmt: skip
    add("--seconds", type=float, default=SECONDS, help="for each target (default: %(default)g); 0 for no limit")  # fmt: skip
    add("--executions", type=int, default=0, help="inputs for each target; 0 for no limit")
    add("--seed", type=int, default=int(time.time()), help="of the mutants (default: another each time)")  # fmt: skip
    add("--json", type=Path, help="where to write the result")
    args = parser.parse_args()
    if not (args.seconds or args.executions):
        parser.error("expected a limit by --seconds or --executions, got none")
    print(f"==> Seed {args.seed}", flush=True)
    outcomes = []
    for name in args.target or targets():
        outcome = search(name, seed=args.seed, executions=args.executions, seconds=args.seconds)
        print(_line(outcome), flush=True)
        for finding in outcome.findings.values():
            print(f"    {finding.where}\n      {keep(name, finding)}\n{finding.error}", flush=True)
        outcomes.append(outcome)
    total = sum(outcome.executions for outcome in outcomes)
    found = sum(len(outcome.findings) for outcome in outcomes)
    print(f"{total} inputs, {found} defects")
    if args.json:
        args.json.write_text(json.dumps(_result(outcomes, args.seed), indent=2) + "\n", encoding="utf-8")  # fmt: skip
    return int(found > 0)


def _line(outcome: Outcome) -> str:
    rate = outcome.executions / (outcome.seconds or 1.0)
    return f"{outcome.target:<14}{outcome.executions:>9} inputs {rate:>8.0f}/s {outcome.ways:>6} ways {len(outcome.findings):>4} defects"


def _result(outcomes: list[Outcome], seed: int) -> dict[str, object]:
    return {
        "date": f"{datetime.now(timezone.utc):%Y-%m-%d}",
        "ampwatch": ampwatch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "seed": seed,
        "executions": sum(outcome.executions for outcome in outcomes),
        "targets": {
            outcome.target: {
                "executions": outcome.executions,
                "seconds": round(outcome.seconds, 1),
                "ways": outcome.ways,
                "findings": sorted(outcome.findings),
            }
            for outcome in outcomes
        },
    }


if __name__ == "__main__":
    sys.exit(main())
