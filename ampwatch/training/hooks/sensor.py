"""The contract of a sensor: it goes on, it comes off, and it has a name."""

from __future__ import annotations

from typing import Protocol


class Sensor(Protocol):
    """Something that watches one thing in the training process.

    Attributes:
        name: Short and stable; names the sensor in logs.
    """

    name: str

    def install(self) -> None:
        """Place the hooks. Called once, after all checks have passed."""

    def remove(self) -> None:
        """Take everything off again; afterwards nothing of the sensor is left behind."""
