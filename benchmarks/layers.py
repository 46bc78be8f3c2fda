"""Cost of keeping operands of layers for precision plans: sampled steps with and without it, in turns.

    python benchmarks/layers.py                          three trainings, some minutes
    python benchmarks/layers.py gpt-short --rounds 10    one of them, fewer turns
    python benchmarks/layers.py --json FILE              keep the numbers

Each step is sampled (``sample_every=1``). What the budget allows is the same with and without it, so in
a training at the default it is no further cost, but takes the place of other samples: by as much as said here.
How to read it: README.md in this folder.
"""

from __future__ import annotations

from statistics import mean, median
from typing import TYPE_CHECKING, Any

from companions import Ampwatch, Companion
from conditions import QUIET_ENVIRONMENT, kept, own_places, restart_in_quiet_environment, write
from turns import Plan, Stopwatch, Turn, parsed, parser_of, quartiles, take_turns

import ampwatch
from ampwatch.training import session

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from workloads import Training

BARE, WITHOUT, AGAIN, WITH = "bare", "without", "without again", "with"


class Sampled(Ampwatch):
    """``ampwatch.monitor(model, scaler, sample_every=1)``, with operands of layers or without.

    Args:
        has_layers: Whether what layers multiply is kept.
    """

    def __init__(self, *, has_layers: bool) -> None:
        super().__init__("standard")
        self.has_layers = has_layers

    def attach(self, training: Training, stopwatch: Stopwatch) -> None:
        """Watch; without the sensor of layers by having none made, in this process alone."""
        if not self.has_layers:
            session.LayerSensor = lambda *_: None
        self._watch = ampwatch.monitor(
            training.model, training.scaler, run="benchmark", sample_every=1
        )
        self._watch._session._context.clock.monotonic_ns = stopwatch.ns


COMPANIONS = {
    BARE: Companion(),
    WITHOUT: Sampled(has_layers=False),
    AGAIN: Sampled(has_layers=False),
    WITH: Sampled(has_layers=True),
}


def measured(workload: str, args: Namespace) -> dict[str, Any]:
    """Let the variants of a workload take their turns."""
    turns = take_turns(workload, args.device, COMPANIONS, Plan(args.rounds, args.steps)).by_variant
    bare = mean(_of_rounds(turns[BARE]))
    found: dict[str, Any] = {
        "workload": workload,
        "bare_ms": bare,
        "sampled_ms": mean(_of_rounds(turns[WITHOUT])),
    }
    for name in (AGAIN, WITH):
        pairs = list(zip(_of_rounds(turns[name]), _of_rounds(turns[WITHOUT]), strict=True))
        within = [mine / other for mine, other in pairs]
        found[name] = {
            "ratio": median(within),
            "quartiles": quartiles(within),
            "us": 1e3 * median(mine - other for mine, other in pairs),
        }
    return found


def _of_rounds(turns: Sequence[Turn]) -> list[float]:
    """Return the mean step of each round, in CPU time: topics take turns, so a median would leave some out."""
    return [mean(turn.cpu_milliseconds) for turn in turns]


def table(results: list[dict[str, Any]]) -> str:
    """Return the results as a Markdown table."""
    lines = [
        "| training | bare step | sampled step | with operands of layers | difference |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for r in results:
        noise, mine = r[AGAIN], r[WITH]
        low, high = mine["quartiles"]
        lines.append(
            f"| {r['workload']} | {r['bare_ms']:.1f} ms | {r['sampled_ms']:.1f} ms"
            f" | {mine['ratio']:.3f}, {low:.3f}-{high:.3f} (noise {noise['ratio']:.3f})"
            f" | {mine['us']:+.0f} us (noise {noise['us']:+.0f}) |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure, print a table, keep the numbers if asked to."""
    parser = parser_of(__doc__, 30, "turns of each process")
    parser.add_argument("--steps", type=int, default=5, help="steps in a turn, after a first one")
    args = parsed(parser, ("gpt-short", "cnn-short", "mlp-short"))
    restart_in_quiet_environment()
    with own_places():
        results = []
        for workload in args.workloads:
            results.append(measured(workload, args))
            print(table(results), flush=True)  # all so far: each takes minutes
    if args.json:
        conditions = {"rounds": args.rounds, "steps": args.steps, "environment": QUIET_ENVIRONMENT}
        write(args.json, kept(results, args.device, **conditions))


if __name__ == "__main__":
    main()
