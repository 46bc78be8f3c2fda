"""What watching costs: a watched training beside the same one bare, in one run.

    python benchmarks/overhead.py                        three trainings on the CPU
    python benchmarks/overhead.py --micro                a step that is next to nothing
    python benchmarks/overhead.py --device cuda          larger ones on a GPU
    python benchmarks/overhead.py --json FILE            keep the numbers
    python benchmarks/overhead.py --table FILE           print kept numbers as Markdown

How to read it: README.md in this folder.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from turns import (
    QUIET_ENVIRONMENT,
    WATCHED,
    Plan,
    Turns,
    restart_in_quiet_environment,
    take_turns,
)
from workloads import WORKLOADS

import ampwatch
from ampwatch.launcher import daemon_is_running
from ampwatch.runtime import SHARED_MEMORY
from ampwatch.settings import Settings

BARE, CONTROL = "bare", "bare again"
MICRO_STEPS = 500
"""Steps of the micro workload in a turn: each is a fraction of a millisecond."""


def summarise(workload: str, turns: Turns) -> dict[str, Any]:
    """Return the numbers of one workload.

    A ratio is made within each round, where the machine is the same for all, and the
    median over the rounds is what counts.
    """
    rounds = list(zip(*(turns.by_variant[v] for v in (BARE, CONTROL, WATCHED)), strict=True))
    control = [median(b.milliseconds) / median(a.milliseconds) for a, b, _ in rounds]
    watched = [
        median(w.milliseconds) / median(a.milliseconds + b.milliseconds) for a, b, w in rounds
    ]
    bare = turns.steps(BARE, CONTROL)
    bare_ms, watched_ms = median(bare), median(turns.steps(WATCHED))
    return {
        "workload": workload,
        "steps": len(turns.steps(WATCHED)),
        "bare_ms": bare_ms,
        "control_ratio": median(control),
        "control_quartiles": _quartiles(control),
        "watched_ratio": median(watched),
        "watched_quartiles": _quartiles(watched),
        "difference_us": 1e3 * (watched_ms - bare_ms),
        "own_account_us": median(turn.overhead_us for turn in turns.by_variant[WATCHED]),
        "worst_bare_ratio": max(bare) / bare_ms,
        "worst_watched_ratio": max(turns.steps(WATCHED)) / bare_ms,
    }


def _quartiles(values: list[float]) -> list[float]:
    low, _, high = quantiles(values, n=4)
    return [low, high]


def table(results: list[dict[str, Any]]) -> str:
    """Return the results as a Markdown table."""
    lines = [
        "| training | bare step | noise | watched / bare | difference | own account | worst step |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for r in results:
        noise, ratio = (
            f"{r[f'{name}_ratio']:.3f} ({low:.3f}-{high:.3f})"
            for name in ("control", "watched")
            for low, high in [r[f"{name}_quartiles"]]
        )
        lines.append(
            f"| {r['workload']} | {r['bare_ms']:.2f} ms | {noise} | {ratio}"
            f" | {r['difference_us']:+.0f} us | {r['own_account_us']:.0f} us"
            f" | x {r['worst_watched_ratio']:.2f} (bare x {r['worst_bare_ratio']:.2f}) |"
        )
    return "\n".join(lines)


def machine(device: str) -> dict[str, str]:
    """Return what the numbers were measured on."""
    cpus = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if line.startswith("model name")
    ]
    facts = {"cpu": cpus[0] if cpus else platform.machine(), "cores": str(os.cpu_count())}
    if device == "cuda":
        facts["gpu"] = torch.cuda.get_device_name()
    return facts


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("workloads", nargs="*", metavar="WORKLOAD", help="gpt, cnn, mlp, gpt-fp16 or micro")
    add("--micro", action="store_true", help="the same as the workload micro")
    add("--device", choices=sorted(WORKLOADS), default="cpu")
    add("--rounds", type=int, default=40, help="turns of each process, at least 2")
    add("--steps", type=int, default=5, help="timed steps in a turn")
    add("--level", choices=("light", "standard", "deep"), default="light")
    add("--json", type=Path, metavar="FILE", help="write the numbers there")
    add("--table", type=Path, metavar="FILE", help="measure nothing, print these numbers")
    args = parser.parse_args()
    args.workloads = ["micro"] if args.micro else args.workloads or ["gpt", "cnn", "mlp"]
    unknown = set(args.workloads) - set(WORKLOADS[args.device])
    if unknown or args.rounds < 2:
        parser.error(
            f"expected workloads among {', '.join(WORKLOADS[args.device])}, and two rounds"
        )
    return args


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Let all workloads take their turns, with rings and a daemon of their own."""
    results = []
    with tempfile.TemporaryDirectory(prefix="ampwatch-benchmark-", dir=SHARED_MEMORY) as place:
        os.environ |= {
            "AMPWATCH_RUNTIME_DIR": f"{place}/runtime",
            "AMPWATCH_RING_DIR": f"{place}/rings",
            "AMPWATCH_PORT": "0",
            "AMPWATCH_GRACE_SECONDS": "0",
            "AMPWATCH_IDLE_EXIT_SECONDS": "1",
        }
        for workload in args.workloads:
            steps = MICRO_STEPS if workload == "micro" else args.steps
            plan = Plan(rounds=args.rounds, steps=steps, level=args.level)
            print(f"{workload}: {plan.rounds} rounds of {plan.steps} steps ...", flush=True)
            results.append(summarise(workload, take_turns(workload, args.device, plan)))
        while daemon_is_running(Settings.resolve()):
            time.sleep(0.1)  # it ends by itself, a second after the last run
    return results


def main() -> None:
    """Measure, print a table, keep the numbers if asked to."""
    args = arguments()
    if args.table:
        print(table(json.loads(args.table.read_text(encoding="utf-8"))["results"]))
        return
    restart_in_quiet_environment()
    results = measure(args)
    kept = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(args.device),
        "versions": {
            "ampwatch": ampwatch.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "conditions": {
            "device": args.device,
            "level": args.level,
            "rounds": args.rounds,
            "environment": QUIET_ENVIRONMENT,
        },
        "results": results,
    }
    print(f"\n{kept['machine']}\n{kept['versions']}\n\n{table(results)}")
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
