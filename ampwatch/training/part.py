"""What a training asks of a part of ampwatch that it does not know: the laboratory.

The part is loaded by name where the setting ``lab`` asks for it. Nothing of the core imports it, and where it
is not asked for nothing of it is loaded, measured or kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ampwatch import laboratory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.diagnosis.detector import Detector
    from ampwatch.settings import Settings
    from ampwatch.training.hooks.sensor import Sensor
    from ampwatch.training.iteration.context import Context
    from ampwatch.training.replay.sensor import ReplaySensor
    from ampwatch.training.sensors.ranges.activations import CallListener
    from ampwatch.wire.blackbox import Box
    from ampwatch.wire.records import RunIdentity


class Part(Protocol):
    """The part of one training.

    Attributes:
        sensors: Sensors that are told of events after those that measure values.
        calls: Is told of the calls of modules.
    """

    sensors: Sequence[Sensor]
    calls: CallListener

    def describe(self, box: Box) -> None:
        """Add to a report what is not in the records."""


class PartModule(Protocol):
    """The module of a part.

    Attributes:
        DETECTORS: Detectors that come after all others.
    """

    DETECTORS: Sequence[type[Detector]]

    def make(self, context: Context, identity: RunIdentity, replays: ReplaySensor) -> Part:
        """Return the part of a training."""


def part_of(settings: Settings) -> PartModule | None:
    """Return the part that the settings ask for; ``None`` without one."""
    if settings.lab == "off":
        return None
    part: PartModule = laboratory.load("training.part")
    return part
