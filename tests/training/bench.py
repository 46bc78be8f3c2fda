"""A bus and a context on their own, for sensors that are tested without a session around them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ampwatch.guard import Account
from ampwatch.settings import Settings
from ampwatch.training.hooks.bus import Bus, OpenIteration, handler_name
from ampwatch.training.hooks.places import PLACES
from ampwatch.training.hooks.regions import Regions
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.iteration.context import Context
from ampwatch.training.iteration.governor import Governor
from ampwatch.training.iteration.ledger import Clock
from ampwatch.training.kernels.choice import kernel_for
from ampwatch.training.memory import MIN_LIMIT, MemoryBudget
from ampwatch.training.model.home import Home
from ampwatch.training.model.names import Names
from ampwatch.training.model.optimizers import OptimizerRegistry, Trained
from ampwatch.training.ops.events import OP_EVENTS
from ampwatch.training.transfer.deferred import Deferred
from ampwatch.training.transfer.losses import LossSum
from ampwatch.training.transfer.measuring import Measuring
from ampwatch.wire.records import ChecksumRecord, Record


class Kept:
    """The way out: keeps the records, and knows of no other rank."""

    rank, world_size = 0, 1

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.ring_path: Path | None = None

    def put(self, *records: Record) -> None:
        self.records += records

    def checks(self) -> dict[int, list[ChecksumRecord]]:
        return {}


class Heard(Sensor):
    """A sensor that keeps the events of some kinds.

    Args:
        kinds: Which.
        any_scaler: Whether those of scalers that are not watched as well.
    """

    name = "heard"
    is_thread_safe = True

    def __init__(self, *kinds: type, any_scaler: bool = False) -> None:
        self.any_scaler = any_scaler
        self.events: list[Any] = []
        for kind in kinds:
            setattr(self, handler_name(kind), self.events.append)


INSTALLED: list[Bench] = []
"""Benches whose sensors are in place."""


class Bench:
    """A context whose parts the test can replace, and what the sensors have observed.

    Args:
        models: The watched models.
        scaler: The watched scaler or ``None``.
        optimizers: Those named by the user.
        device: Where the model is, instead of where it really is.
        parts: Parts of the context by name, instead of the real ones.
        settings: Settings by name.
    """

    def __init__(
        self,
        models: Sequence[nn.Module] = (),
        scaler: torch.amp.GradScaler | None = None,
        optimizers: Sequence[torch.optim.Optimizer] = (),
        *,
        device: torch.device | None = None,
        parts: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.seen: list[Any] = []
        self.out = Kept()
        self.account = Account()
        self.iteration = OpenIteration()
        names = Names(models)
        self.bus = Bus(self.account, scaler, self.iteration, PLACES, OP_EVENTS, models=names.models)
        checked = Settings(**settings)
        trained = Trained(names, optimizers)
        home = Home(names, trained)
        if device is not None:
            home.device, home.devices = device, (device,)
        scaled = scaler is not None and scaler.is_enabled()
        made: dict[str, Any] = {
            "settings": checked,
            "home": home,
            "names": names,
            "trained": trained,
            "registry": OptimizerRegistry(optimizers, models, scaled=scaled),
            "autocast_dtypes": [],
            "lost_eps": {},
            "iteration": self.iteration,
            "losses": LossSum(),
            "bus": self.bus,
            "governor": Governor(checked, self.account),
            "memory": MemoryBudget(checked.memory_bytes or MIN_LIMIT),
            "measuring": Measuring(kernel_for, 64),
            "deferred": Deferred(),
            "regions": Regions(),
            "clock": Clock(),
            "observe": self.seen.append,
            "out": self.out,
            "peers": self.out,
        }
        self.context = Context(**(made | (parts or {})))

    def install(self, *sensors: Any) -> None:
        """Add sensors and place what they want."""
        for sensor in sensors:
            self.bus.add(sensor)
        self.bus.install()
        INSTALLED.append(self)

    def remove(self) -> None:
        """Take everything off; no sensor may have failed. The end of a test does so where it has not."""
        if self in INSTALLED:
            INSTALLED.remove(self)
        self.bus.remove()
        assert [guard.name for guard in self.bus.guards if guard.off] == []
