"""The context of a training: one object with the parts that its sensors share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from ampwatch.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import torch

    from ampwatch.settings import Settings
    from ampwatch.training.hooks.bus import Bus, OpenIteration
    from ampwatch.training.hooks.regions import Regions
    from ampwatch.training.iteration.governor import Governor
    from ampwatch.training.iteration.ledger import Clock
    from ampwatch.training.memory import MemoryBudget
    from ampwatch.training.model.home import Home
    from ampwatch.training.model.names import Names
    from ampwatch.training.model.optimizers import OptimizerRegistry, Trained
    from ampwatch.training.transfer.deferred import Deferred
    from ampwatch.training.transfer.losses import LossSum
    from ampwatch.training.transfer.measuring import Measuring
    from ampwatch.wire.records import ChecksumRecord, Record


class WayOut(Protocol):
    """The way by which records leave the training process."""

    def put(self, *records: Record) -> None:
        """Write records, in their order. Never raises."""

    @property
    def ring_path(self) -> Path | None:
        """The ring file, ``None`` without one."""


class Peers(Protocol):
    """The other ranks of the machine."""

    rank: int
    """This rank."""

    world_size: int
    """Number of ranks of the run, on all machines."""

    def checks(self) -> dict[int, list[ChecksumRecord]]:
        """Return the newest checks of the other ranks, the oldest first. Never raises."""


class Context(Struct, frozen=True):
    """The parts that the sensors of one training share.

    Attributes:
        settings: The checked settings.
        home: Where the training is.
        names: Names of parameters, buffers and modules.
        trained: The parameters that get gradients.
        registry: Numbers the optimizers.
        autocast_dtypes: Names of the autocast dtypes seen so far, in order; the diagnosis reads it.
        lost_eps: Parameters whose ``eps`` is zero in their dtype; the diagnosis reads it.
        iteration: The open iteration.
        losses: The losses of the open iteration.
        bus: Tells of events.
        governor: Says what is measured in the open iteration.
        memory: Says what may be held.
        measuring: Measures ranges.
        deferred: Reads values from devices, later.
        regions: Which autocast regions every thread is in.
        clock: Where the time comes from.
        observe: Takes what a sensor has learnt, as soon as it has: an object of
            ``diagnosis.evidence``. Never raises.
        out: Where records go.
        peers: The other ranks.
        samples: Whether values are measured and ops are observed: at level ``standard`` or ``deep``, where
            values can be read without waiting. Elsewhere steps are counted, and nothing is measured.
    """

    settings: Settings
    home: Home
    names: Names
    trained: Trained
    registry: OptimizerRegistry
    autocast_dtypes: list[str]
    lost_eps: dict[str, float]
    iteration: OpenIteration
    losses: LossSum
    bus: Bus
    governor: Governor
    memory: MemoryBudget
    measuring: Measuring
    deferred: Deferred
    regions: Regions
    clock: Clock
    observe: Callable[[object], None]
    out: WayOut
    peers: Peers
    samples: bool = True

    @property
    def scaler(self) -> torch.amp.GradScaler | None:
        """The watched scaler of torch's, or ``None``. Another one may take over."""
        return self.bus.scaler

    @property
    def is_scaled(self) -> bool:
        """Whether a scaler of torch's that multiplies the loss is watched."""
        scaler = self.bus.scaler
        return scaler is not None and scaler.is_enabled()

    @property
    def counts_around_compiled(self) -> bool:
        """Whether ops are counted one by one, and compiled code runs, which computes some without ops."""
        forces_eager = self.settings.compiled_census == "force_eager"
        return self.governor.counts_one_by_one and self.bus.runs_compiled and not forces_eager

    @property
    def some_scaler(self) -> torch.amp.GradScaler:
        """The watched scaler, for sensors that are made with one only.

        Raises:
            StateError: If there is none.
        """
        scaler = self.bus.scaler
        if scaler is None:
            msg = "expected a training with a GradScaler, got one without"
            raise StateError(msg)
        return scaler
