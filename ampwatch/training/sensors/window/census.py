"""Op census of an iteration, made from the events of a profiler window.

Ops are counted in this way where nothing may stand between the training and the dispatcher: at
``standard``, and where code is compiled. The profiler does not record the module, the reason why
an op ran in float32 and the bytes that it wrote. Ops that were fused into compiled kernels are no
ops any more.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ampwatch.diagnosis.evidence.ops import OpCensus, OpKey, OpTally
from ampwatch.numerics.formats import PLAIN, SCALES
from ampwatch.numerics.units.ops import ALIGNMENT, TENSOR_DTYPES, Fallback, OpKind, Phase
from ampwatch.training.kernels.dtypes import NAMES, dtypes_of, promoted
from ampwatch.training.ops.flops import attention_flops
from ampwatch.training.ops.info import op_info
from ampwatch.training.private import OpOverloadPacket, has_kernel
from ampwatch.wire.records import CensusSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.training.sensors.window.events import Node

    Shape = Sequence[int]

_DTYPES = {
    fmt.profiler_name or f"c10::{fmt.torch_name}": dtype
    for dtype, fmt in dtypes_of((*PLAIN, *SCALES)).items()
}
"""Dtypes as the profiler writes them, in lower case."""

_CODES = {5: torch.float16, 6: torch.float32, 7: torch.float64, 15: torch.bfloat16}
"""Codes of dtypes among the arguments of casts (``c10::ScalarType``)."""

_TO_COPY = "_to_copy"
_COPY = "copy_"

_COMPOSITE = "CompositeImplicitAutograd"
"""The dispatch key of ops that are made of others."""

_BACKWARD = "autograd::engine::evaluate_function"
_OPTIMIZER = "Optimizer."


class _NamedOp(NamedTuple):
    """An op, by the name of an event."""

    name: str
    kind: OpKind


def census_of(
    nodes: Sequence[Node], *, step: int, iterations: int, duration_s: float, device_type: str
) -> OpCensus:
    """Count the ops of a window; of several iterations the mean.

    Args:
        nodes: The events on the CPU, each after the one that called it.
        step: First profiled iteration.
        iterations: Number of profiled iterations.
        duration_s: Wall time of all. Unit: s.
        device_type: Type of the device that the model is on.
    """
    tallies: dict[OpKey, OpTally] = {}
    counted: set[int] = set()
    for node in nodes:
        if node.parent is not None and id(node.parent) in counted:
            counted.add(id(node))  # part of an op that is counted
            continue
        op = _op_of(node.name)
        if op is not None:
            counted.add(id(node))
            _count(tallies, op, node)
    for tally in tallies.values():
        for name in ("calls", "flops", "tensor_flops", "bytes", "unaligned_flops"):
            setattr(tally, name, round(getattr(tally, name) / iterations))
    return OpCensus(
        step=step,
        source=CensusSource.PROFILER,
        tallies={key: tally for key, tally in tallies.items() if tally.calls},
        device_types=frozenset({device_type}),
        duration_s=duration_s / iterations,
    )


@lru_cache(maxsize=4096)
def _op_of(event_name: str) -> _NamedOp | None:
    """Return the op that an event stands for; ``None`` for one that only calls others."""
    space, _, name = event_name.partition("::")
    packet = getattr(getattr(torch.ops, space, None), name, None) if name.isidentifier() else None
    if not isinstance(packet, OpOverloadPacket):
        return None
    # Events do not name the overload; all overloads of an op are of one kind.
    overloads: list[str] = packet.overloads()
    info = op_info(getattr(packet, overloads[0]))
    if info.is_ignored or _is_composite(event_name, overloads):
        return None
    return _NamedOp(info.name, info.kind)


def _is_composite(name: str, overloads: Sequence[str]) -> bool:
    """Whether all that an op does, in the first of its overloads, is to call other ops."""
    for overload in overloads:
        full = name if overload == "default" else f"{name}.{overload}"
        try:
            return bool(has_kernel(full, _COMPOSITE))
        except RuntimeError:  # an overload of TorchScript's, without a kernel
            continue
    return False


def _count(tallies: dict[OpKey, OpTally], op: _NamedOp, node: Node) -> None:
    event = node.event
    dtypes = [_DTYPES.get(text.lower()) for text in event.dtypes()]
    shapes = event.shapes()
    inputs, dtype = promoted(tuple(d for d in dtypes if d is not None))
    kind = op.kind
    out_dtype = dtype
    moved = _bytes(dtypes, shapes)
    if kind.has_flops and (narrow := _narrowest(inputs)):
        # Attention also reads logarithms of sums, and float8 products read scales: those are
        # float32, and not the dtype that is multiplied.
        dtype = narrow
    if kind is OpKind.CAST:
        source, target = _cast(op.name, dtypes, event)
        is_cast = source is not None and target is not None and source is not target
        kind = OpKind.CAST if is_cast else OpKind.COPY
        if source is not None and target is not None:
            dtype = NAMES[source]
            out_dtype = NAMES[target]
            moved = prod(shapes[0]) * (source.itemsize + target.itemsize)
    phase = _phase(node)
    key = OpKey(op.name, kind, "", phase, inputs, dtype, out_dtype, Fallback.NONE)
    tally = tallies.setdefault(key, OpTally())
    tally.calls += 1
    tally.bytes += moved
    if kind.has_flops:
        flops = _flops(node) or flops_of_shapes(op.name, kind, shapes)
        _add_flops(tally, dtype, flops, _matmul(op, shapes))


def _narrowest(inputs: Sequence[str]) -> str:
    """Return the low-precision dtype among those of inputs; empty without one."""
    return next((name for name in inputs if name in TENSOR_DTYPES), "")


def _flops(node: Node) -> int:
    """Return the FLOPs of an op; for a convolution the events that have called it know them."""
    found = int(node.event.flops())
    above = node.parent
    while not found and above is not None and above.name.startswith("aten::conv"):
        found = int(above.event.flops())
        above = above.parent
    return found


def flops_of_shapes(name: str, kind: OpKind, shapes: Sequence[Shape]) -> int:
    """Return the floating-point operations of attention, and of the backward of convolutions.

    Args:
        name: Base name of the op.
        kind: Kind of the op.
        shapes: Shapes of the inputs, in their order; empty for an input that is no tensor.

    Returns:
        The FLOPs, 2 for a multiplication with an addition; 0 for other ops, and for shapes that
        do not fit the op.
    """
    is_backward = name.endswith("backward")
    tensors = [shape for shape in shapes if shape]
    if kind is OpKind.ATTENTION and len(tensors) > 2 + is_backward:
        operands = tensors[is_backward:][:3]
        return attention_flops(name, *operands) if min(map(len, operands)) > 2 else 0
    if kind is OpKind.CONVOLUTION and is_backward and len(tensors) > 2:
        gradient, _, weight = tensors[:3]
        # One product for the gradient of the image, one for that of the weight.
        return 2 * 2 * prod(gradient) * prod(weight[1:])
    return 0


def _matmul(op: _NamedOp, shapes: Sequence[Any]) -> tuple[int, int, int, int] | None:
    """Return ``(B, M, N, K)``, ``None`` for an op that is no product of two matrices."""
    operands = [shape for shape in shapes if len(shape) >= 2][-2:]
    if op.kind is not OpKind.MATMUL or len(operands) < 2:
        return None
    a, b = operands
    return prod(a[:-2]), a[-2], b[-1], a[-1]


def _add_flops(
    tally: OpTally, dtype: str, flops: int, shape: tuple[int, int, int, int] | None
) -> None:
    tally.flops += flops
    if shape is None or dtype not in TENSOR_DTYPES:
        return
    _, m, n, k = shape
    unit = ALIGNMENT.get(dtype, 1)
    # It is not recorded which of the operands is transposed, so either of M and K may be the
    # dimension whose elements are adjacent.
    if n % unit == 0 and (k % unit == 0 or m % unit == 0):
        tally.tensor_flops += flops
    else:
        tally.unaligned_flops += flops
    tally.shape = tally.shape or shape


def _cast(
    name: str, dtypes: Sequence[torch.dtype | None], event: Any
) -> tuple[torch.dtype | None, torch.dtype | None]:
    """Return the dtypes from which and to which an op casts, if it may cast."""
    if name == _COPY and len(dtypes) > 1:
        return dtypes[1], dtypes[0]
    if name == _TO_COPY and dtypes:
        arguments = event.concrete_inputs()
        code = arguments[1] if len(arguments) > 1 else None
        return dtypes[0], dtypes[0] if code is None else _CODES.get(code)
    return None, None


def _bytes(dtypes: Sequence[torch.dtype | None], shapes: Sequence[Any]) -> int:
    """Return the bytes of the floating-point inputs; what an op writes is not recorded."""
    return sum(
        prod(shape) * dtype.itemsize
        for dtype, shape in zip(dtypes, shapes, strict=False)
        if dtype is not None and all(isinstance(size, int) for size in shape)
    )


def _phase(node: Node) -> Phase:
    for above in node.ancestors:
        if above.name.startswith(_BACKWARD):
            return Phase.BACKWARD
        if above.name.startswith(_OPTIMIZER):
            return Phase.OPTIMIZER
    return Phase.FORWARD
