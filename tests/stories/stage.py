"""How a story is told: a small training is built, run and watched."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any
from zlib import crc32

import pytest
import torch
from torch import nn

import ampwatch
from ampwatch.training.monitor import Monitor
from ampwatch.wire.records import Finding
from tests.workshop.played_time import PlayedTime

LEVELS = ("standard", "deep")
ALARMS = ("warning", "critical")

PAID = {"sample_every": 1}
"""Settings of programs whose trouble begins late: a step of theirs takes a millisecond, and would
have to pay for a sample for a minute."""


TIME = PlayedTime()
"""The time of all that is watched here: what is measured when depends on how long steps take."""

STEP = 0.005
"""What a step takes. Unit: s."""


@dataclass
class Program:
    """Training loop of a user: objects, and what one iteration does with them.

    Attributes:
        models: The modules.
        optimizers: The optimizers.
        iterate: One iteration; returns its loss.
        scaler: The scaler, or ``None``.
        steps: Iterations.
        watched: What the user hands to ``monitor`` as the model.
        settings: What else the user hands to it.
        overflowed_at: The iteration in which an output left the format first; -1 if none.
        shows: Whether it fails as its story says, asked of it after the run; without ampwatch's help.
    """

    models: Sequence[nn.Module]
    optimizers: Sequence[torch.optim.Optimizer]
    iterate: Callable[[int], torch.Tensor]
    scaler: torch.amp.GradScaler | None = None
    steps: int = 16
    watched: Any = "models"
    settings: dict[str, Any] = field(default_factory=dict)
    overflowed_at: int = -1
    shows: Callable[[Program], bool] | None = None
    trace: list[tuple[float, float]] = field(default_factory=list)

    def run(self) -> None:
        """Train."""
        for step in range(self.steps):
            TIME.take(STEP)
            loss = float(self.iterate(step).detach())
            self.trace.append((loss, self.scaler.get_scale() if self.scaler else 1.0))

    @property
    def losses(self) -> list[float]:
        """The losses so far."""
        return [loss for loss, _ in self.trace]

    @property
    def has_no_finite_loss(self) -> bool:
        """Whether every loss so far is NaN or infinite."""
        return not any(map(math.isfinite, self.losses))

    def digest(self) -> str:
        """Hash of losses, scales, weights, buffers, state of optimizers and random state."""
        digest = hashlib.sha256(repr(self.trace).encode())
        states = [m.state_dict() for m in self.models]
        states += [s for o in self.optimizers for s in o.state_dict()["state"].values()]
        for state in states:
            for name, value in state.items():
                digest.update(name.encode() + _bytes(value))
        if self.scaler is not None:
            digest.update(repr(sorted(self.scaler.state_dict().items())).encode())
        digest.update(_bytes(torch.get_rng_state()) + repr(random.getstate()).encode())
        return digest.hexdigest()


def _bytes(value: Any) -> bytes:
    if not isinstance(value, torch.Tensor) or value.is_meta:
        return repr(value).encode()
    flat = value.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


@dataclass(frozen=True)
class Story:
    """A training that fails, and its twin that does not.

    Attributes:
        kind: Kind of the one root finding.
        where: Its place.
        phase: Its phase.
        build: Builds the program, sick or healthy.
        op: Its op, if one is to be named.
        levels: Levels that can name it: what happens in one step only need not be looked at.
    """

    kind: str
    where: str
    phase: str
    build: Callable[..., Program]
    op: str = ""
    levels: tuple[str, ...] = LEVELS

    def __str__(self) -> str:
        return f"{self.kind}-{self.build.__name__}"


class Stories(list[Story]):
    """Collects stories."""

    def tell(
        self,
        kind: str,
        where: str,
        phase: str,
        op: str = "",
        levels: tuple[str, ...] = LEVELS,
    ) -> Callable[[Callable[..., Program]], Callable[[bool], Program]]:
        """Collect the decorated program as a story."""

        def collect(build: Callable[..., Program]) -> Callable[[bool], Program]:
            self.append(Story(kind, where, phase, build, op, levels))
            return build

        return collect


class Controls(list["Callable[[], Program]"]):
    """Collects programs that are well."""

    def add(self, build: Callable[[], Program]) -> Callable[[], Program]:
        """Collect the decorated program."""
        self.append(build)
        return build


def turn(program: object, levels: Sequence[str] = LEVELS) -> str:
    """Return the level at which a program is run at a commit: one of several, by its name."""
    return levels[crc32(name_of(program).encode()) % len(levels)]


def name_of(program: object) -> str:
    """Return the name of a story or of a control."""
    return getattr(program, "__name__", str(program))


def once(programs: Sequence[Any], levels: Sequence[str] = LEVELS) -> list[Any]:
    """Return programs with the level of their turn: most would be well at the others."""
    turns = [turn(one, levels) for one in programs]
    return [
        pytest.param(one, level, id=f"{name_of(one)}-{level}")
        for one, level in zip(programs, turns, strict=True)
    ]


def at_each_level(stories: Sequence[Story], levels: Sequence[str] = ()) -> list[Any]:
    """Return stories at all of their levels; those whose turn it is not are left to the night.

    At a commit the first story of each kind is told, and of the others of the kind a quarter.
    """
    first = {story.kind: story for story in reversed(stories)}

    def marks(story: Story, level: str) -> list[pytest.MarkDecorator]:
        if level != turn(story, levels or story.levels):
            return [pytest.mark.nightly]
        return [pytest.mark.rotating] * (story is not first[story.kind])

    return [
        pytest.param(story, level, id=f"{story}-{level}", marks=marks(story, level))
        for story in stories
        for level in levels or story.levels
    ]


def watch(build: Callable[[], Program], level: str, **settings: object) -> tuple[Program, Monitor]:
    """Run a program under ``ampwatch.monitor``."""
    seed()
    program = build()
    with watched(program, level, **settings) as monitor:
        program.run()
    return program, monitor


def watched(program: Program, level: str, **settings: object) -> Monitor:
    """Return the monitor of a program, which is still to be run."""
    models = program.models if program.watched == "models" else program.watched
    if isinstance(models, list) and len(models) == 1:
        (models,) = models
    given: Any = {**program.settings, **settings}
    return ampwatch.monitor(models, program.scaler, level=level, serve=False, **given)


@cache
def bare_digest(build: Callable[..., Program], **options: bool) -> str:
    """Run a program without ampwatch; return its digest."""
    seed()
    program = build(**options)
    program.run()
    return program.digest()


def seed() -> None:
    """Begin each run in the same random state."""
    torch.manual_seed(0)
    random.seed(0)


def alarms(findings: Sequence[Finding]) -> list[tuple[str, str, str]]:
    """Return kind, place and phase of each root that is more than an info."""
    return [(f.kind, f.where, f.phase) for f in findings if f.root and f.severity in ALARMS]


def ops(findings: Sequence[Finding], kind: str) -> list[str]:
    """Return the op of each root of a kind."""
    return [f.op for f in findings if f.root and f.kind == kind]


def gradscaler(init_scale: float = 65536.0, growth_interval: int = 2000, **options: Any) -> Any:
    """Return a GradScaler for the CPU."""
    return torch.amp.GradScaler(
        "cpu", init_scale=init_scale, growth_interval=growth_interval, **options
    )


def half() -> torch.autocast:
    """Return the context of float16 autocast."""
    return torch.autocast("cpu", dtype=torch.float16)


def brain() -> torch.autocast:
    """Return the context of bfloat16 autocast."""
    return torch.autocast("cpu", dtype=torch.bfloat16)


def full() -> torch.autocast:
    """Return the context in which autocast is off."""
    return torch.autocast("cpu", enabled=False)


def update(scaler: Any, *optimizers: torch.optim.Optimizer, clip: float = 0.0) -> None:
    """Step the optimizers through the scaler, as PyTorch documents it."""
    for optimizer in optimizers:
        if clip:
            if scaler is not None:
                scaler.unscale_(optimizer)
            parameters = [p for g in optimizer.param_groups for p in g["params"]]
            nn.utils.clip_grad_norm_(parameters, clip)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
    if scaler is not None:
        scaler.update()
    for optimizer in optimizers:
        optimizer.zero_grad()


def backward(scaler: Any, loss: torch.Tensor) -> None:
    """Scale a loss and go back from it."""
    (loss if scaler is None else scaler.scale(loss)).backward()


def loop(
    models: Sequence[nn.Module],
    optimizers: Sequence[torch.optim.Optimizer],
    loss_of: Callable[[int], torch.Tensor],
    scaler: Any = None,
    *,
    clip: float = 0.0,
    micro_batches: int = 1,
    **options: Any,
) -> Program:
    """Return the documented loop around ``loss_of``, which computes the loss of a (micro-)batch."""

    def iterate(step: int) -> torch.Tensor:
        total = torch.zeros(())
        for _ in range(micro_batches):
            loss = loss_of(step)
            backward(scaler, loss)
            total = loss.detach() if micro_batches == 1 else total + loss.detach()
        update(scaler, *optimizers, clip=clip)
        return total

    return Program(models, optimizers, iterate, scaler, **options)


def check_sick(story: Story, level: str) -> tuple[Program, Monitor]:
    """Run a sick program: the one alarm is the root, in its place and phase, and nothing is changed."""
    program, monitor = watch(partial(story.build, sick=True), level)
    assert alarms(monitor.findings) == [(story.kind, story.where, story.phase)]
    assert all(f.root or f.caused_by for f in monitor.findings)
    assert program.digest() == bare_digest(story.build, sick=True)
    return program, monitor


def twins(stories: Sequence[Story]) -> list[Any]:
    """Return the programs of stories with the remedy, as parameters of a test."""
    return [pytest.param(partial(story.build, sick=False), id=str(story)) for story in stories]


def check_left_alone(
    build: Callable[[], Program],
    level: str,
    is_told: Callable[[Finding], bool] = lambda finding: finding.severity in ALARMS,
) -> None:
    """Run a program of which nothing is told that counts, and not a bit of it is changed."""
    program, monitor = watch(build, level)
    assert [(f.kind, f.where, f.summary) for f in monitor.findings if is_told(f)] == []
    assert program.digest() == bare_digest(build)
