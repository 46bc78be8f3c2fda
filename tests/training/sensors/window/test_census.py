"""FLOPs of real profiler events, held against PyTorch's own counter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ampwatch.numerics.units.ops import OpKind, Phase
from ampwatch.training.sensors.window.census import census_of, flops_of_shapes
from ampwatch.training.sensors.window.events import call_tree

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.diagnosis.evidence.ops import OpCensus


def _census(work: Callable[[], torch.Tensor]) -> OpCensus:
    """The census of forward and backward, from the events of PyTorch's profiler."""
    with torch.autograd.profiler.profile(record_shapes=True, with_flops=True) as profile:
        work().float().sum().backward()
    nodes = call_tree(list(profile.kineto_results.events()))
    return census_of(nodes, step=0, iterations=1, duration_s=1.0, device_type="cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("groups", [1, 2])
def test_convolutions_and_products_are_counted_as_pytorch_counts_them(
    dtype: torch.dtype, groups: int
) -> None:
    """Backward has two products for each of forward, but where nobody asks for a gradient."""
    model = nn.Sequential(
        nn.Conv2d(4, 8, 3, groups=groups), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 5)
    ).to(dtype)
    image = torch.randn(2, 4, 8, 8, dtype=dtype, requires_grad=True)
    with FlopCounterMode(display=False) as forward:
        model(image)
    with FlopCounterMode(display=False) as counter:
        model(image).float().sum().backward()

    census = _census(lambda: model(image))

    flops = {
        phase: sum(t.flops for k, t in census.tallies.items() if k.phase is phase)
        for phase in (Phase.FORWARD, Phase.BACKWARD)
    }
    assert flops[Phase.BACKWARD] == 2 * flops[Phase.FORWARD]
    # PyTorch counts the gradient of a grouped weight as if it had no groups.
    exact = counter.get_total_flops() if groups == 1 else 3 * forward.get_total_flops()
    assert sum(flops.values()) == exact
    name = str(dtype).removeprefix("torch.")
    assert {k.dtype for k, t in census.tallies.items() if t.flops} == {name}


def test_attention_is_counted_in_the_dtype_of_its_queries() -> None:
    """Two products forward and five backward: by hand, PyTorch counts none on a CPU."""
    q = torch.randn(2, 4, 16, 8, dtype=torch.bfloat16, requires_grad=True)

    census = _census(lambda: nn.functional.scaled_dot_product_attention(q, q, q))

    product = 2 * (2 * 4 * 16 * 16) * 8
    found = {
        (k.phase, k.dtype): t.flops for k, t in census.tallies.items() if k.kind is OpKind.ATTENTION
    }
    assert found == {
        (Phase.FORWARD, "bfloat16"): 2 * product,
        (Phase.BACKWARD, "bfloat16"): 5 * product,
    }


@pytest.mark.parametrize(
    ("name", "time_first"),
    [("_scaled_dot_product_flash_attention", False), ("_flash_attention_forward", True)],
)
def test_attention_on_a_gpu_is_counted_by_its_shapes(*, name: str, time_first: bool) -> None:
    """Heads come before time in one of the two, and the keys may be more than the queries."""
    (batch, heads, queries, keys, features) = (2, 3, 5, 7, 11)
    order = (
        (lambda t: (batch, t, heads, features))
        if time_first
        else (lambda t: (batch, heads, t, features))
    )
    shapes = [order(queries), order(keys), order(keys), (), ()]

    flops = flops_of_shapes(name, OpKind.ATTENTION, shapes)

    assert flops == 2 * 2 * batch * heads * queries * keys * features


def test_shapes_that_are_not_those_of_the_op_count_nothing() -> None:
    """An op of a name that says attention or convolution may be anything."""
    assert flops_of_shapes("my_attention", OpKind.ATTENTION, [(2, 3), (2, 3), (2, 3)]) == 0
    assert flops_of_shapes("my_attention", OpKind.ATTENTION, [(), ()]) == 0
    assert flops_of_shapes("convolution_backward", OpKind.CONVOLUTION, [(2, 3)]) == 0
    assert flops_of_shapes("mm", OpKind.MATMUL, [(2, 3), (3, 4)]) == 0
