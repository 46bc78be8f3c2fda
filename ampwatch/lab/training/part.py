"""The laboratory's part of one training: layers and their operands, error budgets, tapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.lab.precision.plan_left import PlanLeft
from ampwatch.lab.training.budgets import Budgets
from ampwatch.lab.training.layers import LayerSensor
from ampwatch.lab.training.taping import TapeSensor

if TYPE_CHECKING:
    from ampwatch.training.hooks.sensor import Sensor
    from ampwatch.training.iteration.context import Context
    from ampwatch.training.replay.sensor import ReplaySensor
    from ampwatch.wire.blackbox import Box
    from ampwatch.wire.records import RunIdentity

DETECTORS = (PlanLeft,)
"""Detectors that come after all others."""


class Lab:
    """The laboratory's part of one training. See ``ampwatch.training.session.Part``."""

    def __init__(self, context: Context, identity: RunIdentity, replays: ReplaySensor) -> None:
        self.calls = layers = LayerSensor(context, identity)
        self.budgets = Budgets(context, replays)
        tapes = (TapeSensor(context, identity),) if context.settings.record_dir else ()
        self.sensors: tuple[Sensor, ...] = (layers, self.budgets, *tapes)

    def describe(self, box: Box) -> None:
        """Add the layers to a report."""
        box.layers = self.calls.records()


make = Lab
