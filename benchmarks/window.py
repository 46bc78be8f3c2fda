"""Cost of one profiler window: its start, the profiled steps, its stop, the walk of its events.

    python benchmarks/window.py                    gpt, cnn, mlp on the CPU; some three minutes
    python benchmarks/window.py --device cuda      larger ones on a GPU
    python benchmarks/window.py --json FILE        keep the numbers; a table goes beside it

Each round has a few bare steps, a window, and a few bare steps again, so that a change of the
machine's speed meets all of them. How to read it: README.md in this folder.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from alone import context_of
from conditions import QUIET_ENVIRONMENT, kept, restart_in_quiet_environment, write
from msgspec.structs import replace
from workloads import WORKLOADS, Training

from ampwatch.training.sensors.window import sensor as window_module
from ampwatch.training.sensors.window.sensor import WindowSensor
from ampwatch.wire.ring.requests import Answer, Request

if TYPE_CHECKING:
    from ampwatch.wire.records import WindowRecord

BARE_STEPS = 6
WARM_UP_STEPS = 8
ACTIVE_STEPS = 2


class OnDemand:
    """Asks for a window whenever it is told to, and wants no trace."""

    def __init__(self) -> None:
        self.wanted = False

    def newest(self, _now_ns: int) -> Request | None:
        """Return a request, once."""
        wanted, self.wanted = self.wanted, False
        return Request("", 0, Path("/"), ACTIVE_STEPS) if wanted else None

    def is_withdrawn(self, _request: Request) -> bool:
        """No trace is written."""
        return True

    def refuse(self, _request: Request, why_not: str) -> None:
        """Nobody else profiles here."""
        raise RuntimeError(why_not)

    def answer(self, answer: Answer) -> None:
        """Nobody waits."""

    def remove(self) -> None:
        """Nothing is left behind."""


@dataclass
class Counting:
    """Counts the events of the windows that go through here."""

    events: int = 0

    def tree(self, events: Any) -> Any:
        """Build the tree as always."""
        self.events = len(events)
        return _CALL_TREE(events)


_CALL_TREE = window_module.call_tree


class Bench:
    """A training with a window sensor at its boundaries."""

    ring_path = None

    def __init__(self, workload: str, device: str) -> None:
        self.training = Training(WORKLOADS[device][workload], device)
        self.requests: Any = OnDemand()
        self.records: list[WindowRecord] = []
        context = context_of(self.training, window_seconds=0.0)
        self.sensor = WindowSensor(replace(context, out=self))
        self.sensor._requests = self.requests
        self.bus = context.bus
        self.bus.add(self.sensor)
        self.bus.install()
        self.taken = 0
        self.ended = time.perf_counter()

    def put(self, record: WindowRecord) -> None:
        """Keep a record, as the way out of the sensor."""
        self.records.append(replace(record, kernels=()))

    def step(self) -> float:
        """Take a step, pass a boundary, return the time of the step alone. Unit: ms."""
        began = time.perf_counter()
        self.training.step()
        now = time.perf_counter()
        self.taken += 1
        self.sensor.boundary(self.taken, now - self.ended, sampled=False)
        self.ended = time.perf_counter()
        return (now - began) * 1e3

    def round(self) -> tuple[float, list[float], float]:
        """Return the usual step, the profiled steps, and the usual step afterwards. Unit: ms."""
        before = [self.step() for _ in range(BARE_STEPS)]
        self.requests.wanted = True
        self.step()  # its boundary opens the window
        self.step()  # the profiler warms up
        profiled = [self.step() for _ in range(ACTIVE_STEPS)]
        if self.sensor.is_open or self.sensor.guard.off:
            message = "expected a window to have ended"
            raise RuntimeError(message)
        self.step()  # finds the caches of the walk
        after = [self.step() for _ in range(BARE_STEPS)]
        return median(before), profiled, median(after)


def measure(workload: str, device: str, rounds: int) -> dict[str, Any]:
    """Return what windows cost on one training."""
    counting = Counting()
    window_module.call_tree = counting.tree
    bench = Bench(workload, device)
    for _ in range(WARM_UP_STEPS):
        bench.step()
    found = [bench.round() for _ in range(rounds)]
    bench.bus.remove()
    window_module.call_tree = _CALL_TREE
    records = [r for r in bench.records if r.windows]
    whole = {r.windows: r for r in records}
    parts = {
        name: [
            (getattr(whole[i + 1], name) - getattr(whole[i], name)) / 1e6 for i in range(1, rounds)
        ]
        for name in ("start_ns", "stop_ns", "walk_ns")
    }
    bare = median(usual for usual, _, _ in found)
    return {
        "workload": workload,
        "windows": rounds,
        "active_steps": ACTIVE_STEPS,
        "invalid": records[-1].invalid,
        "events": counting.events,
        "bare_ms": bare,
        "first_start_ms": records[-1].first_ns / 1e6,
        "start_ms": median(parts["start_ns"]),
        "stop_ms": median(parts["stop_ns"]),
        "walk_ms": median(parts["walk_ns"]),
        "profiled_ratio": median(median(steps) / usual for usual, steps, _ in found),
        "after_ratio": median(after / usual for usual, _, after in found),
        "run_ms": median(sum(steps) - ACTIVE_STEPS * usual for usual, steps, _ in found),
        "memory_bytes_per_window": records[-1].memory_bytes / max(rounds - 1, 1),
    }


COLUMNS = (
    ("training", "workload", "{}"),
    ("bare step", "bare_ms", "{:.1f} ms"),
    ("events", "events", "{}"),
    ("first start", "first_start_ms", "{:.2f} ms"),
    ("start", "start_ms", "{:.2f} ms"),
    ("profiled / bare", "profiled_ratio", "{:.3f}"),
    ("excess of 2 steps", "run_ms", "{:.1f} ms"),
    ("stop", "stop_ms", "{:.1f} ms"),
    ("walk", "walk_ms", "{:.1f} ms"),
    ("after / before", "after_ratio", "{:.3f}"),
    ("grown by a window", "memory_bytes_per_window", "{:.0f} B"),
)


def table(results: list[dict[str, Any]]) -> str:
    """Return the results as a table in Markdown."""
    lines = [" | ".join(title for title, _, _ in COLUMNS), " | ".join("---" for _ in COLUMNS)]
    lines += [" | ".join(text.format(row[name]) for _, name, text in COLUMNS) for row in results]
    return "\n".join(f"| {line} |" for line in lines)


def main() -> None:
    """Measure, print a table, keep the numbers if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", default=["gpt", "cnn", "mlp"])
    parser.add_argument("--device", choices=sorted(WORKLOADS), default="cpu")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    restart_in_quiet_environment()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    results = [measure(workload, args.device, args.rounds) for workload in args.workloads]
    measured = kept(results, args.device, rounds=args.rounds, environment=QUIET_ENVIRONMENT)
    text = f"{measured['machine']}\n{measured['versions']}\n\n{table(results)}\n"
    print(text)
    if args.json:
        write(args.json, measured)
        args.json.with_suffix(".md").write_text(f"# One profiler window\n\n{text}")


if __name__ == "__main__":
    main()
