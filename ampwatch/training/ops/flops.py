"""The floating-point operations of one call of an op."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import torch

from ampwatch.numerics.units.ops import OpKind
from ampwatch.training.ops.info import RECURRENT, operands_of, recurrent_weights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.training.ops.info import OpInfo

_SEQUENCES = frozenset({"cum_seq_q", "cu_seqlens_q", "cu_seq_q"})
"""Arguments that say where in one long row each of several sequences begins."""


def flops_of(
    info: OpInfo,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    tensors: Sequence[torch.Tensor],
    out: Any,
) -> int:
    """Return the floating-point operations of one call, a multiplication and an addition being two.

    They are counted from the shapes alone, by the formulas of ``torch.utils.flop_counter``. Added
    are those that it lacks: attention on a CPU and with fewer heads for keys, several sequences in
    a row (it would wait for the device to tell their lengths), recurrent networks, products with a
    vector. Corrected is one that it counts too often: the gradient of the weight of a grouped
    convolution. Attention has no discount for masks. ``flex_attention`` is no op that is called: its
    kernel is generated, and has no FLOPs here.
    """
    if info.kind is OpKind.ATTENTION and "query" in info.arguments:
        return _attention(info, dict(zip(info.arguments, args, strict=False)) | kwargs)
    if info.name == "convolution_backward":
        given = dict(zip(info.arguments, args, strict=False)) | kwargs
        if given["groups"] > 1:
            return _grouped_backward(given)
    if info.count_flops is not None:
        return int(info.count_flops(*args, **kwargs, out_val=out))
    if info.name in RECURRENT:
        once = _recurrent(tensors[0], recurrent_weights(info, args))
        return 2 * once if info.name.endswith("backward") else once
    if info.kind is OpKind.MATMUL and isinstance(out, torch.Tensor):
        return _product(operands_of(info, tensors), out)
    return 0


def _grouped_backward(given: dict[str, Any]) -> int:
    # Of the weight of a group only that group's channels are multiplied; PyTorch's counter has all.
    image: torch.Tensor = given["input" if given["transposed"] else "grad_output"]
    weight: torch.Tensor = given["weight"]
    products = sum([bool(wanted) for wanted in given["output_mask"][:2]])
    return 2 * products * image.numel() * prod(weight.shape[1:])


def _attention(info: OpInfo, given: dict[str, Any]) -> int:
    offsets = next((given[name] for name in _SEQUENCES if given.get(name) is not None), None)
    # The lengths are on the device. As if all were equal, which is a lower bound of the truth:
    # the sum of squares is least then.
    sequences = 1 if offsets is None else max(len(offsets) - 1, 1)
    shapes = (given[name].shape for name in ("query", "key", "value"))
    return attention_flops(info.name, *shapes, sequences=sequences)


def attention_flops(
    name: str,
    query: Sequence[int],
    key: Sequence[int],
    value: Sequence[int],
    *,
    sequences: int = 1,
) -> int:
    """Return the floating-point operations of attention, by the name of the op and the shapes of its inputs.

    Of several sequences in a row their number: no query of one reads a key of another.
    """
    # (B, H, T, D), or (B, T, H, D) in the ops below; several sequences in a row (T, H, D).
    sequence_axis = -2 if name.startswith("_scaled_dot_product") else -3
    pairs = prod(query[:-1]) * int(key[sequence_axis]) // sequences
    # Scores, and what they make of the values. Backward computes the scores once more, and has a product
    # for each of four gradients: of queries, keys, values and their weights.
    features, outputs = int(query[-1]), int(value[-1])
    is_backward = name.endswith("backward")
    return 2 * pairs * (3 * features + 2 * outputs if is_backward else features + outputs)


def _recurrent(inputs: torch.Tensor, weights: Sequence[torch.Tensor]) -> int:
    steps = inputs.numel() // max(int(inputs.shape[-1]), 1)
    return 2 * steps * sum([weight.numel() for weight in weights])


def _product(operands: Sequence[torch.Tensor], out: torch.Tensor) -> int:
    if len(operands) < 2:
        return 0
    a, b = operands
    inner = int(a.shape[-1]) if a.ndim else 1
    if a.ndim == 3 and out.ndim == 2:  # addbmm adds the products of its batch up
        inner *= int(a.shape[0])
    if a.ndim == b.ndim == 2 and out.ndim == 3:  # _grouped_mm splits the inner dimension up
        return 2 * prod(out.shape[1:]) * inner
    return 2 * out.numel() * inner
