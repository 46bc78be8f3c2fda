"""Op censuses and profiler windows as they are handed to the diagnosis: plain numbers."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct, field

from ampwatch.wire.records import CensusSource

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ampwatch.numerics.units.ops import Fallback, OpKind, Phase


class LogitsRead(NamedTuple):
    """The largest attention logit of a module in one iteration.

    Attributes:
        step: Index of the iteration, from 0.
        where: Qualified name of the module.
        op: Base name of the ATen op that made shares of them.
        dtype: Name of the dtype of the logits; of query and key where attention is fused.
        largest: The largest one.
        is_bound: Whether it is not larger than that, computed from the norms of query and key.
        source: ``file:line`` of the user's code; empty if unknown.
        reach: The largest norm of a query times that of a key, up to a factor that stays; 0.0 if unknown.
    """

    step: int
    where: str
    op: str
    dtype: str
    largest: float
    is_bound: bool
    source: str = ""
    reach: float = 0.0


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


TENSOR_CORES_FROM = (7, 0)
"""Compute capability of the first GPUs that have tensor cores."""


class OpKey(NamedTuple):
    """Properties that the ops of one tally have in common.

    Attributes:
        op: Base name of the ATen op (``addmm``).
        kind: What it does.
        module: Qualified name of the innermost module it ran in, empty for the root and
            for what ran outside of all.
        phase: When it ran.
        inputs: Dtypes of its floating-point inputs, each once, sorted.
        dtype: What it computed in: ``float16`` ..., ``tf32`` for float32 that may use TF32;
            of a cast, what it cast from. Empty if it has no floating-point input or output.
        out_dtype: Dtype of its first output; of a cast, what it cast to.
        fallback: Why it ran in float32 although autocast is used.
    """

    op: str
    kind: OpKind
    module: str
    phase: Phase
    inputs: tuple[str, ...]
    dtype: str
    out_dtype: str
    fallback: Fallback


class OpTally(Struct):
    """Ops with one key.

    Attributes:
        calls: How many.
        flops: Floating-point operations.
        tensor_flops: Of those, in a dtype and with dimensions that tensor cores run at speed.
        bytes: Bytes read and written.
        unaligned_flops: FLOPs in a low-precision dtype with a dimension that is not a multiple
            of what ``precision.ops.ALIGNMENT`` says.
        nchw_flops: FLOPs of low-precision convolutions whose input was contiguous and not
            ``channels_last``.
        shape: Of a matmul ``(B, M, N, K)``, of a convolution what the same as a matmul would
            be: the call with most FLOPs, an unaligned one if there is any; empty otherwise.
    """

    calls: int = 0
    flops: int = 0
    tensor_flops: int = 0
    bytes: int = 0
    unaligned_flops: int = 0
    nchw_flops: int = 0
    shape: tuple[int, ...] = ()

    def add(self, other: OpTally) -> None:
        """Add what another tally has counted."""
        self.calls += other.calls
        self.flops += other.flops
        self.tensor_flops += other.tensor_flops
        self.bytes += other.bytes
        self.unaligned_flops += other.unaligned_flops
        self.nchw_flops += other.nchw_flops
        self.shape = self.shape or other.shape


class LoneForward(NamedTuple):
    """A forward pass of a watched model, called without autocast where it was expected.

    Attributes:
        module: Qualified name of the outermost module that was called.
        reason: ``OTHER_THREAD`` or ``DEVICE_TYPE``; ``OUTSIDE_REGION`` if it was called inside of a region in
            the forward pass, and again in backward without one.
        dtype: The dtype that the region elsewhere, of before, or for the other device, asks for.
        device_type: The type of device that region is for.
        calls: How often.
    """

    module: str
    reason: Fallback
    dtype: str
    device_type: str
    calls: int


class OpCensus(Struct):
    """Every op of one iteration, or of the part of it that was seen.

    Attributes:
        step: Index of the iteration.
        source: How the ops were counted.
        tallies: The ops.
        autocast_dtypes: Names of the dtypes of the enabled autocast regions that censuses have
            met so far, this one included.
        device_types: Types of the devices its ops ran on (``cpu``, ``cuda``, ``meta``).
        lone_forwards: Forward passes without the autocast that was expected.
        weight_cast_bytes: Bytes of the low-precision copies that autocast made of parameters
            and that the graph of the forward pass keeps.
        activation_bytes: Bytes of other low-precision tensors that matmuls and
            convolutions of the forward pass read, each counted once.
        duration_s: Wall time of the iteration; NaN if unknown. Unit: s.
    """

    step: int
    source: CensusSource = CensusSource.DISPATCH
    tallies: Mapping[OpKey, OpTally] = field(default_factory=dict)
    autocast_dtypes: Sequence[str] = ()
    device_types: frozenset[str] = frozenset()
    lone_forwards: Sequence[LoneForward] = ()
    weight_cast_bytes: int = 0
    activation_bytes: int = 0
    duration_s: float = float("nan")


class Machine(NamedTuple):
    """Facts about the machine and PyTorch's switches that the diagnosis needs.

    Attributes:
        device_type: Type of the device of the model's first parameter; empty if it has none.
        device_name: Product name of the GPU; empty without one.
        capability: Its compute capability, ``None`` without an NVIDIA GPU.
        cpu_dtypes: Low-precision dtypes that this CPU has instructions for.
        matmul_tf32: Whether float32 matmuls may use TF32.
        convolution_tf32: Whether float32 convolutions may.
        cudnn_benchmark: Whether cuDNN searches for its fastest algorithms.
        peak_flops: What the GPU can multiply at most, by dtype; empty if not known. Unit: FLOP/s.
        memory_bandwidth: Of the GPU's memory; 0 if not known. Unit: B/s.
    """

    device_type: str = ""
    device_name: str = ""
    capability: tuple[int, int] | None = None
    cpu_dtypes: frozenset[str] = frozenset()
    matmul_tf32: bool = False
    convolution_tf32: bool = True
    cudnn_benchmark: bool = False
    peak_flops: Mapping[str, float] = MappingProxyType({})
    memory_bandwidth: float = 0.0

    @property
    def has_no_tensor_cores(self) -> bool:
        """Whether it is known to have none: a CPU, or a GPU from before they were built in."""
        is_older = self.capability is not None and self.capability < TENSOR_CORES_FROM
        return self.device_type == "cpu" or is_older


class LayerShape(NamedTuple):
    """The weight of a layer that multiplies matrices, as it is at set-up.

    Attributes:
        module: Qualified name of the module.
        kind: ``MATMUL`` or ``CONVOLUTION``.
        dims: Input and output features or channels of one group.
        numel: Elements of the weight.
        dtype: Name of its dtype.
        device_type: Type of its device.
    """

    module: str
    kind: OpKind
    dims: tuple[int, int]
    numel: int
    dtype: str
    device_type: str


class TrainingMoved(NamedTuple):
    """The training is not where it was at set-up.

    Attributes:
        machine: What it runs on now.
        layers: The weights of the model's layers.
    """

    machine: Machine
    layers: Sequence[LayerShape]


class KernelTime(NamedTuple):
    """One kernel of a profiler window.

    Attributes:
        name: Its name, demangled.
        op: Base name of the ATen op that launched it; empty if unknown.
        unit: ``tensor``, ``cuda``, ``unknown``, ``other``.
        dtype: What the name says; empty if nothing.
        align: Alignment in elements that it assumes, 0 if the name does not say.
        lags: Whether it is of an older generation than the device.
        gemv: Whether it multiplies by a vector.
        seconds: Time in the window. Unit: s.
    """

    name: str
    op: str
    unit: str
    dtype: str
    align: int
    lags: bool
    gemv: bool
    seconds: float


class Window(Struct):
    """One valid profiler window on a GPU.

    Attributes:
        step: First profiled iteration.
        iterations: How many were profiled.
        wall_s: Their wall time. Unit: s.
        busy_s: Time of it in which a kernel ran. Unit: s.
        kernels: The kernels, the longest first.
        waited_s: Time of it in which the host waited for the device. Unit: s.
    """

    step: int
    iterations: int
    wall_s: float
    busy_s: float
    kernels: Sequence[KernelTime]
    waited_s: float = 0.0
