"""The record types: the only thing the training process and the daemon share.

A sensor's observation becomes a record, the ring carries records, the daemon
folds them into state. Plain values only. No torch here, and no Prometheus.

Totals in a record are *cumulative since the run began*, so that a reader that
came late, or was lapped by the writer, still knows the truth.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ampwatch.numerics.exponents import ExponentHistogram
    from ampwatch.numerics.units.ops import Fallback, OpKind, Phase


class SkipClass(IntEnum):
    """Why a scaled optimizer step was skipped; ``NONE`` for a step that was not.

    ``CALIBRATING``: before the first unskipped run of steps, the search for a
    fitting scale. ``PROBE``: just after a growth of the scale; one in
    ``growth_interval + 1`` steps is healthy. ``UNPROVOKED``: neither of the
    two. ``STORM``: one of several consecutive skips that nothing explains.
    """

    NONE = 0
    CALIBRATING = 1
    PROBE = 2
    UNPROVOKED = 3
    STORM = 4

    @property
    def label(self) -> str:
        """The class as a Prometheus label value and as users read it."""
        return self.name.lower()


SKIP_CLASSES = tuple(c for c in SkipClass if c is not SkipClass.NONE)
"""The classes of skipped steps, in the order in which totals per class are stored."""


class Topic(IntEnum):
    """What the values of a measurement are.

    ``GRADIENT``: of parameters, before they are unscaled. ``ACTIVATION``: outputs of leaf
    modules. ``ACTIVATION_GRADIENT``: gradients of those. ``WEIGHT``: parameters.
    ``UPDATE``: what an optimizer step changed, as a share of the weight. ``BUFFER``: buffers.
    """

    GRADIENT = 0
    ACTIVATION = 1
    ACTIVATION_GRADIENT = 2
    WEIGHT = 3
    UPDATE = 4
    BUFFER = 5

    @property
    def label(self) -> str:
        """The topic as a Prometheus label value and as users read it."""
        return self.name.lower()


ALL_MODULES = "*"
"""Stands for all modules together, where a record names a module."""


class CensusSource(IntEnum):
    """How ops were counted.

    ``DISPATCH``: one by one as they ran. ``PROFILER``: from the events of a profiler window.
    ``FORCED_EAGER``: one by one, in an iteration whose compiled code was run eagerly for it.
    """

    DISPATCH = 0
    PROFILER = 1
    FORCED_EAGER = 2

    @property
    def label(self) -> str:
        """The source as a Prometheus label value and as users read it."""
        return self.name.lower()


class WindowSkip(IntEnum):
    """Why a profiler window that was due was not opened.

    ``PROFILER``: somebody else profiles. ``CAPTURE``: a CUDA graph is being captured.
    ``BUDGET``: what windows have cost is not paid back yet. ``DRAG``: steps stayed slower
    after the last one. ``MEMORY``: windows made the process grow.
    """

    PROFILER = 0
    CAPTURE = 1
    BUDGET = 2
    DRAG = 3
    MEMORY = 4

    @property
    def label(self) -> str:
        """The reason as a Prometheus label value and as users read it."""
        return self.name.lower()


class RunState(str, Enum):
    """What a rank is doing, as the daemon sees it."""

    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    STALE = "stale"


class Severity(str, Enum):
    """How bad a finding is; ``info`` is never an alarm."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """Who writes a ring; fixed for the life of the file.

    Attributes:
        run: The user's name of the run, stable between restarts.
        rank: Global rank in the process group, 0 without one.
        local_rank: Rank on this host.
        world_size: Number of ranks in the process group, 1 without one.
        pid: Process id of the writer, in its own pid namespace.
        host: Host name of the writer.
        started_ns: Unix time of ``ampwatch.monitor()``. Unit: ns.
        version: Version of ampwatch that writes.
    """

    run: str
    rank: int
    local_rank: int
    world_size: int
    pid: int
    host: str
    started_ns: int
    version: str


# The two records of every step are not frozen: a frozen dataclass takes four times as
# long to make, on the training thread.


@dataclass(slots=True)
class StepRecord:
    """One iteration: everything between two updates of the scaler.

    Without an enabled scaler an iteration ends with the step of the first
    optimizer that was seen.

    Attributes:
        step: Index of the iteration since ``monitor()``, from 0.
        time_ns: Unix time at the end of the iteration. Unit: ns.
        duration_s: Wall time since the end of the iteration before. Unit: s.
            NaN for the first one.
        loss: Mean of the losses handed to ``scaler.scale()`` in this iteration,
            unscaled. Only meaningful if ``num_losses`` is positive.
        num_losses: How many losses were handed over in this iteration.
        loss_scale: The scale after the update; NaN without an enabled scaler.
        growth_tracker: Consecutive unskipped steps the scaler has counted after
            the update; -1 without an enabled scaler.
        skip_class: Why the iteration was skipped, if any of its optimizers was.
        consecutive_skips: Length of the run of skipped iterations that ends here.
        grew: The scale was multiplied by the growth factor.
        backed_off: The scale was multiplied by the backoff factor.
        set_by_hand: The scale changed in another way than the scaler's own.
        total_growths: Growths so far.
        total_backoffs: Backoffs so far.
        total_set_by_hand: Changes by hand so far.
        total_nonfinite_losses: Iterations so far in which a loss was NaN or infinite.
        total_observations_dropped: Iterations so far whose values were not read,
            because the device was too far behind.
        total_sensor_errors: Exceptions so far that the guard kept from training.
        overhead_ns: Host time so far that ampwatch spent on the training thread. Unit: ns.
    """

    step: int
    time_ns: int
    duration_s: float
    loss: float
    num_losses: int
    loss_scale: float
    growth_tracker: int
    skip_class: SkipClass
    consecutive_skips: int
    grew: bool
    backed_off: bool
    set_by_hand: bool
    total_growths: int
    total_backoffs: int
    total_set_by_hand: int
    total_nonfinite_losses: int
    total_observations_dropped: int
    total_sensor_errors: int
    overhead_ns: int


@dataclass(slots=True)
class OptimizerRecord:
    """What one optimizer did so far; written after each iteration that used it.

    Attributes:
        step: Index of the iteration.
        index: Which optimizer: ``optimizer:<index>`` in findings. ``OTHER_OPTIMIZERS``
            stands for all those beyond the limit of tracked optimizers.
        skipped: Its step of this iteration was skipped.
        total_steps: Steps attempted so far, applied and skipped.
        total_skipped: Steps skipped so far, per class in the order of ``SKIP_CLASSES``.
    """

    step: int
    index: int
    skipped: bool
    total_steps: int
    total_skipped: tuple[int, int, int, int]


OTHER_OPTIMIZERS = 255
"""Index of the record that stands for every optimizer beyond ``MAX_OPTIMIZERS``."""

MAX_OPTIMIZERS = 8
"""Optimizers tracked one by one. Fused-backward recipes make one per parameter;
series per optimizer must stay bounded."""


@dataclass(slots=True)
class RangeRecord:
    """The exponents of one module's tensors, or of all together, in a sampled iteration.

    Attributes:
        step: Index of the iteration.
        time_ns: Unix time of the measurement. Unit: ns.
        topic: What the values are. Those of ``UPDATE`` are magnitudes of updates as a
            share of the weight, of a subsample; its zeros are elements that did not change.
        module: Qualified name of the module, empty for the root; ``ALL_MODULES`` for the
            sum over all.
        dtype: Name of the dtype of the measured tensors; ``mixed`` if there are several.
        num_tensors: How many tensors were measured.
        loss_scale: What gradients and gradients of activations are multiplied by; 1
            without loss scaling, and for everything else.
        total_nans: NaN elements seen under this topic and module so far.
        total_infs: Infinite elements seen under this topic and module so far.
        histogram: The exponents.
    """

    step: int
    time_ns: int
    topic: Topic
    module: str
    dtype: str
    num_tensors: int
    loss_scale: float
    total_nans: int
    total_infs: int
    histogram: ExponentHistogram


@dataclass(slots=True)
class SamplingRecord:
    """What sampling has looked at so far; written after each sampled iteration.

    Attributes:
        step: Index of the iteration.
        interval: Steps from one sampled iteration to the next, as it is now.
        samples: Sampled iterations so far, per topic in the order of ``Topic``.
        samples_dropped: Measurements so far that were not read, because the device was
            too far behind.
        tensors_refused: Tensors in the newest sample that cannot be measured (integer,
            complex, meta ...).
        modules_left_out: Modules in the newest sample beyond the limit of records.
        gradient_elements: Gradient elements looked at so far.
        gradient_zeros: Of those, exact zeros.
        gradient_underflow: Of those, zero only because of the dtype of autocast at the loss
            scale of their time: it would flush them, or has flushed them.
        gradient_subnormal: Of those, subnormal in the dtype of autocast at that scale.
        gradient_nans: Of those, NaN.
        gradient_infs: Of those, infinite.
        parameter_nonfinite: NaN and infinite elements of parameters in the newest look;
            -1 before the first.
        buffer_nonfinite: Likewise of buffers.
        device_ns: Device time of the measurements so far; 0 on a CPU. Unit: ns.
    """

    step: int
    interval: int
    samples: tuple[int, int, int, int, int, int]
    samples_dropped: int
    tensors_refused: int
    modules_left_out: int
    gradient_elements: int
    gradient_zeros: int
    gradient_underflow: int
    gradient_subnormal: int
    gradient_nans: int
    gradient_infs: int
    parameter_nonfinite: int
    buffer_nonfinite: int
    device_ns: int


class OpTotal(NamedTuple):
    """Ops of one kind and dtype, counted so far.

    Attributes:
        kind: What the ops do; not ``CAST``.
        dtype: What they computed in: ``float16`` ..., ``tf32`` for float32 that may use TF32.
        calls: How many.
        flops: Floating-point operations, 0 for kinds that have none to speak of.
        tensor_flops: Of those, in a dtype and with dimensions that tensor cores run at speed.
        bytes: Bytes read and written.
    """

    kind: OpKind
    dtype: str
    calls: int
    flops: int
    tensor_flops: int
    bytes: int


class CastTotal(NamedTuple):
    """Casts from one dtype to another, counted so far.

    Attributes:
        from_dtype: Name of the dtype before.
        to_dtype: Name of the dtype after.
        calls: How many.
        bytes: Bytes read and written.
    """

    from_dtype: str
    to_dtype: str
    calls: int
    bytes: int


class FallbackTotal(NamedTuple):
    """Ops of the forward pass that ran in float32 although autocast is used, counted so far.

    Attributes:
        reason: Why.
        calls: How many.
        flops: Their floating-point operations.
    """

    reason: Fallback
    calls: int
    flops: int


class OpRow(NamedTuple):
    """Ops of the newest census that have everything below in common.

    Attributes:
        op: Base name of the ATen op (``addmm``); empty in a row of a module, which adds up
            all ops that have FLOPs, all casts, or all others.
        module: Qualified name of the module, empty for the root; ``ALL_MODULES`` in a row of an op.
        kind: What the ops do; in a row of a module ``MATMUL`` stands for all that have FLOPs,
            ``OTHER`` for those that have none and are no casts.
        phase: When they ran.
        inputs: Dtypes of their floating-point inputs, joined by ``+``; empty in a row of a module.
        dtype: What they computed in; of casts, what they cast from.
        out_dtype: Dtype of their first output; of casts, what they cast to.
        fallback: Why they ran in float32 although autocast is used; the reason of most of
            the FLOPs in a row of a module.
        calls: How many.
        flops: Floating-point operations.
        tensor_flops: Of those, in a dtype and with dimensions that tensor cores run at speed.
        bytes: Bytes read and written.
    """

    op: str
    module: str
    kind: OpKind
    phase: Phase
    inputs: str
    dtype: str
    out_dtype: str
    fallback: Fallback
    calls: int
    flops: int
    tensor_flops: int
    bytes: int


@dataclass(slots=True)
class CensusRecord:
    """Which op ran in which dtype: totals so far, and the table of the newest census.

    Attributes:
        step: Index of the iteration of the newest census.
        time_ns: Unix time at its end. Unit: ns.
        source: How the ops of the newest census were counted.
        iterations: Iterations counted so far.
        ops: Ops so far by kind and dtype.
        casts: Casts so far by dtypes.
        fallbacks: Fallbacks to float32 so far by reason.
        rows: The newest census by op and by module, those with the most FLOPs and bytes first.
        rows_left_out: Rows beyond what a record holds.
    """

    step: int
    time_ns: int
    source: CensusSource
    iterations: int
    ops: tuple[OpTotal, ...]
    casts: tuple[CastTotal, ...]
    fallbacks: tuple[FallbackTotal, ...]
    rows: tuple[OpRow, ...]
    rows_left_out: int


KERNEL_UNITS = ("tensor", "cuda", "unknown", "other", "cpu")
"""What a kernel ran on, as ``KernelTotal`` says."""


class KernelTotal(NamedTuple):
    """Time of kernels of one unit and dtype in profiled iterations, so far.

    Attributes:
        unit: ``tensor``, ``cuda``, ``unknown`` (all three: matmul-like), ``other``; ``cpu`` for
            ops that ran on the CPU.
        dtype: What the name or, for ``cpu``, the inputs say; empty if nothing does.
        nanoseconds: Their time. Unit: ns.
    """

    unit: str
    dtype: str
    nanoseconds: int


class KernelRow(NamedTuple):
    """One kernel of the newest profiler window; for a CPU one op.

    Attributes:
        name: Its name, demangled, cut to 200 characters.
        op: Base name of the ATen op that launched it, empty if unknown.
        unit: As of ``KernelTotal``.
        dtype: As of ``KernelTotal``.
        family: Which library or generator it comes from; empty if unknown.
        rule: The rule of the classifier that decided.
        arch: Compute capability it was made for (``90``), 0 if the name does not say.
        align: Alignment in elements that it assumes, 0 if the name does not say.
        calls: How many launches.
        nanoseconds: Their time. Unit: ns.
    """

    name: str
    op: str
    unit: str
    dtype: str
    family: str
    rule: str
    arch: int
    align: int
    calls: int
    nanoseconds: int


@dataclass(slots=True)
class WindowRecord:
    """Profiler windows: totals so far, and the kernels of the newest.

    Attributes:
        step: First profiled iteration of the newest window; of a record that only counts what
            was skipped, the open iteration.
        time_ns: Unix time at which it was written. Unit: ns.
        windows: Windows so far.
        invalid: Of those, windows that lost data; nothing of them is in the totals.
        iterations: Profiled iterations so far, without those of invalid windows.
        skipped: Windows not opened so far, per reason in the order of ``WindowSkip``.
        start_ns: Time so far to start the profiler, the first time excluded. Unit: ns.
        run_ns: Time so far by which profiled iterations were longer than usual. Unit: ns.
        stop_ns: Time so far to stop it. Unit: ns.
        walk_ns: Time so far to read its events. Unit: ns.
        first_ns: Time of the first start, which loads the profiler. Unit: ns.
        drag: Usual step time after the newest window over the one before; NaN if not known.
        memory_bytes: What the resident memory grew by over the windows so far. Unit: bytes.
        busy_ns: Time so far in which the device ran a kernel. Unit: ns.
        wall_ns: Time so far of profiled iterations. Unit: ns.
        misaligned_ns: Time so far of matmul kernels that assume less than full alignment.
        lagging_ns: Time so far of matmul kernels made for an older architecture.
        gemv_ns: Time so far of matrix-vector kernels on float16 or bfloat16.
        totals: Time of kernels so far by unit and dtype.
        kernels: The kernels of the newest window, the longest first.
        kernels_left_out: Kernels beyond what a record holds.
    """

    step: int
    time_ns: int
    windows: int
    invalid: int
    iterations: int
    skipped: tuple[int, int, int, int, int]
    start_ns: int
    run_ns: int
    stop_ns: int
    walk_ns: int
    first_ns: int
    drag: float
    memory_bytes: int
    busy_ns: int
    wall_ns: int
    misaligned_ns: int
    lagging_ns: int
    gemv_ns: int
    totals: tuple[KernelTotal, ...]
    kernels: tuple[KernelRow, ...]
    kernels_left_out: int


@dataclass(frozen=True, slots=True)
class FactsRecord:
    """What does not change from step to step; written at the start and on change.

    Attributes:
        facts: Name to value, both short strings. The names are those of
            ``sensors.run_facts`` and become labels of ``ampwatch_run_info``.
    """

    facts: dict[str, str]


@dataclass(slots=True)
class Finding:
    """Something that went wrong, named.

    Attributes:
        kind: Slug of the kind of failure; never changes between releases.
        severity: How bad it is.
        where: Qualified name of a module (empty for the root module), ``param:<name>``,
            ``buffer:<name>``, ``optimizer:<index>``, ``loss``, ``api`` or ``env``.
        op: Base name of the ATen op at fault, where one is.
        phase: ``forward``, ``backward``, ``optimizer``, ``eval`` or ``config``.
        dtype: Name of the dtype at fault (``float16``), where one is.
        first_step: Iteration in which it was first seen, from 0.
        last_step: Iteration in which it was last seen.
        count: In how many iterations it was seen.
        evidence: The numbers it rests on, by name.
        summary: One sentence: what happened, where, since when.
        advice: What to change, naming the API.
        root: False when another finding explains this one.
        caused_by: Kind and place of that finding, as ``kind@where``; empty for a root.
        source: ``file:line`` of the user's code, where known.
    """

    kind: str
    severity: Severity
    where: str
    summary: str
    advice: str
    op: str = ""
    phase: str = ""
    dtype: str = ""
    first_step: int = 0
    last_step: int = 0
    count: int = 1
    evidence: dict[str, float] = field(default_factory=dict)
    root: bool = True
    caused_by: str = ""
    source: str = ""

    @property
    def key(self) -> str:
        """Identity of the finding within its run: ``kind@where``."""
        return f"{self.kind}@{self.where}"


@dataclass(frozen=True, slots=True)
class FindingRecord:
    """A finding that was made or has changed; the newest of one key holds.

    Attributes:
        finding: The finding as it stands.
    """

    finding: Finding


@dataclass(frozen=True, slots=True)
class EndRecord:
    """The last record of a run that could still write one.

    Attributes:
        state: ``FINISHED`` or ``FAILED``.
        reason: Why it ended, in words: empty, or the exception that ended the loop.
        time_ns: Unix time. Unit: ns.
    """

    state: RunState
    reason: str
    time_ns: int


Record = (
    StepRecord
    | OptimizerRecord
    | RangeRecord
    | SamplingRecord
    | CensusRecord
    | WindowRecord
    | FactsRecord
    | FindingRecord
    | EndRecord
)
