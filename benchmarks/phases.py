"""The phases of steps, held against torch.profiler on the same steps, and what taking them costs.

    python benchmarks/phases.py                three trainings against the profiler, then the cost
    python benchmarks/phases.py --json FILE    and keep the numbers

The program marks its own phases with ``torch.profiler.record_function``; ampwatch does not see the
marks. Both times of a phase are summed over the same steps; from those of the profiler the time of a mark
around nothing is taken. Between the marks and the calls that
ampwatch hears lie Python lines of the program, so a phase of a few microseconds differs by more.

The cost is CPU time of the training thread, which a busy host does not lengthen as it does wall time: of
steps whose phases are taken and of steps without, in turns, in one process.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.data import DataLoader, TensorDataset
from workloads import computes_in_bfloat16

import ampwatch
from ampwatch.training.sensors.time.phases import PhaseSensor
from ampwatch.wire.records import StepPhase

if TYPE_CHECKING:
    from collections.abc import Callable

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


def cost_us() -> tuple[float, float]:
    """Return the CPU time of a step of a small model without its phases and with them. Unit: us."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    samples = TensorDataset(torch.randn(2**15, 16), torch.randn(2**15, 4))
    x, y = samples[:8]

    def steps() -> float:
        begun = time.thread_time_ns()
        for _ in range(ROUND_STEPS):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = nn.functional.mse_loss(model(x).float(), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return (time.thread_time_ns() - begun) / 1e3 / ROUND_STEPS

    def watched(*, with_phases: bool) -> Any:
        watch = ampwatch.monitor(model, scaler, level="light", serve=False)
        if not with_phases:
            session = watch._session
            for channel in session.bus._channels.values():
                channel.subscribers = tuple(
                    one for one in channel.subscribers if not isinstance(one.sensor, PhaseSensor)
                )
            session.bus.time_no_more()
            session.bus._take_off_unwanted()
        return watch

    found: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(ROUNDS):
        # Which goes first changes: what a process does second it does warmer.
        for with_phases in (False, True) if turn % 2 else (True, False):
            watch = watched(with_phases=with_phases)
            steps()  # the first iterations, in which all sensors listen
            found[with_phases].append(steps())
            watch.close()
    return median(found[False]), median(found[True])


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, help="where to keep the numbers")
    given = parser.parse_args()
    kept: dict[str, Any] = {
        "torch": torch.__version__,
        "computes_in_bfloat16": computes_in_bfloat16("cpu"),
        "steps": STEPS,
        "trainings": {},
    }
    for name in TRAININGS:
        found = kept["trainings"][name] = against_profiler(name)
        for phase, (ours, theirs) in found.items():
            print(
                f"{name:12} {phase:9} {ours:8.3f} ms  profiler {theirs:8.3f} ms  {ours / theirs - 1:+.1%}"
            )
    without, with_phases = cost_us()
    kept["cost_us"] = {"without": without, "with": with_phases}
    print(f"a step without phases {without:.1f} us, with them {with_phases:.1f} us of CPU time")
    if given.json:
        given.json.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
