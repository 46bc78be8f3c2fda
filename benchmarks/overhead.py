"""Cost of watching: a watched training beside the same one bare, in one run.

    python benchmarks/overhead.py                        three trainings on the CPU
    python benchmarks/overhead.py --micro                a step that is next to nothing
    python benchmarks/overhead.py --level standard       with its samples
    python benchmarks/overhead.py --device cuda          larger ones on a GPU
    python benchmarks/overhead.py --json FILE            keep the numbers
    python benchmarks/overhead.py --table FILE           print kept numbers as Markdown

How to read it: README.md in this folder.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from companions import Ampwatch, Companion
from conditions import (
    QUIET_ENVIRONMENT,
    kept,
    own_places,
    read,
    restart_in_quiet_environment,
    write,
)
from turns import (
    Plan,
    Turn,
    Turns,
    account_us,
    parsed,
    parser_of,
    quartiles,
    ratios,
    spread,
    steps_of,
    take_turns,
    total_ratio,
)

from ampwatch.settings import LEVELS
from ampwatch.training.iteration.governor import OPENING

if TYPE_CHECKING:
    from argparse import Namespace

BARE, CONTROL, WATCHED = "bare", "bare again", "watched"
MICRO_STEPS = 500
"""Steps of the micro workload in a turn: each is a fraction of a millisecond."""


def summarise(workload: str, turns: Turns) -> dict[str, Any]:
    """Return the numbers of one workload.

    A ratio is made within each round, where the machine is the same for all, and the
    median over the rounds is what counts.
    """
    bare, again, watched = (turns.by_variant[v] for v in (BARE, CONTROL, WATCHED))
    control_ratios, watched_ratios = ratios(again, bare), ratios(watched, bare, again)
    bare_ms, watched_ms = median(steps_of(bare, again)), median(steps_of(watched))
    after = _phase(turns.by_variant, bare_ms)
    return {
        "workload": workload,
        "steps": len(steps_of(watched)),
        "bare_ms": bare_ms,
        "control_ratio": median(control_ratios),
        "control_quartiles": quartiles(control_ratios),
        "watched_ratio": median(watched_ratios),
        "watched_quartiles": quartiles(watched_ratios),
        "difference_us": 1e3 * (watched_ms - bare_ms),
        "own_account_us": median(t.spent_us / len(t.milliseconds) for t in watched),
        "worst_bare_ratio": after["worst_bare_ratio"],
        "worst_watched_ratio": after["worst_watched_ratio"],
        "opening": _phase(turns.opening, bare_ms),
        "after": after,
    }


def _phase(turns: dict[str, list[Turn]], bare_ms: float) -> dict[str, Any]:
    """Return what a mean and a worst step say of some turns: a median hides samples."""
    bare, again, watched = (turns[v] for v in (BARE, CONTROL, WATCHED))
    return {
        "steps": len(steps_of(watched, first=True)),
        "control_total_ratio": total_ratio(again, bare),
        "total_ratio": total_ratio(watched, bare, again),
        "own_share": account_us(watched) / (1e3 * bare_ms),
        "worst_bare_ratio": max(steps_of(bare, again, first=True)) / bare_ms,
        "worst_watched_ratio": max(steps_of(watched, first=True)) / bare_ms,
    }


def table(results: list[dict[str, Any]]) -> str:
    """Return the results as a Markdown table."""
    lines = [
        "| training | bare step | noise | watched / bare | difference | own account | worst step |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for r in results:
        noise, ratio = spread(r, "control"), spread(r, "watched")
        lines.append(
            f"| {r['workload']} | {r['bare_ms']:.2f} ms | {noise} | {ratio}"
            f" | {r['difference_us']:+.0f} us | {r['own_account_us']:.0f} us"
            f" | x {r['worst_watched_ratio']:.2f} (bare x {r['worst_bare_ratio']:.2f}) |"
        )
    return "\n".join(lines)


def table_of_totals(results: list[dict[str, Any]]) -> str:
    """Return sums and worst steps of the opening and of what follows, as a Markdown table."""
    lines = [
        "| training | steps | noise of the total | total watched / bare | own account | worst step |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for r in results:
        for phase, words in (("opening", "the first"), ("after", "then")):
            p = r[phase]
            lines.append(
                f"| {r['workload']} | {words} {p['steps']} | {p['control_total_ratio']:.3f}"
                f" | {p['total_ratio']:.3f} | {p['own_share']:.2%} of a bare step"
                f" | x {p['worst_watched_ratio']:.2f} (bare x {p['worst_bare_ratio']:.2f}) |"
            )
    return "\n".join(lines)


def tables(results: list[dict[str, Any]]) -> str:
    """Return both tables; the second only of results that have the numbers for it."""
    complete = [r for r in results if "opening" in r]
    return "\n\n".join([table(results), *([table_of_totals(complete)] if complete else [])])


def arguments() -> Namespace:
    """Read the command line."""
    parser = parser_of(__doc__, 40, "turns of each process")
    add = parser.add_argument
    add("--micro", action="store_true", help="the same as the workload micro")
    add("--steps", type=int, default=5, help="steps in a turn, after a first one")
    add("--level", choices=LEVELS[1:], default="light")
    args = parsed(parser)
    if args.micro:
        args.workloads = ["micro"]
    return args


def measure(args: Namespace) -> list[dict[str, Any]]:
    """Let all workloads take their turns, with rings and a daemon of their own."""
    companions = {BARE: Companion(), CONTROL: Companion(), WATCHED: Ampwatch(args.level)}
    results = []
    with own_places():
        for workload in args.workloads:
            steps = MICRO_STEPS if workload == "micro" else args.steps
            plan = Plan(rounds=args.rounds, steps=steps, opening=OPENING)
            print(f"{workload}: {plan.rounds} rounds of {plan.steps} steps ...", flush=True)
            results.append(summarise(workload, take_turns(workload, args.device, companions, plan)))
    return results


def main() -> None:
    """Measure, print a table, keep the numbers if asked to."""
    args = arguments()
    if args.table:
        print(tables(read(args.table)))
        return
    restart_in_quiet_environment()
    measured = kept(
        measure(args),
        args.device,
        level=args.level,
        rounds=args.rounds,
        environment=QUIET_ENVIRONMENT,
    )
    print(f"\n{measured['machine']}\n{measured['versions']}\n\n{tables(measured['results'])}")
    if args.json:
        write(args.json, measured)


if __name__ == "__main__":
    main()
