"""Processes that take turns, so that a change of the machine's speed meets all of them alike.

Each variant of a training lives in a process of its own from beginning to end; one at
a time is given a turn of a few steps, in an order shuffled every round.
"""

from __future__ import annotations

import multiprocessing
import random
import tempfile
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

import torch
from workloads import WORKLOADS, Training

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Mapping, Sequence
    from multiprocessing.connection import Connection

    from companions import Companion

WARM_UP_STEPS = 10
"""Steps of the bare training, before anything is attached."""

OPENING_STEPS = 500
"""Steps from the moment of attaching that are called the opening: a definition of these benchmarks."""

OPENING_TURN = 10
"""Steps of a turn in the opening."""


@dataclass(frozen=True)
class Turn:
    """Times of one turn.

    Attributes:
        milliseconds: Time of each step. The first finds the caches of others.
        cpu_milliseconds: CPU time of each step, of all threads of the process.
        spent_us: The companion's own account of all steps together. Unit: us.
    """

    milliseconds: list[float]
    cpu_milliseconds: list[float]
    spent_us: float


@dataclass(frozen=True)
class Plan:
    """How long to measure.

    Attributes:
        rounds: Rounds; each variant has one turn in each.
        steps: Steps in a turn, after a first one.
        opening: Steps that are timed from the moment of attaching, in turns before the rounds;
            0 to let each companion settle instead, untimed.
    """

    rounds: int
    steps: int
    opening: int = 0


@dataclass
class Turns:
    """All turns of one workload, by variant, one list entry a round.

    Attributes:
        opening: The turns that began with attaching.
        by_variant: The turns after that.
    """

    opening: dict[str, list[Turn]] = field(default_factory=dict)
    by_variant: dict[str, list[Turn]] = field(default_factory=dict)


class Stopwatch:
    """Time that a process has waited for its turns."""

    def __init__(self) -> None:
        self._away_ns = 0

    def take_away_s(self) -> float:
        """Return how long it has waited since this was called last. Unit: s."""
        away_ns, self._away_ns = self._away_ns, 0
        return away_ns / 1e9

    def wait_for_turn(self, connection: Connection) -> int:
        """Return the number of steps of the next turn.

        Raises:
            EOFError: If there will be none.
        """
        began_ns = time.perf_counter_ns()
        steps: int = connection.recv()
        self._away_ns += time.perf_counter_ns() - began_ns
        return steps


def take_turns(
    workload: str | Callable[[str], Any],
    device: str,
    companions: Mapping[str, Companion],
    plan: Plan,
) -> Turns:
    """Let the variants of one workload take turns.

    Args:
        workload: Which training, or what makes another one for a device.
        device: Where.
        companions: What accompanies it, by variant.
        plan: For how long.

    Raises:
        EOFError: If a process died; it has said why.
    """
    context = multiprocessing.get_context("spawn")
    connections: dict[str, Connection] = {}
    processes = []
    try:
        for variant, companion in companions.items():
            connections[variant], theirs = context.Pipe()
            settle = 0 if plan.opening else companion.settle_steps
            process = context.Process(
                target=_live, args=(theirs, workload, device, companion, settle)
            )
            process.start()
            processes.append(process)
            # Closed on this side, so that a process that dies ends the wait for its answer.
            theirs.close()
        for connection in connections.values():
            connection.recv()
        return Turns(
            opening=_rounds(connections, plan.opening // OPENING_TURN, OPENING_TURN),
            by_variant=_rounds(connections, plan.rounds, plan.steps + 1),
        )
    finally:
        for connection in connections.values():
            connection.close()
        for process in processes:
            process.join()


def _rounds(
    connections: Mapping[str, Connection], rounds: int, steps: int
) -> dict[str, list[Turn]]:
    turns: dict[str, list[Turn]] = {variant: [] for variant in connections}
    for _ in range(rounds):
        for variant in random.sample(list(connections), len(connections)):
            connections[variant].send(steps)
            turns[variant].append(connections[variant].recv())
    return turns


def _live(
    connection: Connection,
    workload: str | Callable[[str], Any],
    device: str,
    companion: Companion,
    settle: int,
) -> None:
    """Train in turns of as many steps as are asked for, until the other end hangs up."""
    torch.set_num_threads(1)
    training = (
        Training(WORKLOADS[device][workload], device)
        if isinstance(workload, str)
        else workload(device)
    )
    for _ in range(WARM_UP_STEPS):
        training.step()
    stopwatch = Stopwatch()
    with tempfile.TemporaryDirectory(prefix="ampwatch-benchmark-") as place:
        tempfile.tempdir = place  # what a companion writes goes with it
        companion.attach(training, stopwatch)
        _turn(training, companion, device, settle)
        connection.send("ready")
        with suppress(EOFError):
            while True:
                steps = stopwatch.wait_for_turn(connection)
                connection.send(_turn(training, companion, device, steps))
        companion.detach()


def _turn(training: Training, companion: Companion, device: str, steps: int) -> Turn:
    before_ns = companion.spent_ns()
    marks, cpu_marks = [_mark(device)], [time.process_time()]
    for _ in range(steps):
        training.step()
        companion.after_step()
        marks.append(_mark(device))
        cpu_marks.append(time.process_time())
    spent_us = (companion.spent_ns() - before_ns) / 1e3
    return Turn(_differences(marks), _differences(cpu_marks), spent_us)


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


def steps_of(*series: Sequence[Turn], first: bool = False) -> list[float]:
    """Return the time of every step of some series of turns. Unit: ms.

    Args:
        series: Turns.
        first: Whether the first step of a turn is among them.
    """
    return [
        ms for turns in series for turn in turns for ms in turn.milliseconds[0 if first else 1 :]
    ]


def cpu_of(*series: Sequence[Turn]) -> list[float]:
    """Return the CPU time of every step of some series of turns. Unit: ms."""
    return [ms for turns in series for turn in turns for ms in turn.cpu_milliseconds]


def ratios(turns: Sequence[Turn], *bare: Sequence[Turn]) -> list[float]:
    """Return for each round the median step over the median of all bare steps of that round."""
    return [
        median(steps_of([turn])) / median(steps_of(others))
        for turn, *others in zip(turns, *bare, strict=True)
    ]


def quartiles(values: Sequence[float]) -> list[float]:
    """Return the first and the third quartile."""
    low, _, high = quantiles(values, n=4)
    return [low, high]


def account_us(turns: Sequence[Turn]) -> float:
    """Return the companion's own account, the mean over all steps. Unit: us."""
    return sum(turn.spent_us for turn in turns) / len(steps_of(turns, first=True))


def spread(result: Mapping[str, Any], name: str) -> str:
    """Return the ratio ``name`` of a result with its quartiles, for a table."""
    low, high = result[f"{name}_quartiles"]
    return f"{result[f'{name}_ratio']:.3f} ({low:.3f}-{high:.3f})"


def parser_of(description: str | None, rounds: int, of_what: str) -> ArgumentParser:
    """Return the command line of a program that trains workloads in rounds."""
    parser = ArgumentParser(description=description, formatter_class=RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("workloads", nargs="*", metavar="WORKLOAD", help=", ".join(WORKLOADS["cpu"]))
    add("--device", choices=sorted(WORKLOADS), default="cpu")
    add("--rounds", type=int, default=rounds, help=f"{of_what}, at least 2")
    add("--json", type=Path, metavar="FILE", help="write the numbers there")
    return parser


def parsed(parser: ArgumentParser, default: Sequence[str] = ("gpt", "cnn", "mlp")) -> Namespace:
    """Return the command line as it was given; leave with a sentence if it cannot be."""
    args = parser.parse_args()
    args.workloads = args.workloads or list(default)
    if set(args.workloads) - set(WORKLOADS[args.device]) or args.rounds < 2:
        parser.error(
            f"expected workloads among {', '.join(WORKLOADS[args.device])}, and two rounds"
        )
    return args
