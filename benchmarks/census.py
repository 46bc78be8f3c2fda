"""Cost of counting every op: a counted step beside a bare one, and the cheapest dispatch mode.

    python benchmarks/census.py                        three trainings on the CPU
    python benchmarks/census.py --rounds 40 gpt        one of them, for longer
    python benchmarks/census.py --json FILE            keep the numbers; a table goes beside it
    python benchmarks/census.py --table FILE           print kept numbers as Markdown

Steps of the three kinds take turns in one process, in an order shuffled every round, so that a
change of the machine's speed meets all of them alike.
"""

from __future__ import annotations

import random
import time
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from alone import context_of
from conditions import QUIET_ENVIRONMENT, kept, read, restart_in_quiet_environment, write
from torch.utils._python_dispatch import TorchDispatchMode
from turns import parsed, parser_of, quartiles, spread
from workloads import WORKLOADS, Training

from ampwatch.guard import Account
from ampwatch.settings import Settings
from ampwatch.training.iteration.governor import Governor, Observation
from ampwatch.training.sensors.ops.census import OpCensusSensor

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable

WARM_UP_STEPS = 5
LONG_RUN = 20_000
"""Steps over which the governor is followed."""


class Passing(TorchDispatchMode):
    """The cheapest dispatch mode: it only passes ops on, and counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.ops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the op."""
        self.ops += 1
        return func(*args, **(kwargs or {}))


class Steps:
    """The three kinds of step of one training.

    Args:
        training: The training.
    """

    def __init__(self, training: Training) -> None:
        self._training = training
        self._mode = Passing()
        context = context_of(training, level="light")
        self._census = OpCensusSensor(context)
        context.bus.add(context.regions)
        context.bus.add(self._census)
        context.bus.install()
        self.num_calls = 0

    @property
    def kinds(self) -> dict[str, Callable[[], None]]:
        """Steps by name."""
        return {"bare": self._training.step, "mode": self._passed_on, "census": self._counted}

    def ops(self) -> int:
        """Return how many ops a step has, views included."""
        before = self._mode.ops
        self._passed_on()
        return self._mode.ops - before

    def _passed_on(self) -> None:
        with self._mode:
            self._training.step()

    def _counted(self) -> None:
        if not self._census.begin():
            msg = "expected a census, got none: has something been compiled?"
            raise RuntimeError(msg)
        self._training.step()
        census = self._census.end(0, 1.0)
        self.num_calls = sum(t.calls for t in census.tallies.values()) if census else 0


def measure(workload: str, device: str, rounds: int) -> dict[str, Any]:
    """Return what the census costs in one workload."""
    torch.set_num_threads(1)
    steps = Steps(Training(WORKLOADS[device][workload], device))
    for kind in steps.kinds.values():
        for _ in range(WARM_UP_STEPS):
            kind()
    ms: dict[str, list[float]] = {name: [] for name in steps.kinds}
    for _ in range(rounds):
        for name, kind in random.sample(list(steps.kinds.items()), len(ms)):
            began = time.perf_counter()
            kind()
            if device == "cuda":
                torch.cuda.synchronize()
            ms[name].append(1e3 * (time.perf_counter() - began))
    ops, bare_ms = steps.ops(), median(ms["bare"])
    result: dict[str, Any] = {
        "workload": workload,
        "rounds": rounds,
        "ops": ops,
        "counted": steps.num_calls,
        "bare_ms": bare_ms,
    }
    for name in ("mode", "census"):
        ratios = [watched / bare for watched, bare in zip(ms[name], ms["bare"], strict=True)]
        result[f"{name}_ratio"] = median(ratios)
        result[f"{name}_quartiles"] = quartiles(ratios)
        result[f"{name}_us_per_op"] = 1e3 * bare_ms * (median(ratios) - 1) / ops
    excess_ms = bare_ms * (result["census_ratio"] - 1)
    return result | follow_governor(bare_ms / 1e3, excess_ms / 1e3)


def follow_governor(step_s: float, excess_s: float) -> dict[str, float]:
    """Return how often the governor has ops counted, and what that makes of the whole time.

    With the default settings, and as if nothing else were looked at: its time, after the
    opening, is simulated.
    """
    governor = Governor(Settings.resolve({}, {}), Account())
    spent_s = seconds = counted = 0.0
    for index in range(LONG_RUN):
        cost_s = excess_s if Observation.OPS in governor.wanted else 0.0
        if index >= LONG_RUN // 10:
            spent_s, seconds = spent_s + cost_s, seconds + step_s + cost_s
            counted += Observation.OPS in governor.wanted
        governor.next(step_s + cost_s)
    return {"amortised_share": spent_s / seconds, "steps_apart": 0.9 * LONG_RUN / max(counted, 1)}


def table(results: list[dict[str, Any]]) -> str:
    """Return the results as a Markdown table."""
    lines = [
        (
            "| training | bare step | ops (counted) | passing mode / bare | census / bare"
            " | us an op: mode | census | amortised | a census every |"
        ),
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for r in results:
        mode, census = spread(r, "mode"), spread(r, "census")
        lines.append(
            f"| {r['workload']} | {r['bare_ms']:.2f} ms | {r['ops']} ({r['counted']}) | {mode}"
            f" | {census} | {r['mode_us_per_op']:.1f} | {r['census_us_per_op']:.1f}"
            f" | {r['amortised_share']:.2%} | {r['steps_apart']:.0f} steps |"
        )
    return "\n".join(lines)


def arguments() -> Namespace:
    """Read the command line."""
    parser = parser_of(__doc__, 30, "steps of each kind")
    parser.add_argument(
        "--shared", action="store_true", help="note that others used the machine meanwhile"
    )
    return parsed(parser)


def main() -> None:
    """Measure, print a table, keep the numbers if asked to."""
    args = arguments()
    if args.table:
        print(table(read(args.table)))
        return
    restart_in_quiet_environment()
    measured = kept(
        [measure(workload, args.device, args.rounds) for workload in args.workloads],
        args.device,
        rounds=args.rounds,
        shared=args.shared,
        environment=QUIET_ENVIRONMENT,
    )
    print(f"{measured['machine']}\n{measured['versions']}\n\n{table(measured['results'])}")
    if args.json:
        write(args.json, measured)
        shared = "\n\nOthers used the machine meanwhile." if args.shared else ""
        args.json.with_suffix(".md").write_text(
            f"# The op census\n\n{measured['machine']}\n{measured['versions']}{shared}\n\n"
            f"{table(measured['results'])}\n",
            encoding="utf-8",
        )


if __name__ == "__main__":
    main()
