"""The success of the daemon's collectors, for the metrics about the daemon itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CollectorPass:
    """The newest pass of one of the daemon's collectors.

    Attributes:
        success: It did all it had to do.
        duration_seconds: Wall time it took. Unit: s.
    """

    success: bool
    duration_seconds: float
