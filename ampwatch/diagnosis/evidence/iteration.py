"""Iterations as the sensors hand them to the diagnosis: plain numbers, one object each."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct, field

from ampwatch.wire.records import NO_PHASES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from ampwatch.diagnosis.evidence.ops import OpCensus, Window
    from ampwatch.numerics.blocks import BlockHistogram
    from ampwatch.numerics.exponents import ExponentHistogram
    from ampwatch.wire.records import Phases, Topic


class Attention(NamedTuple):
    """Requests for the next iteration, whatever the governor has planned; probes are planned by it.

    Attributes:
        trace: Something has failed: follow non-finite values from op to op.
        inputs: Something failed lately: add up what the models are given.
        ops: Something may be rounding away: have all ops observed.
        focus: Names of the modules whose outputs are measured.
        failed: The newest iteration that has failed and whose calls are to be made again; -1
            without one.
        failed_scale: The loss scale of that iteration; NaN without one.
        is_unexplained: Whether neither calibration nor a growth of the scale explains that it failed.
        is_known: Whether a failure goes on that is not new any more: nothing is to be made again for now.
        probe_every: Iterations of which the operands of ops are to be read in one; 0 for none.
    """

    trace: bool = False
    inputs: bool = False
    ops: bool = False
    focus: AbstractSet[str] = frozenset()
    failed: int = -1
    failed_scale: float = math.nan
    is_unexplained: bool = False
    is_known: bool = False
    probe_every: int = 0

    @property
    def is_closer(self) -> bool:
        """Whether the iteration itself is to be observed more closely than planned."""
        return self.trace or self.inputs or self.ops or bool(self.focus)


class StepTime(NamedTuple):
    """The time of one iteration as the host sees it.

    Attributes:
        phases: Where it went, by phase. Unit: s.
        samples: Samples so far, as the program has reported; -1 without a word.
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


class ScalerSettings(NamedTuple):
    """The scaler's settings that decide how the scale moves.

    Attributes:
        growth_factor: Factor of a growth.
        backoff_factor: Factor of a backoff.
        growth_interval: Consecutive unskipped steps before a growth; infinite where it is not known,
            as of some scalers that are not torch's. Unit: steps.
    """

    growth_factor: float
    backoff_factor: float
    growth_interval: float

    @property
    def knows_growth(self) -> bool:
        """Whether it is known when the scale grows."""
        return math.isfinite(self.growth_interval)


class TensorRange(NamedTuple):
    """The exponents of one tensor, or of all calls of one module, in one iteration.

    Attributes:
        topic: What the values are.
        name: Qualified name of the parameter, buffer or module.
        module: Qualified name of the module it belongs to; empty for the root.
        dtype: Name of its dtype.
        histogram: The exponents.
        scaled: Whether the values are multiplied by the loss scale.
        span: Of an update, how many iterations it is the sum of.
        norm: L2 norm of a gradient, scaled as it is; NaN where it was not measured.
        blocks: Its blocks, of each size; none where they were not measured.
        is_input: Whether it is what the module was given, instead of what it returned.
    """

    topic: Topic
    name: str
    module: str
    dtype: str
    histogram: ExponentHistogram
    scaled: bool = False
    span: int = 1
    norm: float = math.nan
    blocks: tuple[BlockHistogram, ...] = ()
    is_input: bool = False


class SamplingCost(NamedTuple):
    """Cost and gaps of sampling, so far.

    Attributes:
        interval: Iterations between the two newest samples.
        dropped: Measurements that were given up.
        refused: Tensors of the newest sample that cannot be measured.
        device_ns: Device time of the measurements. Unit: ns.
    """

    interval: int
    dropped: int
    refused: int
    device_ns: int


class Iteration(Struct):
    """One iteration; complete once its values have reached the host.

    Not frozen: it is begun when the iteration ends and completed when the values of
    the device arrive.

    Attributes:
        step: Index of the iteration since ``monitor()``, from 0.
        time_ns: Unix time at its end. Unit: ns.
        duration_s: Wall time since the end of the one before; NaN for the first. Unit: s.
        loss: Mean of the unscaled losses handed to ``scaler.scale()``.
        num_losses: How many losses that were; 0 means that ``loss`` means nothing.
        scale_before: Scale before the update; NaN without an enabled scaler.
        loss_scale: Scale after the update; NaN without an enabled scaler.
        growth_tracker: The scaler's growth tracker after the update; -1 without one.
        scaler: Settings of the enabled scaler, ``None`` without one.
        scale_given: ``update(new_scale)`` was called, so that the scaler did not decide.
        found_inf: Per optimizer stepped through the scaler: were its gradients non-finite?
        other_found_inf: Non-finite gradients of an optimizer that was unscaled and not
            stepped; they back the scale off anyway.
        applied_directly: Optimizers whose step was taken without the scaler, once per step.
        scheduler_stepped: Optimizers whose learning-rate scheduler was stepped between
            their previous step and the one in this iteration.
        loss_dtype: ``float16`` if any loss handed to ``scaler.scale()`` is, else the name of
            the newest one's dtype; empty if there was none.
        topics: What was measured in this iteration, whether or not it had any tensors.
        incomplete: Those of them of which a tensor was not measured, or not as it came to be.
        is_outcome_known: Whether it is known if the step was taken: what ended it may not have been able to tell.
        ranges: The measurements.
        inputs: Those of what layers were given: nothing is judged by them.
        census: The ops, if they were counted.
        window: The kernels, if a profiler window has ended with this iteration.
        time: Where its time went.
    """

    step: int
    time_ns: int
    duration_s: float
    loss: float
    num_losses: int
    scale_before: float
    loss_scale: float
    growth_tracker: int
    scaler: ScalerSettings | None
    scale_given: bool
    found_inf: dict[int, bool]
    other_found_inf: bool
    applied_directly: tuple[int, ...]
    scheduler_stepped: frozenset[int]
    loss_dtype: str = ""
    topics: frozenset[Topic] = frozenset()
    incomplete: frozenset[Topic] = frozenset()
    is_outcome_known: bool = True
    ranges: Sequence[TensorRange] = field(default=())
    inputs: Sequence[TensorRange] = field(default=())
    census: OpCensus | None = None
    window: Window | None = None
    time: StepTime = NO_TIME
