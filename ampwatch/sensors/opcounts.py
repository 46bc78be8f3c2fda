"""Counts of the ops of one iteration: calls, FLOPs, bytes, by everything that tells ops apart."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ampwatch.diagnosis.op_evidence import OpKey, OpTally
from ampwatch.precision.ops import (
    ALIGNMENT,
    HALF_DTYPES,
    TENSOR_DTYPES,
    Fallback,
    OpKind,
    Phase,
)
from ampwatch.sensors.dtypes import name_of, promoted
from ampwatch.sensors.opinfo import Dims, OpInfo, dims_of, flops_of
from ampwatch.sensors.tf32 import allows_tf32

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    Why = Callable[[OpInfo, Sequence[str], str], Fallback]

MOST_SHAPES = 4096
"""Signatures whose FLOPs are remembered."""

TF32_ALIGNMENT = 4
"""Elements of float32 in 16 bytes, see ``precision.ops.ALIGNMENT``."""

_NO_FLOPS = (0, Dims())


class OpCall(NamedTuple):
    """One call of an op.

    Attributes:
        func: The overload.
        info: What is known of it.
        args: Its arguments.
        kwargs: Its keyword arguments.
        out: What it has returned.
    """

    func: Any
    info: OpInfo
    args: Sequence[Any]
    kwargs: dict[str, Any]
    out: Any


class OpCounts:
    """Counts calls. Keeps no tensor.

    Args:
        why: Says why an op ran in float32: called with what is known of it, the dtypes of
            its inputs, and the type of its device.

    Attributes:
        tallies: The calls.
        device_types: Types of the devices they ran on.
        weight_cast_bytes: Bytes of low-precision copies of parameters.
    """

    def __init__(self, why: Why) -> None:
        self._why = why
        self._shapes: dict[Hashable, tuple[int, Dims]] = {}
        self._lock = Lock()
        self.clear()

    def clear(self) -> None:
        """Begin anew; FLOPs that were worked out are kept."""
        self.tallies: dict[OpKey, OpTally] = {}
        self.device_types: set[str] = set()
        self.weight_cast_bytes = 0
        self._weight_copies: set[int] = set()
        self._activations: dict[int, int] = {}

    @property
    def activation_bytes(self) -> int:
        """Bytes of low-precision tensors, no weights, that were multiplied in the forward pass."""
        return sum(self._activations.values())

    def count(self, call: OpCall, phase: Phase, module: str) -> None:
        """Count one call. Thread-safe."""
        info = call.info
        tensors = tensors_among(call.args)
        if call.kwargs:
            tensors += tensors_among(call.kwargs.values())
        outputs = tensors_among((call.out,))
        if not (outputs or tensors):
            return
        first = outputs[0] if outputs else tensors[0]
        device_type = first.device.type
        inputs, widest = promoted(tuple([t.dtype for t in tensors]))
        out_dtype = name_of(first.dtype)
        kind, dtype = info.kind, widest or out_dtype
        if kind is OpKind.CAST:
            kind, dtype = _cast(call, tensors, out_dtype)
        elif dtype == "float32" and device_type == "cuda" and kind.has_flops and allows_tf32(kind):
            dtype = "tf32"
        fallback = Fallback.NONE
        # A normalization of float16 values with float32 weights stays in float16.
        is_float32 = dtype == out_dtype == "float32"
        if is_float32 and phase is Phase.FORWARD and kind not in (OpKind.CAST, OpKind.COPY):
            fallback = self._why(info, inputs, device_type)
        key = OpKey(info.name, kind, module, phase, inputs, dtype, out_dtype, fallback)
        shaped = self._flops(call, tensors) if kind.has_flops and tensors else _NO_FLOPS
        with self._lock:
            self.device_types.add(device_type)
            tally = self.tallies.get(key)
            if tally is None:
                tally = self.tallies[key] = OpTally()
            tally.calls += 1
            tally.bytes += sum([t.nbytes for t in tensors]) + sum([t.nbytes for t in outputs])
            if shaped[0]:
                _add_flops(key, tally, *shaped, tensors)
            if phase is Phase.FORWARD:
                self._weigh(kind, tensors, outputs)

    def _flops(self, call: OpCall, tensors: Sequence[torch.Tensor]) -> tuple[int, Dims]:
        """Return FLOPs and dimensions of a call, worked out once per signature."""
        layout = tuple([(t.shape, t.stride()) for t in tensors])
        signature = (call.func, layout, _plain(call.args), _plain(sorted(call.kwargs.items())))
        known = self._shapes.get(signature)
        if known is None:
            if len(self._shapes) >= MOST_SHAPES:
                self._shapes.clear()
            known = (
                flops_of(call.info, call.args, call.kwargs, call.out),
                dims_of(call.info, tensors, call.args, call.out),
            )
            self._shapes[signature] = known
        return known

    def _weigh(
        self, kind: OpKind, tensors: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> None:
        """Weigh what the graph keeps in low precision: copies of weights, and activations."""
        if kind is OpKind.CAST:
            if isinstance(tensors[0], torch.nn.Parameter) and _is_half(outputs[0]):
                self._weight_copies.add(_address(outputs[0]))
                self.weight_cast_bytes += outputs[0].nbytes
        elif kind.has_flops:
            for tensor in tensors:
                address = _address(tensor)
                if address and _is_half(tensor) and address not in self._weight_copies:
                    self._activations[address] = tensor.untyped_storage().nbytes()


def tensors_among(values: Iterable[Any]) -> list[torch.Tensor]:
    """Return the tensors among arguments, those in lists as well."""
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += [item for item in value if isinstance(item, torch.Tensor)]
    return found


def _add_flops(
    key: OpKey, tally: OpTally, flops: int, dims: Dims, tensors: Sequence[torch.Tensor]
) -> None:
    tally.flops += flops
    unit = TF32_ALIGNMENT if key.dtype == "tf32" else ALIGNMENT.get(key.dtype, 1)
    is_aligned = all([size % unit == 0 for size in dims.leading])
    if key.dtype in TENSOR_DTYPES and is_aligned and dims.leading:
        tally.tensor_flops += flops
    is_worse = not is_aligned and key.dtype in ALIGNMENT
    if is_worse:
        tally.unaligned_flops += flops
    if not tally.shape or (is_worse and tally.unaligned_flops == flops):
        tally.shape = dims.shape
    if key.kind is OpKind.CONVOLUTION and key.dtype in HALF_DTYPES and _is_nchw(tensors):
        tally.nchw_flops += flops


def _plain(value: Any) -> Hashable:
    """Return the part of arguments that is not tensors, as something that can be looked up."""
    if isinstance(value, torch.Tensor):
        return None
    if isinstance(value, (list, tuple)):
        return tuple(map(_plain, value))
    return value if isinstance(value, (int, float, str, bool, type(None))) else str(value)


def _cast(call: OpCall, tensors: Sequence[torch.Tensor], out_dtype: str) -> tuple[OpKind, str]:
    """Return whether a call that may cast does, and from which dtype."""
    source = tensors[0]
    if call.info.name in ("copy_", "copy") and len(tensors) > 1:
        source = tensors[1]
    elif call.info.name == "_foreach_copy_":
        source = call.args[1][0]
    before = name_of(source.dtype)
    return (OpKind.COPY if before == out_dtype else OpKind.CAST), before


def _is_half(tensor: torch.Tensor) -> bool:
    return tensor.dtype in (torch.float16, torch.bfloat16)


def _is_nchw(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether the image of a convolution is contiguous, and not ``channels_last`` as well."""
    image = next((t for t in tensors if t.ndim >= 4), None)
    if image is None or image.shape[1] == 1:
        return False
    last = torch.channels_last if image.ndim == 4 else torch.channels_last_3d
    return image.is_contiguous() and not image.is_contiguous(memory_format=last)


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.device.type != "meta" else 0
