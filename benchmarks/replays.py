"""Cost of the replay of a failed step, beside the step itself: the call kept, forward again, a remedy.

    python benchmarks/replays.py                    gpt, cnn, mlp on the CPU; some two minutes
    python benchmarks/replays.py --json FILE        keep the numbers

Each round has a bare step, a replay, a replay with each remedy, and a bare step again, so that a
change of the machine's speed meets all of them. How to read it: README.md in this folder.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from conditions import kept, restart_in_quiet_environment, write
from workloads import WORKLOADS, Training

from ampwatch.training.replay.inquiry import ReplicaSurroundings
from ampwatch.training.replay.kept_calls import KeptCall
from ampwatch.training.replay.replay import Replay
from ampwatch.training.sensors.origins.follower import OriginFollower
from ampwatch.wire.records import Measure, Remedy

WARM_UP_STEPS = 3
REMEDIES = (None, *(Remedy(measure) for measure in Measure))


def timed(training: Training) -> float:
    """Return the time of a step. Unit: ms."""
    began = time.perf_counter()
    training.step()
    return (time.perf_counter() - began) * 1e3


def replayed(call: KeptCall, remedy: Remedy | None) -> tuple[float, int]:
    """Return the time of a replay, and the bytes that its replica has for itself. Unit: ms, B."""
    began = time.perf_counter()
    around = ReplicaSurroundings()
    listener = OriginFollower(around)
    replay = Replay(call, "", 2**30, remedy)
    around.begin(replay, math.nan)
    listener.begin(0)
    around.take(replay.run(listener.note, 1.0))
    listener.end()
    spent = (time.perf_counter() - began) * 1e3
    return spent, sum(tensor.nbytes for tensor in replay.replica.own_tensors())


def measure(workload: str, rounds: int) -> dict[str, Any]:
    """Return what replays cost on one training."""
    training = Training(WORKLOADS["cpu"][workload], "cpu")
    for _ in range(WARM_UP_STEPS):
        training.step()
    steps: list[float] = []
    times: dict[str, list[float]] = {}
    keeping: list[float] = []
    own_bytes = 0
    for _ in range(rounds):
        steps.append(timed(training))
        with torch.autocast("cpu", dtype=training._dtype):
            began = time.perf_counter()
            call = KeptCall(training.model, (training._inputs,), {}, ())
            keeping.append((time.perf_counter() - began) * 1e6)
        for remedy in REMEDIES:
            spent, own_bytes = replayed(call, remedy)
            name = "replay" if remedy is None else f"with {remedy.measure.value}"
            times.setdefault(name, []).append(spent)
        steps.append(timed(training))
    step = median(steps)
    return {
        "workload": workload,
        "rounds": rounds,
        "step_ms": round(step, 2),
        "keeping_us": round(median(keeping), 1),
        "kept_bytes": call.nbytes,
        "own_bytes": own_bytes,
        "ratios": {name: round(median(spent) / step, 2) for name, spent in times.items()},
    }


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", default=["gpt", "cnn", "mlp"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    restart_in_quiet_environment()
    torch.set_num_threads(1)
    results = [measure(name, chosen.rounds) for name in chosen.workloads]
    names = list(results[0]["ratios"])
    print(f"{'training':10} {'step':>9} {'kept':>8} {'own memory':>12}  " + "  ".join(names))
    for found in results:
        ratios = "  ".join(f"{found['ratios'][name]:>{len(name)}.2f}" for name in names)
        print(
            f"{found['workload']:10} {found['step_ms']:>6.1f} ms {found['keeping_us']:>5.1f} us"
            f" {found['own_bytes'] / 2**20:>8.2f} MiB  {ratios}"
        )
    if chosen.json:
        write(chosen.json, kept(results, "cpu", rounds=chosen.rounds, threads=1))


if __name__ == "__main__":
    main()
