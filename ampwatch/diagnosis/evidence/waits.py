"""Waits of the host for the device, within an iteration. No torch."""

from __future__ import annotations

from typing import NamedTuple


class WaitingLine(NamedTuple):
    """A line of the program at which the host waits for the device.

    Attributes:
        source: ``file:line``; empty where no frame is the user's.
        op: What waits, as a user calls it: ``item``, ``nonzero``, ``copy to the host``.
    """

    source: str
    op: str


class HostWaits(NamedTuple):
    """The waits of an iteration whose ops were observed.

    Attributes:
        step: Its index.
        lines: The lines, and how often the host has waited at each; empty if it never has.
    """

    step: int
    lines: dict[WaitingLine, int]
