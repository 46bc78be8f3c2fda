"""Ranks of one training, each watched as it runs, in a time that is played.

The ranks run one after the other, with a process group that sends nothing. Each runs twice: first
unwatched, which shows when it comes to each collective, and then watched, where it waits in
`Work.wait` until the last of them has come.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.data import DataLoader

import ampwatch
from ampwatch.diagnosis.time.kinds import STRAGGLER
from ampwatch.host.fleet import Fleet
from ampwatch.settings import Settings
from ampwatch.training.sensors.time import phases
from ampwatch.wire.blackbox.box import Box
from ampwatch.wire.records import Finding
from tests.stories.step_time import BATCH, WIDTH, Images, Model
from tests.workshop.played_time import PlayedTime, play_time

RANKS = 4
STEPS = 160
PART = 20
"""Steps that the daemon reads at once."""

Seconds = "Callable[[int, int], float]"
"""Time that a rank takes longer in a step. Unit: s."""


def nothing(_rank: int, _step: int) -> float:
    """Return no time."""
    return 0.0


def nothing_more() -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Trouble:
    """What ranks take longer than the others, by rank and step. Unit: s.

    Attributes:
        data: In the samples of a batch.
        forward: In forward.
        rest: Outside of what is known.
        evaluation: In an evaluation after the step.
        wake: Until it has a core again after a collective has ended.
        computes: Share of it in which the thread is on a core.
        has_no_core: Share of it in which the thread could run and has no core.
    """

    data: Callable[[int, int], float] = nothing
    forward: Callable[[int, int], float] = nothing
    rest: Callable[[int, int], float] = nothing
    evaluation: Callable[[int, int], float] = nothing
    wake: Callable[[int, int], float] = nothing
    computes: float = 0.0
    has_no_core: float = 0.0


class Machine:
    """The clock of the ranks, the kernel's account of their threads, and the network between them.

    Args:
        monkeypatch: Puts them in place.
        place: Where the account is kept.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
        self.time: PlayedTime = play_time(monkeypatch)
        self._account = place / "schedstat"
        self._account.touch()
        self._cpu_ns = self._delay_ns = 0
        self._keep(0.0, 0.0)
        monkeypatch.setattr(phases, "SCHEDSTAT", str(self._account))
        self.came: list[int] = []
        self.all_came: list[int] = []
        self.wakes: Callable[[], None] = nothing_more
        wait = distributed.Work.wait

        def waits(work: Any, *given: Any, **named: Any) -> Any:
            self.came.append(self.time.now_ns)
            if len(self.came) <= len(self.all_came):
                self.time.now_ns = max(self.time.now_ns, self.all_came[len(self.came) - 1])
            self.wakes()
            return wait(work, *given, **named)

        monkeypatch.setattr(distributed.Work, "wait", waits)
        self._monkeypatch = monkeypatch

    def begin_group(self, rank: int) -> None:
        """Begin the process group of a rank."""
        distributed.init_process_group("fake", rank=rank, world_size=RANKS, store=FakeStore())
        # The handles of gloo and NCCL inherit `wait`; those of a group that sends nothing have their own.
        kind = type(distributed.all_reduce(torch.zeros(1), async_op=True))
        if "wait" in vars(kind):
            self._monkeypatch.delattr(kind, "wait")

    def _keep(self, on_core: float, without: float) -> None:
        self._cpu_ns += round(on_core * 1e9)
        self._delay_ns += round(without * 1e9)
        # In place: file systems wait for the disk where a file is truncated and written again.
        with self._account.open("r+") as file:
            file.write(f"{self._cpu_ns} {self._delay_ns} 1\n")

    def take(self, seconds: float, trouble: Trouble) -> None:
        """Take longer, on a core or without one."""
        time.sleep(seconds)
        if seconds:
            self._keep(seconds * trouble.computes, seconds * trouble.has_no_core)


def train(machine: Machine, rank: int, trouble: Trouble, *, watched: bool) -> Box | None:
    """Train one rank; return what was recorded of it."""
    machine.begin_group(rank)
    torch.manual_seed(0)
    machine.came = []
    images = Images(lambda batch: trouble.data(rank, batch) / BATCH)
    model = Model(more_forward=lambda step: 0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    watch = ampwatch.monitor(model, level="light", run="ranks", serve=False) if watched else None
    for step, x in zip(range(STEPS), DataLoader(images, BATCH), strict=False):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        machine.take(trouble.forward(rank, step), trouble)
        loss.backward()
        machine.wakes = partial(machine.take, trouble.wake(rank, step), trouble)
        for parameter in model.parameters():
            distributed.all_reduce(parameter.grad)
            machine.wakes = nothing_more
        optimizer.step()
        machine.take(trouble.rest(rank, step), trouble)
        if seconds := trouble.evaluation(rank, step):
            evaluate(machine, model, seconds, trouble)
    box = None
    if watch is not None:
        box = watch.box()
        watch.close()
    distributed.destroy_process_group()
    return box


def evaluate(machine: Machine, model: nn.Module, seconds: float, trouble: Trouble) -> None:
    """Evaluate, for a time. Unit: s."""
    model.eval()
    with torch.no_grad():
        model(torch.zeros(BATCH, WIDTH))
    machine.take(seconds, trouble)
    model.train()


def run(machine: Machine, trouble: Trouble) -> list[Box]:
    """Train all ranks together; return what was recorded of each."""
    machine.all_came = []
    own: list[list[int]] = []
    for rank in range(RANKS):
        began = machine.time.now_ns
        train(machine, rank, trouble, watched=False)
        times = [began, *machine.came]
        own.append([after - before for before, after in pairwise(times)])
    # Nobody begins the next part before all have come to the end of the last one.
    parts = [max(part) for part in zip(*own, strict=True)]
    began = machine.time.now_ns
    boxes = []
    for rank in range(RANKS):
        machine.time.now_ns = began
        machine.all_came = [began + sum_ns for sum_ns in accumulate(parts)]
        box = train(machine, rank, trouble, watched=True)
        assert box is not None
        boxes.append(box)
    return boxes


def found(boxes: Sequence[Box]) -> list[tuple[int, Finding]]:
    """Return the stragglers that the daemon finds of these ranks, each with the rank."""
    fleet = Fleet(Settings(), lambda: boxes[0].steps[-1].time_ns / 1e9)
    for first in range(0, STEPS, PART):
        for rank, box in enumerate(boxes):
            part = box.steps[first : first + PART]
            fleet.apply(f"/r{rank}", box.identity, part, alive=True, lost=0, dropped=0)
        fleet.compare_views()
    return [
        (view.identity.rank, finding)
        for view in fleet.ranks()
        for finding in view.findings.values()
        if finding.kind == STRAGGLER.slug
    ]
