"""Processes that take turns, so that a change of the machine's speed meets all of them alike.

Each variant of a training lives in a process of its own from beginning to end; one at
a time is given a turn of a few steps, in an order shuffled every round.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
import time
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from workloads import WORKLOADS, Training

import ampwatch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection

WATCHED = "watched"
VARIANTS = ("bare", "bare again", WATCHED)
"""The second bare one is the control: what it differs by is noise."""

QUIET_ENVIRONMENT = {
    # Activations lie at glibc's threshold for mmap and would be page-faulted anew in
    # every step; without these, identical processes differ by up to 20 %.
    "MALLOC_MMAP_THRESHOLD_": "33554432",
    "MALLOC_TRIM_THRESHOLD_": "2000000000",
    "MALLOC_TOP_PAD_": "67108864",
    "OMP_NUM_THREADS": "1",
}

WARM_UP_STEPS = 10


def restart_in_quiet_environment() -> None:
    """Start the program again with glibc's tunables, which are read only at the start."""
    if any(os.environ.get(name) != value for name, value in QUIET_ENVIRONMENT.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **QUIET_ENVIRONMENT})


@dataclass(frozen=True)
class Turn:
    """What came of one turn.

    Attributes:
        milliseconds: Time of each timed step.
        overhead_us: ampwatch's own account per timed step; 0 where it does not watch. Unit: us.
    """

    milliseconds: list[float]
    overhead_us: float


@dataclass(frozen=True)
class Plan:
    """How long to measure.

    Attributes:
        rounds: Rounds; each variant has one turn in each.
        steps: Timed steps in a turn, after an untimed one.
        level: ``level`` of the watched variant.
    """

    rounds: int
    steps: int
    level: str = "light"


@dataclass
class Turns:
    """All turns of one workload, by variant, one list entry a round."""

    by_variant: dict[str, list[Turn]] = field(
        default_factory=lambda: {variant: [] for variant in VARIANTS}
    )

    def steps(self, *variants: str) -> list[float]:
        """Return the time of every timed step of some variants. Unit: ms."""
        return [ms for v in variants for turn in self.by_variant[v] for ms in turn.milliseconds]


def take_turns(workload: str, device: str, plan: Plan) -> Turns:
    """Let the variants of one workload take turns.

    Raises:
        EOFError: If a process died; it has said why.
    """
    context = multiprocessing.get_context("spawn")
    connections: dict[str, Connection] = {}
    processes = []
    turns = Turns()
    try:
        for variant in VARIANTS:
            connections[variant], theirs = context.Pipe()
            level = plan.level if variant == WATCHED else ""
            process = context.Process(target=_live, args=(theirs, workload, device, level))
            process.start()
            processes.append(process)
            # Closed on this side, so that a process that dies ends the wait for its answer.
            theirs.close()
            connections[variant].recv()
        for _ in range(plan.rounds):
            for variant in random.sample(VARIANTS, len(VARIANTS)):
                connections[variant].send(plan.steps)
                turns.by_variant[variant].append(connections[variant].recv())
    finally:
        for connection in connections.values():
            connection.close()
        for process in processes:
            process.join()
    return turns


def _live(connection: Connection, workload: str, device: str, level: str) -> None:
    """Train in turns of as many steps as are asked for, until the other end hangs up."""
    torch.set_num_threads(1)
    training = Training(WORKLOADS[device][workload], device)
    watch = None
    if level:
        name = f"benchmark-{workload}"
        watch = ampwatch.monitor(training.model, training.scaler, level=level, run=name)
    for _ in range(WARM_UP_STEPS):
        training.step()
    connection.send("ready")
    with watch or nullcontext(), suppress(EOFError):
        while True:
            connection.send(_turn(training, watch, device, connection.recv()))


def _turn(training: Training, watch: ampwatch.Monitor | None, device: str, steps: int) -> Turn:
    training.step()
    if device == "cuda":
        torch.cuda.synchronize()
    before_ns = _account_ns(watch)
    marks = [_mark(device)]
    for _ in range(steps):
        training.step()
        marks.append(_mark(device))
    overhead_ns = _account_ns(watch) - before_ns
    return Turn(_differences(marks), overhead_ns / 1e3 / steps)


def _account_ns(watch: ampwatch.Monitor | None) -> int:
    """Return what ampwatch says it has cost so far. Unit: ns."""
    return 0 if watch is None else watch._instruments.cost().overhead_ns


def _mark(device: str) -> Any:
    """Mark the end of a step without waiting for the device."""
    if device != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _differences(marks: Sequence[Any]) -> list[float]:
    """Return the time between neighbouring marks. Unit: ms."""
    pairs = list(pairwise(marks))
    if isinstance(marks[0], float):
        return [1e3 * (after - before) for before, after in pairs]
    torch.cuda.synchronize()
    return [before.elapsed_time(after) for before, after in pairs]
