"""Counts of the ops of one iteration: calls, FLOPs, bytes, by everything that tells ops apart."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ampwatch.diagnosis.evidence.ops import OpKey, OpTally
from ampwatch.numerics.formats import FORMATS, PLAIN, FormatFamily
from ampwatch.numerics.units.ops import (
    ALIGNMENT,
    HALF_DTYPES,
    TENSOR_DTYPES,
    Fallback,
    OpKind,
    Phase,
)
from ampwatch.training.kernels.admission import is_ordinary
from ampwatch.training.kernels.dtypes import HALF, name_of, promoted
from ampwatch.training.model.machine import allows_tf32
from ampwatch.training.ops.dequantized import Dequantized
from ampwatch.training.ops.flops import flops_of
from ampwatch.training.ops.info import OpInfo, dims_of, operands_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    Why = Callable[[OpInfo, Sequence[str], str], Fallback]
    _Key = tuple["_Variant", Phase, str, Fallback]

MAX_SHAPES = 4096
"""Signatures whose FLOPs are remembered."""

TF32_ALIGNMENT = FORMATS["tf32"].alignment
"""Elements of float32 in 16 bytes."""

_FLOAT32 = frozenset(fmt.name for fmt in PLAIN if fmt.family is FormatFamily.FLOAT32)

MAX_VARIANTS = 4096
"""Ops with different dtypes that are remembered."""


class OpCall(NamedTuple):
    """One call of an op.

    Attributes:
        func: The overload.
        info: The facts about it.
        args: Its arguments.
        kwargs: Its keyword arguments.
        out: What it has returned.
    """

    func: Any
    info: OpInfo
    args: Sequence[Any]
    kwargs: dict[str, Any]
    out: Any


class _Variant:
    """The facts that calls of one op with the same dtypes share.

    Equality is identity, which makes it a quick key; a tuple would be hashed by value in each call.
    """

    __slots__ = ("device_type", "dtype", "info", "inputs", "is_float32", "kind", "out_dtype")

    def __init__(
        self, info: OpInfo, kind: OpKind, inputs: tuple[str, ...], dtype: str, first: torch.Tensor
    ) -> None:
        self.info = info
        self.kind = kind
        self.inputs = inputs
        self.dtype = dtype
        self.out_dtype = name_of(first.dtype)
        self.device_type = first.device.type
        # A normalization of float16 values with float32 weights stays in float16.
        self.is_float32 = (
            dtype in _FLOAT32
            and self.out_dtype == "float32"
            and kind not in (OpKind.CAST, OpKind.COPY)
        )


class _Product(NamedTuple):
    """The FLOPs and the shape of one call; the fields are those of ``OpTally``."""

    flops: int = 0
    tensor_flops: int = 0
    unaligned_flops: int = 0
    nchw_flops: int = 0
    shape: tuple[int, ...] = ()


_NO_PRODUCT = _Product()


class OpCounts:
    """Counts calls. Keeps no tensor.

    Args:
        why: Says why an op ran in float32: called with the facts about it, the dtypes of
            its inputs, and the type of its device.

    Attributes:
        device_types: Types of the devices they ran on.
        weight_cast_bytes: Bytes of low-precision copies of parameters.
    """

    def __init__(self, why: Why) -> None:
        self._why = why
        self._variants: dict[Hashable, _Variant] = {}
        self._products: dict[Hashable, _Product] = {}
        self._switches = (False, False)
        self._dequantized = Dequantized()
        self._lock = Lock()
        self.clear()

    def clear(self) -> None:
        """Begin anew; what was worked out about variants and shapes is kept."""
        # It depends on the switches of TF32, which users may turn between two iterations.
        switches = allows_tf32(OpKind.MATMUL), allows_tf32(OpKind.CONVOLUTION)
        if switches != self._switches:
            self._switches = switches
            self._variants.clear()
            self._products.clear()
        self._tallies: dict[_Key, OpTally] = {}
        self._largest: dict[_Key, tuple[bool, int]] = {}
        self.device_types: set[str] = set()
        self.weight_cast_bytes = 0
        self._weight_copies: set[int] = set()
        self._activations: dict[int, int] = {}
        self._dequantized.clear()

    @property
    def tallies(self) -> dict[OpKey, OpTally]:
        """The calls."""
        tallies: dict[OpKey, OpTally] = {}
        for (variant, phase, module, fallback), tally in self._tallies.items():
            key = OpKey(
                variant.info.name,
                variant.kind,
                module,
                phase,
                variant.inputs,
                variant.dtype,
                variant.out_dtype,
                fallback,
            )
            tallies.setdefault(key, OpTally()).add(tally)
        return tallies

    @property
    def activation_bytes(self) -> int:
        """Bytes of low-precision tensors, no weights, that were multiplied in the forward pass."""
        return sum(self._activations.values())

    def count(self, call: OpCall, phase: Phase, module: str) -> str:
        """Count one call; thread-safe.

        Returns:
            The type of its device if it is the first of its variant, else nothing.
        """
        info = call.info
        tensors = tensors_among(call.args)
        if call.kwargs:
            tensors += tensors_among([v for name, v in call.kwargs.items() if name != "out"])
        outputs = tensors_among((call.out,))
        if info.kind is OpKind.CAST:
            tensors, outputs = _cast(call, tensors, outputs)
        if not (outputs or tensors):
            return ""
        variant = self._variant(call, tensors, outputs)
        fallback = Fallback.NONE
        if variant.is_float32 and phase is Phase.FORWARD:
            fallback = self._why(info, variant.inputs, variant.device_type)
        product = None
        if variant.kind.has_flops and tensors and outputs:
            product = self._product(variant, call, tensors)
        num_bytes = _bytes(tensors) + _bytes(outputs)
        if info.written and not outputs:
            num_bytes += _bytes(written_by(call))
        key = variant, phase, module, fallback
        # Backward on a GPU runs in a thread of autograd, beside those of the user.
        with self._lock:
            tally = self._tallies.get(key)
            is_new = tally is None
            if tally is None:
                tally = self._tallies[key] = OpTally()
                self.device_types.add(variant.device_type)
            tally.calls += 1
            tally.bytes += num_bytes
            if product is not None:
                self._multiply(key, tally, product)
            if phase is Phase.FORWARD:
                self._weigh(variant.kind, tensors, outputs)
        return variant.device_type if is_new else ""

    def _variant(
        self, call: OpCall, tensors: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> _Variant:
        first = outputs[0] if outputs else tensors[0]
        formats = self._dequantized.formats(call.info, tensors)
        # A list in between: a generator costs more than the tuple, in each call of each op.
        signature = call.func, first.dtype, first.device, tuple([t.dtype for t in tensors]), formats
        variant = self._variants.get(signature)
        if variant is None:
            if len(self._variants) >= MAX_VARIANTS:
                self._variants.clear()
            variant = self._variants[signature] = _variant_of(call, tensors, first, formats)
        self._dequantized.see(call.info, variant.kind, tensors, outputs)
        return variant

    def _product(
        self, variant: _Variant, call: OpCall, tensors: Sequence[torch.Tensor]
    ) -> _Product:
        """Return what is multiplied in a call, worked out once per signature."""
        if not all(t.layout is torch.strided and not t.is_nested for t in tensors):
            return _NO_PRODUCT
        others: Hashable = ()
        if variant.kind is not OpKind.MATMUL:
            others = _plain(call.args), _plain(sorted(call.kwargs.items()))
        signature = variant, tuple([(t.shape, t.stride()) for t in tensors]), others
        product = self._products.get(signature)
        if product is None:
            if len(self._products) >= MAX_SHAPES:
                self._products.clear()
            product = self._products[signature] = _product_of(variant, call, tensors)
        return product

    def _multiply(self, key: _Key, tally: OpTally, product: _Product) -> None:
        tally.flops += product.flops
        tally.tensor_flops += product.tensor_flops
        tally.unaligned_flops += product.unaligned_flops
        tally.nchw_flops += product.nchw_flops
        rank = bool(product.unaligned_flops), product.flops
        if rank > self._largest.get(key, (False, 0)):
            self._largest[key] = rank
            tally.shape = product.shape

    def _weigh(
        self, kind: OpKind, tensors: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> None:
        """Weigh what the graph keeps in low precision: copies of weights, and activations."""
        if kind is OpKind.CAST:
            for source, copy in zip(tensors, outputs, strict=False):
                if isinstance(source, torch.nn.Parameter) and _is_half(copy):
                    self._weight_copies.add(_address(copy))
                    self.weight_cast_bytes += copy.nbytes
        elif kind.has_flops:
            # By address: autograd saves views and aliases of one storage, which is kept once.
            for tensor in tensors:
                address = _address(tensor) if _is_half(tensor) else 0
                if address and address not in self._weight_copies:
                    self._activations[address] = tensor.untyped_storage().nbytes()


def tensors_among(values: Iterable[Any]) -> list[torch.Tensor]:
    """Return the tensors among arguments, those in lists as well."""
    found = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += [item for item in value if isinstance(item, Tensor)]
    return found


def is_view_of(out: Any, given: Any) -> bool:
    """Whether what an op has returned lies in the memory of what it was given."""
    made = tensors_among((out,))
    if not made or not isinstance(given, torch.Tensor):
        return False
    # Views of a Python class, and of a transform of torch.func, have no address that could be asked for.
    if made[0] is given or not (is_ordinary(made[0]) and is_ordinary(given)):
        return True
    address = _address(made[0])
    return address == _address(given) if address else made[0].dtype == given.dtype


def written_by(call: OpCall) -> list[torch.Tensor]:
    """Return the tensors that a call has changed, wherever they were given."""
    # Not strict: the dispatcher leaves out trailing arguments that have their defaults.
    given = dict(zip(call.info.arguments, call.args, strict=False)) | call.kwargs
    names = [call.info.arguments[place] for place in call.info.written]
    return tensors_among([given[name] for name in names if name in given])


def _variant_of(
    call: OpCall,
    tensors: Sequence[torch.Tensor],
    first: torch.Tensor,
    formats: tuple[torch.dtype, ...],
) -> _Variant:
    info = call.info
    kind = info.kind
    inputs, dtype = promoted(tuple([t.dtype for t in tensors]))
    if kind is OpKind.CAST:
        dtype = name_of(tensors[0].dtype) if tensors else name_of(first.dtype)
        if dtype == name_of(first.dtype):
            kind = OpKind.COPY
    elif formats:
        # The inputs stay what they are, which tells an emulated product from one in FP8.
        dtype = promoted(formats)[1]
    elif kind is OpKind.MATMUL and len(operands := operands_of(info, tensors)) > 1:
        # The scales of a product of float8 matrices are float32.
        dtype = promoted(tuple([t.dtype for t in operands]))[1]
    elif kind is OpKind.ATTENTION and "query" in info.arguments:
        # In backward the logarithms of sums come along, which are float32.
        given = dict(zip(info.arguments, call.args, strict=False)) | call.kwargs
        dtype = name_of(given["query"].dtype)
    if not dtype and first.is_floating_point():
        dtype = name_of(first.dtype)
    if dtype == "float32" and kind.has_flops and first.device.type == "cuda" and allows_tf32(kind):
        dtype = "tf32"
    return _Variant(info, kind, inputs, dtype, first)


def _product_of(variant: _Variant, call: OpCall, tensors: Sequence[torch.Tensor]) -> _Product:
    flops = flops_of(call.info, call.args, call.kwargs, tensors, call.out)
    dims = dims_of(call.info, tensors, call.args, call.out)
    unit = TF32_ALIGNMENT if variant.dtype == "tf32" else ALIGNMENT.get(variant.dtype, 1)
    is_aligned = all(size % unit == 0 for size in dims.leading)
    on_tensor_cores = variant.dtype in TENSOR_DTYPES and is_aligned and bool(dims.leading)
    is_nchw = (
        variant.kind is OpKind.CONVOLUTION and variant.dtype in HALF_DTYPES and _is_nchw(tensors)
    )
    return _Product(
        flops,
        tensor_flops=flops if on_tensor_cores else 0,
        unaligned_flops=flops if variant.dtype in ALIGNMENT and not is_aligned else 0,
        nchw_flops=flops if is_nchw else 0,
        shape=dims.shape,
    )


def _bytes(tensors: Sequence[torch.Tensor]) -> int:
    try:
        return sum([t.nbytes for t in tensors])
    except RuntimeError:  # a sparse tensor is among them
        return sum([t.nbytes for t in tensors if not t.is_sparse])


def _plain(value: Any) -> Hashable:
    """Return the part of arguments that is not tensors, as a key of a dictionary."""
    if isinstance(value, torch.Tensor):
        return None
    if isinstance(value, (list, tuple)):
        return tuple(map(_plain, value))
    return value if isinstance(value, (int, float, str, bool, type(None))) else str(value)


def _cast(
    call: OpCall, tensors: list[torch.Tensor], outputs: list[torch.Tensor]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return what a call that may cast reads, and what it writes."""
    if call.info.name in ("copy_", "copy"):
        return tensors[1:], outputs
    if call.info.name == "_foreach_copy_":
        written = tensors_among(call.args[:1])
        return tensors[len(written) :], written
    return tensors, outputs


def _is_half(tensor: torch.Tensor) -> bool:
    return tensor.dtype in HALF


def _is_nchw(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether the image of a convolution is contiguous, and not ``channels_last`` as well."""
    image = next((t for t in tensors if t.ndim >= 4), None)
    if image is None or image.shape[1] == 1:
        return False
    last = torch.channels_last if image.ndim == 4 else torch.channels_last_3d
    return image.is_contiguous() and not image.is_contiguous(memory_format=last)


def _address(tensor: torch.Tensor) -> int:
    """Return where a tensor is, 0 for one without a single place."""
    # A sparse tensor has several storages and raises; a meta tensor is nowhere.
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        return 0
    return tensor.untyped_storage().data_ptr()
