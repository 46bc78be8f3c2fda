"""The op census of an iteration, made from the events of a profiler window.

This is how ops are counted where nothing may stand between the training and the dispatcher: at
``standard``, and where code is compiled. What the profiler does not record is not there: the
module, why an op ran in float32, the bytes that it wrote. Ops that were fused into compiled
kernels are no ops any more.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ampwatch.diagnosis.evidence.ops import OpCensus, OpKey, OpTally
from ampwatch.numerics.formats import PLAIN, SCALES
from ampwatch.numerics.units.ops import ALIGNMENT, TENSOR_DTYPES, Fallback, OpKind, Phase
from ampwatch.training.kernels.dtypes import dtypes_of
from ampwatch.training.model.dtypes import NAMES, promoted
from ampwatch.training.ops.info import op_info
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

_TO_COPY, _COPY = "_to_copy", "copy_"

_COMPOSITE = "CompositeImplicitAutograd"
"""The dispatch key of ops that are made of others."""

_BACKWARD = "autograd::engine::evaluate_function"
_OPTIMIZER = "Optimizer."


class _NamedOp(NamedTuple):
    """What is known of an op by its name."""

    name: str
    kind: OpKind


def census_of(
    nodes: Sequence[Node], *, step: int, iterations: int, duration_s: float, device_type: str
) -> OpCensus:
    """Count the ops of a window; of several iterations the mean.

    Args:
        nodes: The events on the CPU, each after the one that called it.
        step: First profiled iteration.
        iterations: How many there were.
        duration_s: Their wall time. Unit: s.
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
    if not isinstance(packet, torch._ops.OpOverloadPacket):  # noqa: SLF001 - no public name for it
        return None
    # Events do not tell the overload; those of one op are of one kind.
    overloads: list[str] = packet.overloads()  # type: ignore[no-untyped-call]
    info = op_info(getattr(packet, overloads[0]))
    if info.is_ignored or _is_composite(event_name, overloads):
        return None
    return _NamedOp(info.name, info.kind)


def _is_composite(name: str, overloads: Sequence[str]) -> bool:
    """Whether all that an op does, in the first of its overloads, is to call other ops."""
    for overload in overloads:
        full = name if overload == "default" else f"{name}.{overload}"
        try:
            return bool(torch._C._dispatch_has_kernel_for_dispatch_key(full, _COMPOSITE))  # noqa: SLF001 - no public name for it
        except RuntimeError:  # one of TorchScript's alone
            continue
    return False


def _count(tallies: dict[OpKey, OpTally], op: _NamedOp, node: Node) -> None:
    event = node.event
    dtypes = [_DTYPES.get(text.lower()) for text in event.dtypes()]
    shapes = event.shapes()
    inputs, dtype = promoted(tuple(d for d in dtypes if d is not None))
    kind, out_dtype, moved = op.kind, dtype, _bytes(dtypes, shapes)
    if kind.has_flops and (narrow := _narrowest(inputs)):
        # The logarithms of sums that attention comes with, and the scales of float8, are float32.
        dtype = narrow
    if kind is OpKind.CAST:
        source, target = _cast(op.name, dtypes, event)
        is_cast = source is not None and target is not None and source is not target
        kind = OpKind.CAST if is_cast else OpKind.COPY
        if source is not None and target is not None:
            dtype, out_dtype = NAMES[source], NAMES[target]
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
    """Return the FLOPs of an op; those of a convolution are told by what has called it."""
    found = int(node.event.flops())
    above = node.parent
    while not found and above is not None and above.name.startswith("aten::conv"):
        found, above = int(above.event.flops()), above.parent
    return found


def flops_of_shapes(name: str, kind: OpKind, shapes: Sequence[Shape]) -> int:
    """Return the floating-point operations of attention, and of the backward of convolutions.

    Args:
        name: Base name of the op.
        kind: What it does.
        shapes: The shapes of its inputs, in their order; of what is no tensor they are empty.

    Returns:
        As of ``opflops``; 0 for other ops, and where the shapes are not those of the op.
    """
    is_backward = name.endswith("backward")
    tensors = [shape for shape in shapes if shape]
    if kind is OpKind.ATTENTION and len(tensors) > 2 + is_backward:
        return _attention(name, tensors[is_backward:], is_backward=is_backward)
    if kind is OpKind.CONVOLUTION and is_backward and len(tensors) > 2:
        gradient, _, weight = tensors[:3]
        # One product for the gradient of the image, one for that of the weight.
        return 2 * 2 * prod(gradient) * prod(weight[1:])
    return 0


def _attention(name: str, tensors: Sequence[Shape], *, is_backward: bool) -> int:
    query, key, value = tensors[:3]
    if min(map(len, (query, key, value))) < 3:
        return 0
    # (B, H, T, D), or (B, T, H, D) in the ops below.
    time = -2 if name.startswith("_scaled_dot_product") else -3
    pairs = prod(query[:-1]) * key[time]
    features, outputs = query[-1], value[-1]
    return 2 * pairs * (3 * features + 2 * outputs if is_backward else features + outputs)


def _matmul(op: _NamedOp, shapes: Sequence[Any]) -> tuple[int, int, int, int] | None:
    """Return ``(B, M, N, K)``, ``None`` for what is no product of two matrices."""
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
    # Which of the operands is transposed is not recorded.
    if n % unit == 0 and (k % unit == 0 or m % unit == 0):
        tally.tensor_flops += flops
    else:
        tally.unaligned_flops += flops
    tally.shape = tally.shape or shape


def _cast(
    name: str, dtypes: Sequence[torch.dtype | None], event: Any
) -> tuple[torch.dtype | None, torch.dtype | None]:
    """Return from which dtype an op that may cast does so, and to which."""
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
