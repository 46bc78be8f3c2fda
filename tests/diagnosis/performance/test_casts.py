"""Cost of casts."""

from __future__ import annotations

import pytest

from ampwatch.diagnosis.evidence.ops import LayerShape
from ampwatch.numerics.units.ops import Fallback, OpKind, Phase
from tests.workshop.censuses import Watched, cast, matmul, op

LAYERS = 4


def stack(*, up: int = 0, relus: int = LAYERS, cast_bytes: int = 400, other: int = 600) -> list:
    """Return a stack of Linear and ReLU; ``up`` of its layers are followed by ``.float()``.

    Autocast casts a weight and a bias of each layer, the input, and what was cast up.
    """
    down = 2 * LAYERS + 1 + up
    ops = [
        *(matmul(f"net.{i}", 250, bytes=other // LAYERS) for i in range(LAYERS)),
        op("relu", OpKind.POINTWISE, "net", "bfloat16", calls=relus),
        cast("net", down, "float32", "bfloat16", bytes=cast_bytes // 2),
    ]
    if up:
        ops.append(cast("net.act", up, "bfloat16", "float32", bytes=cast_bytes // 2))
    return ops


def kinds(watched: Watched) -> list[str]:
    return [kind for kind, _ in watched.named]


def test_the_casts_of_weights_are_the_price_of_autocast_and_not_named() -> None:
    """Nine casts beside four matmuls and nothing else: a plain stack of Linear layers."""
    assert kinds(Watched().take(*stack(relus=0))) == []


def test_leaving_low_precision_after_each_layer_is_named_where_most_bytes_are_cast_up() -> None:
    """Once, and counted after that."""
    watched = Watched().take(*stack(up=4)).take(*stack(up=4))

    finding = watched.only("cast_overhead")
    assert (finding.where, finding.op, finding.count) == ("net.act", "_to_copy", 2)
    assert finding.evidence["casts"] == 17
    assert finding.evidence["casts_per_op"] == 17 / 8
    assert finding.evidence["avoidable_casts"] == 3
    assert finding.evidence["cast_bytes_share"] == 0.4
    assert "torch.compile" in finding.advice


@pytest.mark.parametrize(
    "ops",
    [
        stack(up=1),
        stack(up=2),
        [k if k[1].flops else (k[0]._replace(dtype="float8_e4m3fn"), k[1]) for k in stack(up=4)],
        stack(up=4)[LAYERS:],
        stack(up=4, cast_bytes=100),
        stack(up=3, relus=40),
        [*stack(up=4), op("rms", OpKind.NORMALIZATION, "n", "float32", calls=4, fallback=Fallback.FP32_LIST)],
        [*stack(up=4), op("cat", OpKind.OTHER, "n", "float32", calls=4, fallback=Fallback.PROMOTED)],
    ],
    ids=["the loss", "two outputs", "float8", "no matmul", "few bytes", "many other ops", "norms", "promoted"],
)  # fmt: skip
def test_casts_that_autocast_asks_for_or_that_cost_little_are_not_named(ops: list) -> None:
    """Norms and softmax run in float32 on a GPU: their casts are part of the bargain."""
    assert kinds(Watched().take(*ops)) == []


def test_a_round_trip_for_nearly_every_matmul_is_named_whatever_else_runs() -> None:
    """Many pointwise ops hide them from the ratio of casts to ops."""
    assert kinds(Watched().take(*stack(up=4, relus=40))) == ["cast_overhead"]


def recast(calls: int, casts: int) -> list:
    return [
        matmul("cell", 100, calls=calls, bytes=100),
        cast("cell", casts, "float32", "bfloat16", bytes=500),
    ]


@pytest.mark.parametrize(
    ("casts", "losses", "layer", "named"),
    [
        (20, 1, "cell", True),
        (13, 1, "cell", True),
        (12, 1, "cell", False),
        (20, 5, "cell", False),
        (20, 0, "cell", False),
        (20, 1, "other", False),
    ],
    ids=["each call", "one more", "once", "micro-batches", "losses unknown", "no layer"],
)
def test_a_weight_that_is_cast_more_than_once_a_micro_batch_is_named(
    *, casts: int, losses: int, layer: str, named: bool
) -> None:
    """Ten calls cast ten inputs, a weight and a bias; whatever is not certain is not said."""
    layers = [LayerShape(layer, OpKind.MATMUL, (64, 64), 4096, "float32", "cpu")]
    watched = Watched(layers=layers).take(*recast(10, casts), num_losses=losses)

    assert kinds(watched) == ["cast_overhead"] * named
    if named:
        finding = watched.only("cast_overhead")
        assert (finding.where, finding.evidence["avoidable_casts"]) == ("cell", casts - 12)
        assert "cache_enabled" in finding.advice


def test_casts_outside_of_all_layers_may_be_those_of_another_model() -> None:
    """A model that is a single layer has no name to tell them by."""
    layers = [LayerShape("", OpKind.MATMUL, (64, 64), 4096, "float32", "cpu")]
    ops = [(key._replace(module=""), tally) for key, tally in recast(10, 20)]

    assert kinds(Watched(layers=layers).take(*ops, num_losses=1)) == []


def test_casts_of_the_optimizer_are_none_of_autocast() -> None:
    """Master weights are copied once a step."""
    ops = stack()
    ops.append(cast("", 90, "bfloat16", "float32", phase=Phase.OPTIMIZER, bytes=9000))

    assert kinds(Watched().take(*ops)) == []


@pytest.mark.parametrize(
    ("copies", "activations", "named"),
    [
        (2**20, 2**20 - 1, True),
        (2**20, 2**20, False),
        (2**15, 0, False),
        (0, 2**20, False),
    ],
    ids=["heavier weights", "a draw", "next to nothing", "low-precision weights"],
)
def test_copies_of_weights_that_outweigh_the_halved_activations_are_reported(
    *, copies: int, activations: int, named: bool
) -> None:
    """float32 keeps twice the activations and no copies."""
    watched = Watched().take(matmul("m", 1), weight_cast_bytes=copies, activation_bytes=activations)

    assert watched.named == [("no_memory_gain", "")] * named
    if named:
        finding = watched.only("no_memory_gain")
        assert finding.phase == "config"
        assert finding.evidence["bytes_more_than_float32"] == copies - activations
