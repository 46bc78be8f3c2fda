"""Facts about ops, and their FLOPs, held against PyTorch's own counter and against sums by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the name everybody gives it
from torch.utils.flop_counter import FlopCounterMode

from ampwatch.numerics.units.ops import OpKind, Phase
from ampwatch.training.ops.flops import flops_of
from ampwatch.training.ops.info import dims_of, op_info
from tests.training.sensors.counting import Counted, Log

aten = torch.ops.aten


class Attention(nn.Module):
    """Multi-head attention as it is written with one op, or by hand."""

    def __init__(self, *, by_hand: bool) -> None:
        super().__init__()
        self.by_hand = by_hand
        self.qkv = nn.Linear(32, 96)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 4, 8).permute(2, 0, 3, 1, 4)
        if self.by_hand:
            return (q @ k.transpose(-1, -2)).softmax(-1) @ v
        return F.scaled_dot_product_attention(q, k, v)


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8, bias=False))


def _convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(8, 16, 3, stride=2),
        nn.ReLU(),
        nn.ConvTranspose2d(16, 8, 3),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.Conv2d(8, 4, 1, dilation=2),
        nn.BatchNorm2d(4),
    )


def _embedding() -> nn.Module:
    return nn.Sequential(nn.Embedding(10, 8), nn.LayerNorm(8), nn.Linear(8, 4))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "mlp": (_mlp, lambda: torch.randn(5, 16)),
    "mlp of sequences": (_mlp, lambda: torch.randn(2, 5, 16)),
    "convolutions": (_convolutions, lambda: torch.randn(2, 8, 9, 9)),
    "embedding": (_embedding, lambda: torch.randint(10, (3, 4))),
    "attention by hand": (lambda: Attention(by_hand=True), lambda: torch.randn(2, 6, 32)),
    "transformer": (
        lambda: nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1),
        lambda: torch.randn(6, 2, 32),
    ),
}


def step(model: nn.Module, x: torch.Tensor, dtype: torch.dtype | None = torch.bfloat16) -> None:
    with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        out = model(x)
    out.float().square().mean().backward()


@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", MODELS)
def test_flops_are_those_of_pytorchs_own_counter(name: str, dtype: torch.dtype | None) -> None:
    """Forward and backward are compared together."""
    model, inputs = (make() for make in MODELS[name])
    with FlopCounterMode(display=False) as own:
        step(model, inputs, dtype)
    with Counted(model) as counted:
        step(model, inputs, dtype)

    assert counted.sum("flops") == own.get_total_flops() > 0


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("groups", [2, 4, 8])
def test_backward_of_a_grouped_convolution_is_two_products_like_the_one_of_forward(
    *, groups: int, transposed: bool
) -> None:
    """PyTorch's counter has the gradient of the weight as if there were no groups."""
    kind = nn.ConvTranspose2d if transposed else nn.Conv2d
    model = kind(8, 16, 3, groups=groups)
    image = torch.randn(2, 8, 9, 9, requires_grad=True)
    with FlopCounterMode(display=False) as forward, torch.no_grad():
        model(image)
    with FlopCounterMode(display=False) as own:
        step(model, image, None)
    with Counted(model) as counted:
        step(model, image, None)

    assert counted.sum("flops") == 3 * forward.get_total_flops()
    assert own.get_total_flops() > counted.sum("flops")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_attention_on_a_cpu_is_counted_as_its_parts_are(dtype: torch.dtype) -> None:
    """PyTorch's counter knows no such op; backward computes the scores a second time."""
    model = Attention(by_hand=False)
    with Counted(model) as counted:
        step(model, torch.randn(2, 6, 32), dtype if dtype is torch.bfloat16 else None)

    product = 2 * 2 * 4 * 6 * 6 * 8
    assert counted.by("phase", "flops", kind=OpKind.ATTENTION) == {
        Phase.FORWARD: 2 * product,
        Phase.BACKWARD: 5 * product,
    }
    name = str(dtype).removeprefix("torch.")
    assert counted.by("dtype", "flops", kind=OpKind.ATTENTION) == {name: 7 * product}


def _flops(func: Any, *args: Any, out: Any = None, **kwargs: Any) -> int:
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    return flops_of(op_info(func), args, kwargs, tensors, out)


def _on_meta(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta")


def test_attention_with_fewer_heads_for_keys_counts_the_heads_of_queries() -> None:
    """Grouped queries share keys; PyTorch's counter refuses such a call."""
    q, k = _on_meta(2, 8, 10, 16), _on_meta(2, 2, 12, 16)

    forward = _flops(aten._scaled_dot_product_flash_attention.default, q, k, k)

    assert forward == 2 * (2 * 2 * 8 * 10 * 12 * 16)


@pytest.mark.parametrize(("is_backward", "products"), [(False, 2), (True, 5)])
def test_attention_over_sequences_of_any_length_is_counted_as_by_hand(
    *, is_backward: bool, products: int
) -> None:
    """PyTorch's own formula says the same, and reads the lengths, for which it waits."""
    pytest.importorskip("torch.nn.attention.varlen", reason="since PyTorch 2.10")
    space = torch.ops.torch_attn
    func = space._varlen_attn_backward if is_backward else space._varlen_attn
    q, ends, unread = torch.empty(12, 2, 8), torch.tensor([0, 4, 8, 12]), _on_meta(4)
    args = [(q, q, q, at, at, 4, 4) for at in (ends, unread)]
    if is_backward:
        args = [(q, q, q, q, q, q, at, at, 4, 4, False, q) for at in (ends, unread)]
    own, mine = args
    info = op_info(func.default)
    assert info.count_flops is not None
    assert info.kind is OpKind.ATTENTION

    by_hand = products * 2 * 3 * 2 * 4 * 4 * 8  # products, sequences, heads, pairs, features
    assert _flops(func.default, *mine) == by_hand == info.count_flops(*own, out_val=None)


def test_backward_of_attention_is_five_products() -> None:
    """Values of another width than keys; the registry's formula says the same."""
    q, k, v = _on_meta(2, 4, 6, 8), _on_meta(2, 4, 7, 8), _on_meta(2, 4, 7, 8)
    func = aten._scaled_dot_product_flash_attention_backward.default
    args = (q, q, k, v, q, q, None, None, 6, 7, 0.0, False, q, q)
    own = op_info(func).count_flops
    assert own is not None

    assert _flops(func, *args) == own(*args, out_val=None) > 0


@pytest.mark.parametrize(
    ("func", "shapes", "out", "expected"),
    [
        (aten.mv.default, ((3, 5), (5,)), (3,), 2 * 3 * 5),
        (aten.dot.default, ((5,), (5,)), (), 2 * 5),
        (aten.addmv.default, ((3,), (3, 5), (5,)), (3,), 2 * 3 * 5),
        (aten.addbmm.default, ((3, 4), (2, 3, 5), (2, 5, 4)), (3, 4), 2 * 2 * 3 * 5 * 4),
        (aten.linear.default, ((2, 3, 5), (4, 5)), (2, 3, 4), 2 * 6 * 5 * 4),
        (aten.matmul.default, ((2, 3, 5), (5, 4)), (2, 3, 4), 2 * 6 * 5 * 4),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_products_that_the_registry_leaves_out(
    func: Any, shapes: Any, out: tuple[int, ...], expected: int
) -> None:
    """With a vector, in inference mode, and summed over a batch."""
    tensors = [_on_meta(*shape) for shape in shapes]

    assert _flops(func, *tensors, out=_on_meta(*out)) == expected


def test_a_recurrent_network_multiplies_each_of_its_weights_once_a_token() -> None:
    """Two matrices forward, and for each both gradients backward, as one op on a CPU."""
    model = nn.LSTM(8, 16, batch_first=True)
    with Counted(model) as counted:
        out, _ = model(torch.randn(2, 5, 8))
        out.sum().backward()

    forward = 2 * (2 * 5) * (4 * 16) * (8 + 16)
    assert counted.by("phase", "flops") == {Phase.FORWARD: forward, Phase.BACKWARD: 2 * forward}


def test_a_convolution_is_shaped_as_the_matmul_it_is() -> None:
    """(groups, pixels, outputs of a group, inputs of a group times the size of the kernel)."""
    model = nn.Conv2d(8, 16, 3, groups=2, bias=False)
    with Counted(model) as counted:
        step(model, torch.randn(2, 8, 6, 6))

    shapes = {tally.shape for _, tally in counted.of(kind=OpKind.CONVOLUTION)}
    assert shapes == {(2, 2 * 4 * 4, 8, 4 * 9)}


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
