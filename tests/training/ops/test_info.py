"""Facts about ops: kinds, views, autocast's lists, dimensions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - the name everybody gives it

from ampwatch.numerics.units.ops import OpKind
from ampwatch.training.ops.info import dims_of, op_info
from tests.training.sensors.counting import Log

aten = torch.ops.aten
x, y = torch.rand(4, 4), torch.rand(4, 4)
labels = torch.randint(4, (4,))


def _ops_of(call: Any) -> list[Any]:
    """Overloads that a call runs below autocast."""

    class Overloads(Log):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    seen: list[Any] = []
    with Overloads():
        call()
    return [f for f in seen if not (i := op_info(f)).is_ignored and i.kind is not OpKind.CAST]


@pytest.mark.parametrize(
    ("func", "kind"),
    [
        (aten.addmm.default, OpKind.MATMUL),
        (aten._cudnn_rnn.default, OpKind.MATMUL),
        (aten.convolution_backward.default, OpKind.CONVOLUTION),
        (aten._scaled_dot_product_flash_attention_for_cpu.default, OpKind.ATTENTION),
        (aten._scaled_dot_product_cudnn_attention_backward.default, OpKind.ATTENTION),
        (aten.native_layer_norm.default, OpKind.NORMALIZATION),
        (aten.nll_loss_forward.default, OpKind.LOSS),
        (aten._log_softmax.default, OpKind.REDUCTION),
        (aten.max_pool2d_with_indices.default, OpKind.REDUCTION),
        (aten.mul.Tensor, OpKind.POINTWISE),
        (aten._foreach_addcdiv_.ScalarList, OpKind.POINTWISE),
        (aten._fused_adamw_.default, OpKind.POINTWISE),
        (aten._to_copy.default, OpKind.CAST),
        (aten._foreach_copy_.default, OpKind.CAST),
        (aten.clone.default, OpKind.COPY),
        (aten.embedding.default, OpKind.COPY),
        (aten.sort.default, OpKind.OTHER),
    ],
    ids=str,
)
def test_what_an_op_does(func: Any, kind: OpKind) -> None:
    """From its name, its tags and the registry of FLOPs."""
    assert op_info(func).kind is kind


@pytest.mark.parametrize(
    ("func", "is_ignored"),
    [
        (aten.view.default, True),
        (aten.split.Tensor, True),
        (aten.transpose_.default, True),
        (aten.detach.default, True),
        (aten.empty_like.default, True),
        (aten._unsafe_view.default, True),
        (aten.add_.Tensor, False),
        (aten._foreach_add_.List, False),
        (aten._amp_update_scale_.default, False),
    ],
    ids=str,
)
def test_views_and_what_computes_nothing_are_no_ops(func: Any, *, is_ignored: bool) -> None:
    """An op that only writes in place is one."""
    assert op_info(func).is_ignored is is_ignored


def _half(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, dtype=torch.bfloat16)


CPU_FLOAT32 = {
    "grid_sample": lambda: F.grid_sample(_half(1, 1, 4, 4), _half(1, 2, 2, 2), align_corners=False),
    "mse_loss": lambda: F.mse_loss(_half(4, 4), _half(4, 4)),
    "nll_loss": lambda: F.nll_loss(_half(4, 4), labels),
    "replication_pad2d": lambda: F.pad(_half(1, 1, 4, 4), (1, 1, 1, 1), mode="replicate"),
}
"""Of "CPU Ops that autocast to float32", PyTorch's documentation of torch.amp."""


@pytest.mark.parametrize("op", CPU_FLOAT32)
def test_ops_on_the_list_of_a_cpu_are_known_to_be_on_it(op: str) -> None:
    """The ops really run in float32 inside a region, and the registrations have the reason."""
    with Log() as log, torch.autocast("cpu", dtype=torch.bfloat16):
        CPU_FLOAT32[op]()

    name, inputs, _ = log.ops[-1]
    packet = getattr(aten, name.partition("::")[2])
    assert set(inputs) - {"torch.int64"} == {"torch.float32"}
    assert op_info(getattr(packet, packet.overloads()[0])).has_fp32_policy("cpu")


CUDA_FLOAT32 = {
    "exp": lambda: torch.exp(x),
    "softmax": lambda: F.softmax(x, -1),
    "layer_norm": lambda: F.layer_norm(x, (4,)),
    "mse_loss": lambda: F.mse_loss(x, y),
    "nll_loss": lambda: F.nll_loss(x, labels),
    "norm": lambda: torch.linalg.vector_norm(x),
    "cdist": lambda: torch.cdist(x, y),
    "binary_cross_entropy_with_logits": lambda: F.binary_cross_entropy_with_logits(x, y),
}
"""Of "CUDA Ops that can autocast to float32"."""


@pytest.mark.parametrize("op", CUDA_FLOAT32)
def test_ops_on_the_list_of_cuda_are_known_to_be_on_it(op: str) -> None:
    """By the name that the dispatcher has for them further down."""
    *_, last = _ops_of(CUDA_FLOAT32[op])

    assert op_info(last).has_fp32_policy("cuda")


@pytest.mark.parametrize("func", [aten.relu.default, aten.mul.Tensor, aten.gelu.default], ids=str)
@pytest.mark.parametrize("device_type", ["cpu", "cuda", "meta", "nowhere"])
def test_ops_that_autocast_leaves_alone_are_on_no_list(func: Any, device_type: str) -> None:
    """A device without a list has nothing on it."""
    assert not op_info(func).has_fp32_policy(device_type)
    if device_type in ("meta", "nowhere"):
        assert not op_info(aten.mse_loss.default).has_fp32_policy(device_type)


def _leading(func: Any, *tensors: torch.Tensor) -> tuple[int, ...]:
    return dims_of(op_info(func), tensors, tensors, func(*tensors)).leading


def test_what_has_to_be_aligned_are_the_distances_of_rows() -> None:
    """The rows of both operands and of the result count; an odd batch is none of them."""
    a, b = torch.rand(7, 16), torch.rand(16, 24)

    assert _leading(aten.mm.default, a, b) == (16, 24, 24)
    assert _leading(aten.mm.default, a, torch.rand(24, 16).t()) == (16, 16, 24)
    assert _leading(aten.mm.default, torch.rand(16, 7).t(), b) == (7, 24, 24)
    assert _leading(aten.addmm.default, torch.rand(24), a, b) == (16, 24, 24)
    assert _leading(aten.bmm.default, torch.rand(3, 7, 16), torch.rand(3, 16, 24)) == (16, 24, 24)


def test_rows_of_a_part_of_a_wider_matrix_are_as_far_apart_as_those_of_the_whole() -> None:
    """An aligned slice of an odd matrix is not aligned."""
    assert _leading(aten.mm.default, torch.rand(8, 33)[:, :32], torch.rand(32, 8)) == (33, 8, 8)


def test_a_matrix_whose_rows_and_columns_are_both_apart_is_not_aligned() -> None:
    """A matrix of this kind has to be copied first."""
    assert _leading(aten.mm.default, torch.rand(8, 64)[:, ::2], torch.rand(32, 8))[0] == 1


def test_a_product_with_a_vector_has_nothing_to_align() -> None:
    """Tensor cores cannot help."""
    assert _leading(aten.mm.default, torch.rand(1, 16), torch.rand(16, 8)) == ()
    assert _leading(aten.mv.default, torch.rand(8, 16), torch.rand(16)) == ()


@pytest.mark.parametrize(
    ("weight", "groups", "leading"), [((16, 8), 1, (8, 16)), ((16, 4), 2, (4, 8)), ((8, 1), 8, ())]
)
def test_what_has_to_be_aligned_in_a_convolution_are_the_channels_of_a_group(
    weight: tuple[int, int], groups: int, leading: tuple[int, ...]
) -> None:
    """A depthwise one has no matmul."""
    image, kernel = torch.rand(2, weight[1] * groups, 6, 6), torch.rand(*weight, 3, 3)
    args = (image, kernel, None, (1, 1), (0, 0), (1, 1), False, (0, 0), groups)
    out = aten.convolution.default(*args)

    assert dims_of(op_info(aten.convolution.default), (image, kernel), args, out).leading == leading
