"""Cost of watching beside that of what people use today, and what each tells, in one run.

    python benchmarks/peers.py --json FILE            everything, some ten minutes: what `make bench-peers` does
    python benchmarks/peers.py mlp --rounds 4         one training, and fewer turns

The others are optional: what is not installed is left out and said. What was measured before an
interruption is not measured again. `python -m tools.cost` writes the tables and the picture. How to read
them: README.md in this folder.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from companions import COMPANIONS
from conditions import (
    QUIET_ENVIRONMENT,
    Parts,
    kept,
    own_places,
    restart_in_quiet_environment,
    write,
)
from overhead import BARE, CONTROL, phase
from told import NOT_ASKED, ask_all, installed
from turns import Plan, parsed, parser_of, steps_of, take_turns
from workloads import computes_in_bfloat16

if TYPE_CHECKING:
    from argparse import Namespace

    from turns import Turns


def summarise(workload: str, turns: Turns) -> dict[str, Any]:
    """Return the numbers of one workload, by variant."""
    bare = [turns.by_variant[v] for v in (BARE, CONTROL)]
    return {
        "workload": workload,
        "bare_ms": median(steps_of(*bare)),
        "variants": {
            name: phase(mine, *(bare[:1] if name == CONTROL else bare))
            for name, mine in turns.by_variant.items()
            if name != BARE
        },
    }


def arguments() -> Namespace:
    """Read the command line."""
    parser = parser_of(__doc__, 8, "turns of each process")
    parser.add_argument("--steps", type=int, default=5, help="steps in a turn, after a first one")
    return parsed(parser, ("gpt", "cnn", "mlp", "resnet"))


def told() -> dict[str, Any]:
    """Ask every tool about the same planted overflow."""
    tools = [name for name in installed() if name == BARE or name not in NOT_ASKED]
    with TemporaryDirectory() as place:
        return ask_all(tools, Path(place))


def measured(workload: str, tools: list[str], args: Namespace) -> dict[str, Any]:
    """Let tools take their turns."""
    plan = Plan(rounds=args.rounds, steps=args.steps)
    companions = {name: COMPANIONS[name] for name in tools}
    return summarise(workload, take_turns(workload, args.device, companions, plan))


def main() -> None:
    """Ask and measure, and keep the numbers if asked to."""
    args = arguments()
    restart_in_quiet_environment()
    parts = Parts("peers", args.device, args.rounds, args.steps)
    answers = parts.get("told", told)
    tools = [name for name in installed() if name in answers or name in NOT_ASKED]
    with own_places():
        results = [
            parts.get(each, lambda each=each: measured(each, tools, args))
            for each in args.workloads
        ]
    packages = sorted({c.package for c in COMPANIONS.values()} - {"ampwatch"})
    conditions = {
        "rounds": args.rounds,
        "steps": args.steps,
        "computes_in_bfloat16": computes_in_bfloat16(args.device),
        "environment": QUIET_ENVIRONMENT,
    }
    found = {
        "code": parts.code,
        **kept(results, args.device, packages, **conditions),
        "told": answers,
    }
    if args.json:
        write(args.json, found)
        parts.clear()
        print(f"written: {args.json}")
    else:
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
