"""Products of layers in another format: operands cast to it and back, multiplied in float32."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from ampwatch.numerics.formats import FORMATS, FloatFormat, FormatFamily, ScaleBlock
from ampwatch.numerics.units.ops import Phase
from ampwatch.training.model.names import canonical
from ampwatch.training.ops.operands import is_dense
from ampwatch.training.private import ConvNd, storage_key
from ampwatch.wire.records import PRODUCTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import Tensor

    from ampwatch.diagnosis.evidence.plans import PlannedProduct
    from ampwatch.training.ops.call import OpCall
    from ampwatch.training.ops.events import OpPlace
    from ampwatch.training.sensors.births.exact_ops import Apart
    from ampwatch.training.sensors.births.replay import Execute

FORWARD, GRAD_INPUT, GRAD_WEIGHT = PRODUCTS

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
        if self.all_in is None:
            return {
                (p.module, p.product): tuple(FORMATS[name] for name in p.formats)
                for p in self.products
            }
        both = (self.all_in, self.all_in)
        return {
            (f"{prefix}{canonical(name, model)}".rstrip("."), product): both
            for name, module in model.named_modules()
            if isinstance(module, (nn.Linear, ConvNd))
            for product in PRODUCTS
        }


class CastLayers:
    """Has layers multiply operands that were cast to a format and back.

    Which product an op of backward computes is known by the memory of its operands: the weight that the
    forward of the layer has multiplied is one of the gradient of the input, its input one of the gradient
    of the weight.

    Args:
        formats: Formats of two operands, by module and product.
        apart: Runs casts beside a replay.

    Attributes:
        seen: Modules of which a product was computed so.
    """

    def __init__(
        self, formats: Mapping[tuple[str, str], tuple[FloatFormat, ...]], apart: Apart
    ) -> None:
        self._formats = formats
        self._apart = apart
        self._inputs: dict[str, set[Any]] = {}
        self._weights: dict[str, set[Any]] = {}
        self.seen: set[str] = set()

    @property
    def modules(self) -> set[str]:
        """All modules that formats are given for."""
        return {module for module, _ in self._formats}

    def run(self, call: OpCall, place: OpPlace, execute: Execute) -> Any:
        """Run an op, with operands that were cast where it is a product of a layer; return its result.

        The result has the dtype that it would have had.
        """
        name, module, args = call.info.name, place.module, list(call.args)
        if name in _MATRICES:
            first = _MATRICES[name]
            product = self._product(place, args[first], args[first + 1])
            if product and (module, product) in self._formats:
                # What the one sums over are its columns, and the rows of the other.
                return self._multiplied(
                    execute, args, (module, product), (first, first + 1), ((-1,), (-2,)), name
                )
        elif name == "convolution" and place.phase is Phase.FORWARD:
            if (module, FORWARD) in self._formats:
                over = ((1,), (0,) if args[6] else (1,))
                return self._multiplied(execute, args, (module, FORWARD), (0, 1), over, name)
        elif name == "convolution_backward" and any(
            (module, product) in self._formats for product in (GRAD_INPUT, GRAD_WEIGHT)
        ):
            return self._convolved_back(execute, args, module)
        return execute(args)

    def _product(self, place: OpPlace, first: Tensor, second: Tensor) -> str:
        """Return which product of its module two matrices are multiplied for; empty if it is none."""
        module, one, other = place.module, _memory(first), _memory(second)
        if place.phase is Phase.FORWARD:
            self._inputs.setdefault(module, set()).add(one)
            self._weights.setdefault(module, set()).add(other)
            return FORWARD
        if {one, other} & self._weights.get(module, set()):
            return GRAD_INPUT
        return GRAD_WEIGHT if {one, other} & self._inputs.get(module, set()) else ""

    def _multiplied(
        self,
        execute: Execute,
        args: list[Any],
        key: tuple[str, str],
        places: tuple[int, int],
        over: tuple[tuple[int, ...], tuple[int, ...]],
        name: str,
    ) -> Any:
        first, second = places
        dtype = args[first].dtype
        left, right = self._in_order(key, args[first])
        added = _ADDED.get(name)
        with self._apart():
            args[first] = rounded(args[first], left, over[0]).float()
            args[second] = rounded(args[second], right, over[1]).float()
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
        return (right, left) if _memory(first) in others.get(module, set()) else (left, right)

    def _convolved_back(self, execute: Execute, args: list[Any], module: str) -> Any:
        """Run the two products of a convolution's backward one by one, each with operands of its own."""
        gradient, given, weight = args[:3]
        is_transposed, mask = args[7], args[10]
        spots = (0, *range(2, gradient.dim()))  # samples and positions
        results: list[Any] = [None, None, None]
        for place, product, over, other in (
            (0, GRAD_INPUT, (1,), (2, (1,) if is_transposed else (0,))),
            (1, GRAD_WEIGHT, spots, (1, spots)),
            (2, "", (), (1, ())),
        ):
            if not mask[place]:
                continue
            alone = [place == i for i in range(3)]
            now = [gradient, given, weight, *args[3:10], alone]
            formats = self._formats.get((module, product))
            if formats is not None:
                left, right = formats
                at, dims = other
                with self._apart():
                    now[0] = rounded(gradient, left, over).float()
                    now[at] = rounded(args[at], right, dims)
                    now[1:3] = [tensor.float() for tensor in now[1:3]]
                self.seen.add(module)
            out = execute(now)[place]
            with self._apart():
                results[place] = out.to(gradient.dtype)
        return tuple(results)


def _memory(tensor: Tensor) -> Any:
    return storage_key(tensor.untyped_storage()) if is_dense(tensor) else id(tensor)


def rounded(values: Tensor, fmt: FloatFormat, over: Iterable[int]) -> Tensor:
    """Return values cast to a format and back.

    Elements of FP8 have a scale for the whole tensor, the largest power of two at which nothing overflows.
    Block-scaled formats have theirs for each block of neighbours along the dimensions that are summed over;
    the last block may be shorter. What is beyond the largest number is that number there, and infinite in
    formats without a scale.

    Args:
        values: Values of any floating-point dtype and shape, on a device that knows float64.
        fmt: The format.
        over: The dimensions that are summed over.

    Returns:
        Values in float64, of the same shape.

    Cost: some ten passes over the values, in float64.
    """
    exact = values.detach().double()
    if fmt.block is not None:
        return _in_blocks(exact, fmt, fmt.block, tuple(over))
    if fmt.family is not FormatFamily.FLOAT8:
        nearest = _nearest(exact, fmt)
        return torch.where(exact.abs() >= fmt.overflow_from, exact.sign() * math.inf, nearest)
    largest = exact.abs().amax() if exact.numel() else exact.new_zeros(())
    scale = torch.exp2(torch.floor(torch.log2(fmt.max / largest)))
    # Of nothing but zeros, and of what is not finite, there is no scale.
    scale = torch.where(torch.isfinite(scale) & (scale > 0.0), scale, 1.0)
    return _nearest((exact * scale).clamp(-fmt.max, fmt.max), fmt) / scale


def _in_blocks(
    values: Tensor, fmt: FloatFormat, block: ScaleBlock, over: tuple[int, ...]
) -> Tensor:
    dims = [dim % values.dim() for dim in over]
    order = [dim for dim in range(values.dim()) if dim not in dims] + dims
    moved = values.permute(order)
    rows = moved.reshape(math.prod(moved.shape[: values.dim() - len(dims)]), -1)
    size, length = block.elements, rows.shape[1]
    padded = nn.functional.pad(rows, (0, -length % size)).view(rows.shape[0], -1, size)
    largest = padded.abs().amax(2, keepdim=True)
    if block.scale.sign_bits:
        whole = (largest.amax() / _NV_LARGEST).float().double()
        whole = torch.where(whole > 0.0, whole, 1.0)
        scale = block.scale
        blocks = _nearest((largest / 6.0 / whole).clamp(max=scale.max), scale)
        scales = blocks.clamp(min=scale.min_subnormal) * whole
    else:
        # OCP MX 1.0, 6.3: the power of two below the largest, over that below the format's largest.
        exponent = torch.frexp(largest).exponent - 1 - math.floor(math.log2(fmt.max))
        scale = block.scale
        scales = torch.exp2(exponent.double()).clamp(scale.min_normal, scale.max)
    cast = _nearest((padded / scales).clamp(-fmt.max, fmt.max), fmt) * scales
    back = cast.view(rows.shape[0], -1)[:, :length].reshape(moved.shape)
    return back.permute([order.index(dim) for dim in range(values.dim())])


def _nearest(values: Tensor, fmt: FloatFormat) -> Tensor:
    """Round float64 to multiples of the step at each value, ties to even."""
    lowest = math.frexp(fmt.min_normal)[1] - 1
    exponent = (torch.frexp(values).exponent - 1).clamp(min=lowest)
    step = torch.exp2((exponent - fmt.mantissa_bits).double())
    return torch.where(torch.isfinite(values), torch.round(values / step) * step, values)
