"""How the daemon's collectors fare, for the metrics about the daemon itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CollectorPass:
    """How the newest pass of one of the daemon's collectors went.

    Attributes:
        success: It did all it had to do.
        duration_seconds: Wall time it took. Unit: s.
    """

    success: bool
    duration_seconds: float
