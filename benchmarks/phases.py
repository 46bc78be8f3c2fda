"""The phases of steps, held against torch.profiler on the same steps, and what taking them costs.

    python benchmarks/phases.py                three trainings against the profiler, then the cost
    python benchmarks/phases.py --json FILE    and keep the numbers
    python benchmarks/phases.py --only-cost    the cost alone

The program marks its own phases with ``torch.profiler.record_function``; ampwatch does not see the
marks. Both times of a phase are summed over the same steps; from those of the profiler the time of a mark
around nothing is taken. Between the marks and the calls that
ampwatch hears lie Python lines of the program, so a phase of a few microseconds differs by more.

The cost is that of steps whose phases are taken against steps of a monitor without that sensor, in turns, in
one process: the median of what each step takes, and the mean of the training thread's CPU time. What is put
off and done for many steps at once, and not in the median step, is in the mean.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.data import DataLoader, TensorDataset
from workloads import computes_in_bfloat16

import ampwatch
from ampwatch.training.sensors.time.phases import PhaseSensor
from ampwatch.training.session import Session
from ampwatch.wire.records import StepPhase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MARKED: dict[str, tuple[StepPhase, ...]] = {
    "data": (StepPhase.DATA,),
    "forward": (StepPhase.FORWARD,),
    "backward": (StepPhase.BACKWARD,),
    "update": (StepPhase.UNSCALE_AND_CLIP, StepPhase.OPTIMIZER),
}
"""Marks of the program, and the phases between them. Where ``scaler.step`` ends its check and calls the
optimizer no program can mark, so both are one here."""

WARM_UP, STEPS, BATCH = 80, 30, 128
"""So large that each phase takes milliseconds: of shorter ones the Python between mark and call, some 0.05 ms
a call, is more than the comparison allows."""

SAMPLES = (WARM_UP + STEPS) * BATCH
ROUNDS, ROUND_STEPS = 60, 100


EMPTY = "nothing"
"""A mark around nothing: what it takes is in each of the others as well."""


def _mlp() -> tuple[nn.Module, TensorDataset]:
    model = nn.Sequential(
        nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.Linear(1024, 10)
    )
    return model, TensorDataset(torch.randn(SAMPLES, 256), torch.randint(0, 10, (SAMPLES,)))


def _cnn() -> tuple[nn.Module, TensorDataset]:
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 8 * 8, 256),
        nn.Linear(256, 10),
    )
    images = torch.randn(SAMPLES, 3, 16, 16)
    return model, TensorDataset(images, torch.randint(0, 10, (SAMPLES,)))


class _Transformer(nn.Module):
    """Two layers over embedded characters."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(4096, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 512, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(64, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.layers(self.embed(tokens)).mean(1))
        return out


def _transformer() -> tuple[nn.Module, TensorDataset]:
    tokens = torch.randint(0, 4096, (SAMPLES, 16))
    return _Transformer(), TensorDataset(tokens, torch.randint(0, 10, (SAMPLES,)))


TRAININGS: dict[str, Callable[[], tuple[nn.Module, TensorDataset]]] = {
    "mlp": _mlp,
    "cnn": _cnn,
    "transformer": _transformer,
}


def against_profiler(name: str) -> dict[str, tuple[float, float]]:
    """Return for each phase its mean in ms by ampwatch and by the profiler."""
    torch.manual_seed(0)
    model, samples = TRAININGS[name]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    batches = iter(DataLoader(samples, batch_size=BATCH))
    in_half = computes_in_bfloat16("cpu")

    def step() -> None:
        with record_function(EMPTY):
            pass
        with record_function("data"):
            x, y = next(batches)
        optimizer.zero_grad()
        with record_function("forward"):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=in_half):
                loss = nn.functional.cross_entropy(model(x).float(), y)
            scaled = scaler.scale(loss)
        with record_function("backward"):
            scaled.backward()
        with record_function("update"):
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
        scaler.update()

    with ampwatch.monitor(model, scaler, level="light", serve=False) as watch:
        for _ in range(WARM_UP):
            step()
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            for _ in range(STEPS):
                step()
        rows = {record.step: record for record in watch.box().steps}
    newest = [rows[index].phases for index in sorted(rows)[-STEPS:]]
    marked: dict[str, float] = defaultdict(float)
    for event in profiler.events() or ():
        marked[event.name] += event.time_range.elapsed_us() / 1e3 / STEPS
    own = marked[EMPTY]
    return {
        mark: (1e3 * sum(p[phase] for p in newest for phase in phases) / STEPS, marked[mark] - own)
        for mark, phases in MARKED.items()
    }


class Cost(NamedTuple):
    """What a step takes. Unit: us.

    Attributes:
        median: Median of the steps.
        cpu: Mean CPU time of the thread.
    """

    median: float
    cpu: float


WAYS = ("bare", "without", "with")
"""No monitor; one without the sensor of phases; one with it."""


def costs(rounds: int) -> dict[str, Cost]:
    """Return what a step of a small model takes at level light, each way."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    samples = TensorDataset(torch.randn(2**15, 16), torch.randn(2**15, 4))
    x, y = samples[:8]

    def steps() -> Cost:
        taken: list[int] = []
        begun, before = time.thread_time_ns(), time.perf_counter_ns()
        for _ in range(ROUND_STEPS):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = nn.functional.mse_loss(model(x).float(), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            now = time.perf_counter_ns()
            taken.append(now - before)
            before = now
        cpu = time.thread_time_ns() - begun
        return Cost(median(taken) / 1e3, cpu / 1e3 / ROUND_STEPS)

    def watched(way: str) -> Any:
        if way == "bare":
            return None
        of_steps = Session._of_steps

        def without(session: Session) -> Iterator[Any]:
            return (one for one in of_steps(session) if not isinstance(one, PhaseSensor))

        with patch.object(Session, "_of_steps", without if way == "without" else of_steps):
            return ampwatch.monitor(model, scaler, level="light", serve=False)

    found: dict[str, list[Cost]] = {way: [] for way in WAYS}
    for turn in range(rounds):
        # Which goes first changes: what a process does second it does warmer.
        for way in WAYS if turn % 2 else WAYS[::-1]:
            watch = watched(way)
            steps()  # the first iterations, in which all sensors listen
            found[way].append(steps())
            if watch is not None:
                watch.close()
    return {way: Cost(*map(median, zip(*found[way], strict=True))) for way in WAYS}


def _processor() -> str:
    """Return the name of the CPU, as Linux tells it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, help="where to keep the numbers")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of the cost")
    parser.add_argument("--only-cost", action="store_true", help="leave the profiler out")
    given = parser.parse_args()
    kept: dict[str, Any] = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu": _processor(),
        "computes_in_bfloat16": computes_in_bfloat16("cpu"),
        "steps": STEPS,
        "trainings": {},
    }
    for name in () if given.only_cost else TRAININGS:
        shares = kept["trainings"][name] = against_profiler(name)
        for phase, (ours, theirs) in shares.items():
            print(
                f"{name:12} {phase:9} {ours:8.3f} ms  profiler {theirs:8.3f} ms  {ours / theirs - 1:+.1%}"
            )
    found = costs(given.rounds)
    kept["cost_us"] = {way: cost._asdict() for way, cost in found.items()}
    for what in Cost._fields:
        bare, without, with_phases = (getattr(found[way], what) for way in WAYS)
        print(
            f"a step, {what}: bare {bare:.1f} us, without phases {without:.1f} us, with them {with_phases:.1f} us:"
            f" {with_phases - without:+.1f} us, {(with_phases - without) / bare:.1%} of the bare step"
        )
    if given.json:
        given.json.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
