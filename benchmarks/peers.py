"""Cost of watching, beside that of what people use today, in one run.

    python benchmarks/peers.py                        three trainings on the CPU
    python benchmarks/peers.py mlp --rounds 10        one of them
    python benchmarks/peers.py --json FILE            keep the numbers
    python benchmarks/peers.py --table FILE           print kept numbers as Markdown

The others are optional: what is not installed is left out and said. How to read it, and how
to install them: README.md in this folder.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from companions import (
    Ampwatch,
    Anomaly,
    Companion,
    FiniteOps,
    TensorBoard,
    UnderflowOverflow,
    Wandb,
)
from conditions import (
    QUIET_ENVIRONMENT,
    kept,
    own_places,
    read,
    restart_in_quiet_environment,
    version_of,
    write,
)
from turns import (
    Plan,
    account_us,
    parsed,
    parser_of,
    quartiles,
    ratios,
    steps_of,
    take_turns,
    total_ratio,
)

if TYPE_CHECKING:
    from argparse import Namespace

    from turns import Turns

BARE, CONTROL = "bare", "bare again"

COMPANIONS: dict[str, Companion] = {
    BARE: Companion(),
    CONTROL: Companion(),
    "ampwatch, light": Ampwatch("light"),
    "ampwatch, standard": Ampwatch("standard"),
    "ampwatch, deep": Ampwatch("deep"),
    "wandb.watch, default": Wandb(),
    "wandb.watch(log_freq=1)": Wandb(log_freq=1),
    "TensorBoard add_histogram, every 50th step": TensorBoard(every=50),
    "TensorBoard add_histogram": TensorBoard(every=1),
    "DebugUnderflowOverflow": UnderflowOverflow(),
    "set_detect_anomaly(True)": Anomaly(),
    "isfinite of each op": FiniteOps(),
}


def summarise(workload: str, turns: Turns) -> dict[str, Any]:
    """Return the numbers of one workload, by variant."""
    bare = [turns.by_variant[v] for v in (BARE, CONTROL)]
    bare_ms = median(steps_of(*bare))
    variants = {}
    for name, mine in turns.by_variant.items():
        # A bare variant is held against the other one: against itself it would be 1.
        others = [b for b in bare if b is not mine]
        found = ratios(mine, *others)
        variants[name] = {
            "ratio": median(found),
            "quartiles": quartiles(found),
            "total_ratio": total_ratio(mine, *others),
            "worst_ratio": max(steps_of(mine, first=True)) / bare_ms,
            "own_share": account_us(mine) / (1e3 * bare_ms),
        }
    steps = len(steps_of(bare[0], first=True))
    return {"workload": workload, "steps": steps, "bare_ms": bare_ms, "variants": variants}


def table(results: list[dict[str, Any]]) -> str:
    """Return the results as a Markdown table: a row for each variant, a column for each training."""
    heads = [f"{r['workload']}, {r['bare_ms']:.0f} ms" for r in results]
    lines = [
        f"| {' | '.join(['step time against bare', *heads])} |",
        f"| --- |{' ---: |' * len(heads)}",
    ]
    for name in results[0]["variants"]:
        if name == BARE:
            continue
        cells = [_cell(r["variants"][name]) for r in results]
        lines.append(f"| {' | '.join([name, *cells])} |")
    return "\n".join(lines)


def _cell(v: dict[str, Any]) -> str:
    low, high = v["quartiles"]
    return (
        f"{v['ratio']:.3f} ({low:.3f}-{high:.3f}), mean {v['total_ratio']:.3f},"
        f" worst x {v['worst_ratio']:.1f}"
    )


def arguments() -> Namespace:
    """Read the command line."""
    parser = parser_of(__doc__, 18, "turns of each process")
    parser.add_argument("--steps", type=int, default=5, help="steps in a turn, after a first one")
    return parsed(parser, ("mlp", "cnn", "gpt"))


def installed() -> dict[str, Companion]:
    """Return the companions that are there, and say which are not."""
    missing = {c.package for c in COMPANIONS.values() if not version_of(c.package)} - {"ampwatch"}
    for package in sorted(missing):
        print(f"{package} is not installed and left out; `pip install {package}` brings it in")
    return {name: c for name, c in COMPANIONS.items() if c.package not in missing}


def measure(args: Namespace) -> list[dict[str, Any]]:
    """Let all workloads take their turns, with rings and a daemon of their own."""
    companions = installed()
    plan = Plan(rounds=args.rounds, steps=args.steps)
    results = []
    with own_places():
        for workload in args.workloads:
            print(f"{workload}: {plan.rounds} rounds of {plan.steps} steps ...", flush=True)
            results.append(summarise(workload, take_turns(workload, args.device, companions, plan)))
            print(f"\n{table(results[-1:])}\n", flush=True)
    return results


def main() -> None:
    """Measure, print a table, keep the numbers if asked to."""
    args = arguments()
    if args.table:
        print(table(read(args.table)))
        return
    restart_in_quiet_environment()
    measured = kept(
        measure(args),
        args.device,
        sorted({c.package for c in COMPANIONS.values()} - {"ampwatch"}),
        rounds=args.rounds,
        steps=args.steps,
        environment=QUIET_ENVIRONMENT,
    )
    print(f"\n{measured['machine']}\n{measured['versions']}\n\n{table(measured['results'])}")
    if args.json:
        write(args.json, measured)


if __name__ == "__main__":
    main()
