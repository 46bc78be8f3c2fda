"""Products of layers in another format: operands cast to it and back, multiplied in float32."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from ampwatch.numerics.formats import FORMATS, FloatFormat, FormatFamily, ScaleBlock
from ampwatch.numerics.units.ops import Phase
from ampwatch.training.kernels.admission import is_dense
from ampwatch.training.model.names import canonical
from ampwatch.training.ops.storage import WeakStorage
from ampwatch.training.private import ConvNd, storage_key
from ampwatch.wire.records import FORWARD, GRAD_INPUT, GRAD_WEIGHT, PRODUCTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import Tensor

    from ampwatch.lab.precision.evidence import PlannedProduct
    from ampwatch.lab.training.exact_ops import Apart
    from ampwatch.training.ops.call import OpCall
    from ampwatch.training.ops.events import OpPlace
    from ampwatch.training.replay.replay import Execute

_MATRICES = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}
"""Ops that multiply two matrices, or batches of them, and the place of the first among their arguments."""

_ADDED = {"addmm": 0, "baddbmm": 0, "convolution": 2}
"""Place of what is added to the product: of one dtype with it."""

_NV_LARGEST = 6.0 * 448.0
"""Largest element times largest block scale of NVFP4 (arXiv:2509.25149, appendix B)."""


class LayerFormats(NamedTuple):
    """The formats that products of layers are to be computed in.

    Attributes:
        name: How it is called: a format, or ``plan``.
        all_in: The format of every operand; ``None`` for those of ``products``.
        products: Products of layers with the formats of their operands.
    """

    name: str
    all_in: FloatFormat | None = None
    products: Sequence[PlannedProduct] = ()

    def of(self, model: nn.Module, prefix: str) -> dict[tuple[str, str], tuple[FloatFormat, ...]]:
        """Return the formats of two operands, by the qualified name of the module and the product."""
        layers = {
            f"{prefix}{canonical(name, model)}".rstrip(".")
            for name, module in model.named_modules()
            if isinstance(module, (nn.Linear, ConvNd))
        }
        if self.all_in is None:
            return {
                (p.module, p.product): tuple(FORMATS[name] for name in p.formats)
                for p in self.products
                if p.module in layers
            }
        both = (self.all_in, self.all_in)
        return {(module, product): both for module in layers for product in PRODUCTS}


class CastLayers:
    """Has layers multiply operands that were cast to a format and back.

    Which product an op of backward computes is known by the memory of its operands: the weight that the
    forward of the layer has multiplied is one of the gradient of the input, its input one of the gradient
    of the weight. Memory that is both, as that of a weight which is fed to its own layer, counts as a weight.

    Args:
        formats: Formats of two operands, by module and product.
        apart: Runs casts beside a replay.

    Attributes:
        modules: All modules that formats are given for.
        seen: Modules of which a product was computed so.
    """

    def __init__(
        self, formats: Mapping[tuple[str, str], tuple[FloatFormat, ...]], apart: Apart
    ) -> None:
        self._formats = formats
        self.modules = {module for module, _ in formats}
        self._apart = apart
        # With a weak reference, which keeps the identity of the memory from being given away.
        self._inputs: dict[str, dict[Any, WeakStorage]] = {}
        self._weights: dict[str, dict[Any, WeakStorage]] = {}
        self.seen: set[str] = set()

    def run(self, call: OpCall, place: OpPlace, execute: Execute) -> Any:
        """Run an op, with operands that were cast where it is a product of a layer; return its result.

        The result has the dtype that it would have had.
        """
        name, args = call.info.name, list(call.args)
        # A forward that checkpointing repeats comes in the middle of backward.
        is_forward = place.phase is Phase.FORWARD or place.is_inside
        if place.module not in self.modules:
            return execute(args)
        if name in _MATRICES:
            first = _MATRICES[name]
            if are_castable(args[first : first + 2]):
                product = self._product(place.module, is_forward, *args[first : first + 2])
                # What the one sums over are its columns, and the rows of the other.
                over = (Along((-1,)), Along((-2,)))
                return self._multiplied(execute, args, (place.module, product), first, over, name)
        elif name == "convolution" and is_forward and are_castable(args[:2]):
            groups = args[8]
            over = (Along((1,), groups), Along((0,), groups) if args[6] else Along((1,)))
            return self._multiplied(execute, args, (place.module, FORWARD), 0, over, name)
        elif name == "convolution_backward" and are_castable(args[:3]):
            return self._convolved_back(execute, args, place.module)
        return execute(args)

    def _product(self, module: str, is_forward: bool, first: Tensor, second: Tensor) -> str:  # noqa: FBT001 - private
        """Return which product of its module two matrices are multiplied for; empty if it is none."""
        if is_forward:
            for known, tensor in ((self._inputs, first), (self._weights, second)):
                storage = tensor.untyped_storage()
                known.setdefault(module, {})[storage_key(storage)] = WeakStorage(storage)
            return FORWARD
        both = {_memory(first), _memory(second)}
        if both & self._weights.get(module, {}).keys():
            return GRAD_INPUT
        return GRAD_WEIGHT if both & self._inputs.get(module, {}).keys() else ""

    def _multiplied(
        self,
        execute: Execute,
        args: list[Any],
        key: tuple[str, str],
        first: int,
        over: tuple[Along, Along],
        name: str,
    ) -> Any:
        """Run an op of two operands that stand one after the other, the first at a place."""
        if key not in self._formats:
            return execute(args)
        dtype, added = args[first].dtype, _ADDED.get(name)
        formats = self._in_order(key, args[first])
        with self._apart():
            for place, fmt, along in zip((first, first + 1), formats, over, strict=True):
                args[place] = rounded(args[place], fmt, along).float()
            if added is not None and args[added] is not None:
                args[added] = args[added].float()
        out = execute(args)
        self.seen.add(key[0])
        with self._apart():
            return out.to(dtype)

    def _in_order(self, key: tuple[str, str], first: Tensor) -> tuple[FloatFormat, ...]:
        """Return the formats of two operands as they come: that of the gradient need not be first."""
        left, right = self._formats[key]
        module, product = key
        others = {GRAD_INPUT: self._weights, GRAD_WEIGHT: self._inputs}.get(product, {})
        return (right, left) if _memory(first) in others.get(module, {}) else (left, right)

    def _convolved_back(self, execute: Execute, args: list[Any], module: str) -> Any:
        """Run the two products of a convolution's backward one by one, each with operands of its own."""
        gradient, given, weight = args[:3]
        is_transposed, groups, mask = args[7], args[9], args[10]
        of_weight = Along((1,)) if is_transposed else Along((0,), groups)
        spots = Along((0, *range(2, gradient.dim())))  # samples and positions
        results: list[Any] = [None, None, None]
        for place, product, along, at, other in (
            (0, GRAD_INPUT, Along((1,), groups), 2, of_weight),
            (1, GRAD_WEIGHT, spots, 1, spots),
            (2, "", spots, 1, spots),  # the gradient of the bias, which is a sum
        ):
            if not mask[place]:
                continue
            now = [gradient, given, weight, *args[3:10], [place == i for i in range(3)]]
            formats = self._formats.get((module, product))
            if formats is not None:
                left, right = formats
                with self._apart():
                    now[0] = rounded(gradient, left, along).float()
                    now[at] = rounded(now[at], right, other)
                    now[1:3] = [tensor.float() for tensor in now[1:3]]
                self.seen.add(module)
            out = execute(now)[place]
            with self._apart():
                results[place] = out.to(gradient.dtype)
        return tuple(results)


def are_castable(operands: Iterable[Any]) -> bool:
    """Return whether operands are plain memory of real floating-point numbers."""
    return all(
        isinstance(t, torch.Tensor) and t.is_floating_point() and is_dense(t) for t in operands
    )


def _memory(tensor: Tensor) -> Any:
    return storage_key(tensor.untyped_storage())


class Along(NamedTuple):
    """What a product sums over in one of its operands.

    Attributes:
        dims: The dimensions.
        groups: Parts of a single dimension, of which each is summed over by itself.
    """

    dims: tuple[int, ...]
    groups: int = 1


def rounded(values: Tensor, fmt: FloatFormat, along: Along) -> Tensor:
    """Return values cast to a format and back.

    Elements of FP8 have a scale for the whole tensor, the largest power of two at which nothing overflows.
    Block-scaled formats have theirs for each block of neighbours along the dimensions that are summed over;
    the last block may be shorter. What is beyond the largest number is that number there, and infinite in
    formats without a scale. What is not finite stays, and has no part in a scale.

    Args:
        values: Values of any real floating-point dtype and shape, on a device that knows float64.
        fmt: The format.
        along: The dimensions that are summed over.

    Returns:
        Values in float64, of the same shape and order in memory.

    Cost: some ten passes over the values, in float64.
    """
    given = values.detach().double()
    if not given.numel():
        return given
    is_finite = torch.isfinite(given)
    exact = torch.where(is_finite, given, 0.0)
    if fmt.block is not None:
        cast = _in_blocks(exact, fmt, fmt.block, along)
    elif fmt.family is FormatFamily.FLOAT8:
        scale = torch.exp2(torch.floor(torch.log2(fmt.max / exact.abs().amax())))
        scale = torch.where(torch.isfinite(scale), scale, 1.0)  # of nothing but zeros
        cast = _nearest((exact * scale).clamp(-fmt.max, fmt.max), fmt) / scale
    else:
        nearest = _nearest(exact, fmt)
        cast = torch.where(exact.abs() >= fmt.overflow_from, exact.sign() * math.inf, nearest)
    # Into the order of memory that it had: convolutions choose that of their result by it.
    return torch.empty_like(given).copy_(torch.where(is_finite, cast, given))


def _in_blocks(values: Tensor, fmt: FloatFormat, block: ScaleBlock, along: Along) -> Tensor:
    split = values
    dims = [dim % values.dim() for dim in along.dims]
    if along.groups > 1:
        split = values.unflatten(dims[0], (along.groups, -1))  # type: ignore[no-untyped-call]
        dims = [dims[0] + 1]
    order = [dim for dim in range(split.dim()) if dim not in dims] + dims
    moved = split.permute(order)
    rows = moved.reshape(math.prod(moved.shape[: split.dim() - len(dims)]), -1)
    size, length, scale = block.elements, rows.shape[1], block.scale
    padded = nn.functional.pad(rows, (0, -length % size)).view(rows.shape[0], -1, size)
    largest = padded.abs().amax(2, keepdim=True)
    if scale.sign_bits:
        whole = (largest.amax() / _NV_LARGEST).float().double()
        whole = torch.where(whole > 0.0, whole, 1.0)
        scales = _nearest((largest / 6.0 / whole).clamp(max=scale.max), scale)
        scales = scales.clamp(min=scale.min_subnormal) * whole
    else:
        # OCP MX 1.0, 6.3: the power of two below the largest, over that below the format's largest.
        exponent = torch.frexp(largest).exponent - 1 - math.floor(math.log2(fmt.max))
        scales = torch.exp2(exponent.double()).clamp(scale.min_normal, scale.max)
    cast = _nearest((padded / scales).clamp(-fmt.max, fmt.max), fmt) * scales
    back = cast.view(rows.shape[0], -1)[:, :length].reshape(moved.shape)
    return back.permute([order.index(dim) for dim in range(split.dim())]).reshape(values.shape)


def _nearest(values: Tensor, fmt: FloatFormat) -> Tensor:
    """Round float64 to multiples of the step at each value, ties to even."""
    lowest = math.frexp(fmt.min_normal)[1] - 1
    exponent = (torch.frexp(values).exponent - 1).clamp(min=lowest)
    step = torch.exp2((exponent - fmt.mantissa_bits).double())
    return torch.round(values / step) * step
