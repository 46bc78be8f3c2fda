"""Cost of watching: watched trainings beside the same ones bare, in one run.

    python benchmarks/overhead.py --json FILE            everything, some ten minutes: what `make bench` does
    python benchmarks/overhead.py gpt-short --rounds 10  one training, and fewer turns
    python benchmarks/overhead.py --device cuda gpt      on a GPU

What was measured before an interruption is not measured again. `python -m tools.cost` writes the tables.
How to read them: README.md in this folder.
"""

from __future__ import annotations

import json
import math
from statistics import mean, median
from typing import TYPE_CHECKING, Any

from companions import Ampwatch, Companion
from conditions import (
    QUIET_ENVIRONMENT,
    Parts,
    kept,
    own_places,
    restart_in_quiet_environment,
    write,
)
from turns import (
    OPENING_STEPS,
    Plan,
    Turn,
    Turns,
    account_us,
    cpu_of,
    parsed,
    parser_of,
    quartiles,
    ratios,
    steps_of,
    take_turns,
)
from workloads import computes_in_bfloat16

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

BARE, CONTROL, WATCHED = "bare", "bare again", "watched"
FIRST_STEPS = 32
"""Steps at the start whose cost is also given by itself."""
WINDOW_STEPS = 50
"""Steps of the windows of which the dearest one counts."""
FAILING_STEPS = 400
"""Steps of a training that fails from the first one on: what comes after ``WINDOW_STEPS`` is its later ones."""
MICRO_STEPS = 500
"""Steps of the micro workload in a turn: each is a fraction of a millisecond."""
DEEP_ROUNDS = 12
"""Rounds at ``deep``, whose cost stands out of any noise."""
EVERYWHERE: dict[str, Companion] = {BARE: Companion(), CONTROL: Companion()}


def summarise(workload: str, turns: Turns) -> dict[str, Any]:
    """Return the numbers of one workload: of each variant, in the opening and after it."""
    bare = [turns.by_variant[v] for v in (BARE, CONTROL)]
    found: dict[str, Any] = {
        "workload": workload,
        "bare_ms": median(steps_of(*bare)),
        "worst_bare_ms": max(steps_of(*bare, first=True)),
        "variants": {},
    }
    for name, mine in turns.by_variant.items():
        if name == BARE:
            continue
        phases = {"after": phase(mine, *_others(turns.by_variant, name))}
        if turns.opening[name]:
            began = turns.opening[name]
            others = _others(turns.opening, name)
            phases["opening"] = {**phase(began, *others), **_opening(began, others)}
        found["variants"][name] = phases
    return found


def _others(turns: dict[str, list[Turn]], name: str) -> list[list[Turn]]:
    """Return the bare turns that a variant is held against; the second bare one has the first."""
    return [turns[BARE]] if name == CONTROL else [turns[BARE], turns[CONTROL]]


def phase(mine: Sequence[Turn], *bare: Sequence[Turn]) -> dict[str, Any]:
    """Return what some turns cost beside the bare ones of the same rounds.

    Sums are of all steps, so that one that is looked at counts in full; medians are of the steps that
    did not begin a turn, and of each round, where the machine is the same for all.
    """
    within = ratios(mine, *bare)
    bare_cpu_ms, bare_wall_ms = mean(cpu_of(*bare)), mean(steps_of(*bare, first=True))
    return {
        "steps": len(cpu_of(mine)),
        "cpu_ratio": mean(cpu_of(mine)) / bare_cpu_ms,
        "wall_ratio": mean(steps_of(mine, first=True)) / bare_wall_ms,
        "median_ratio": median(within),
        "median_quartiles": quartiles(within),
        "median_us": 1e3 * median(_median_differences(mine, bare)),
        "mean_us": 1e3 * (mean(cpu_of(mine)) - bare_cpu_ms),
        "own_us": account_us(mine),
        "worst_ms": max(steps_of(mine, first=True)),
        "worst_bare_ms": max(steps_of(*bare, first=True)),
    }


def _median_differences(mine: Sequence[Turn], bare: Sequence[Sequence[Turn]]) -> list[float]:
    """Return for each round the median step less that of the bare ones, in CPU time. Unit: ms."""
    return [
        median(turn.cpu_milliseconds) - mean(median(other.cpu_milliseconds) for other in others)
        for turn, *others in zip(mine, *bare, strict=True)
    ]


def _opening(mine: Sequence[Turn], bare: Sequence[Sequence[Turn]]) -> dict[str, float]:
    """Return the ratio of the first steps, of later ones, and of the dearest window, to the same steps bare."""
    steps = cpu_of(mine)
    others = [mean(same) for same in zip(*(cpu_of(each) for each in bare), strict=True)]
    starts = range(len(steps) - WINDOW_STEPS + 1)
    windows = [slice(start, start + WINDOW_STEPS) for start in starts] or [slice(None)]
    later = slice(WINDOW_STEPS, FAILING_STEPS)
    return {
        "first_ratio": sum(steps[:FIRST_STEPS]) / sum(others[:FIRST_STEPS]),
        "later_ratio": sum(steps[later]) / (sum(others[later]) or math.nan),
        "window_ratio": max(sum(steps[w]) / sum(others[w]) for w in windows),
    }


def arguments() -> Namespace:
    """Read the command line."""
    parser = parser_of(__doc__, 100, "turns of each process after the opening")
    add = parser.add_argument
    add("--steps", type=int, default=9, help="steps in a turn, after a first one")
    add("--opening", type=int, default=OPENING_STEPS, help="steps of the opening, at least 50")
    every = ("micro", "gpt-short", "cnn-short", "mlp-short", "failing", "gpt", "cnn", "mlp")
    return parsed(parser, every)


def measured(workload: str, args: Namespace) -> dict[str, Any]:
    """Let the variants of a workload take their turns.

    Long steps are for `deep` alone: 500 of them take minutes.
    """
    if workload in ("gpt", "cnn", "mlp"):
        companions = {**EVERYWHERE, "deep": Ampwatch("deep")}
        plan = Plan(rounds=min(args.rounds, DEEP_ROUNDS), steps=5)
    else:
        companions = {
            **EVERYWHERE,
            "light": Ampwatch("light"),
            "standard": Ampwatch("standard"),
        }
        is_micro = workload == "micro"
        plan = Plan(
            rounds=min(args.rounds, 40) if is_micro else args.rounds,
            steps=MICRO_STEPS if is_micro else args.steps,
            opening=args.opening,
        )
        if workload == "failing":
            plan = Plan(rounds=2, steps=1, opening=FAILING_STEPS)
    return summarise(workload, take_turns(workload, args.device, companions, plan))


def main() -> None:
    """Measure each workload, and keep the numbers if asked to."""
    args = arguments()
    restart_in_quiet_environment()
    parts = Parts("overhead", args.device, args.rounds, args.steps, args.opening)
    with own_places():
        results = [
            parts.get(each, lambda each=each: measured(each, args)) for each in args.workloads
        ]
    conditions = {
        "rounds": args.rounds,
        "steps": args.steps,
        "computes_in_bfloat16": computes_in_bfloat16(args.device),
        "environment": QUIET_ENVIRONMENT,
    }
    found = {"code": parts.code, **kept(results, args.device, **conditions)}
    if args.json:
        write(args.json, found)
        parts.clear()
        print(f"written: {args.json}")
    else:
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
