"""Evidence of where the time of a step goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ampwatch.wire.records import NO_PHASES

if TYPE_CHECKING:
    from ampwatch.wire.records import Phases


class StepTime(NamedTuple):
    """The time of one iteration as the host sees it.

    Attributes:
        phases: Where it went, by phase. Unit: s.
        samples: Samples so far, as the program has said; -1 without a word.
        tokens: Tokens so far, likewise.
        cpu_ns: CPU time of the training thread so far; -1 where it is not known. Unit: ns.
        run_delay_ns: Time so far in which it had no core, likewise. Unit: ns.
        numel: Elements of what the model was called with, all calls together; 0 where it is not known.
        workers: Workers of the DataLoaders that were asked; -1 without one, or if they have different numbers.
        is_ahead: Whether the training is on a device: then the host is ahead of it, and its times say
            nothing of what a step takes.
    """

    phases: Phases = NO_PHASES
    samples: int = -1
    tokens: int = -1
    cpu_ns: int = -1
    run_delay_ns: int = -1
    numel: int = 0
    workers: int = -1
    is_ahead: bool = False


class DevicePhases(NamedTuple):
    """The time of one iteration on its device.

    Attributes:
        step: Index of the iteration.
        phases: Where it went, by phase. Unit: s.
    """

    step: int
    phases: Phases


NO_TIME = StepTime()
"""The time of an iteration that nobody has timed."""
