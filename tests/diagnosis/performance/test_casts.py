"""Cost of casts, and matmuls in float32 although the training uses autocast."""

from __future__ import annotations

import pytest

from ampwatch.diagnosis.evidence.ops import LayerShape, Machine
from ampwatch.numerics.units.ops import Fallback, OpKind, Phase
from ampwatch.wire.records import CensusSource, Severity
from tests.workshop.censuses import CPU, HOPPER, Watched, cast, matmul, op

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


REGION = Fallback.DISABLED_REGION


@pytest.mark.parametrize(("machine", "has_tf32"), [(HOPPER, True), (CPU, False)])
def test_a_container_in_a_disabled_region_is_named_once_and_counted(
    machine: Machine, *, has_tf32: bool
) -> None:
    """The children have the matmuls; the region was drawn around their parent. TF32 is a GPU's."""
    watched = Watched(machine)
    for _ in range(3):
        watched.take(
            matmul("encoder", 100),
            matmul("decoder.0", 100, "float32", REGION),
            matmul("decoder.1", 800, "float32", REGION),
        )

    finding = watched.only("fp32_matmul")
    assert (finding.where, finding.phase, finding.op) == ("decoder", "forward", "addmm")
    assert (finding.count, finding.severity) == (3, Severity.INFO)
    assert finding.evidence["float32_share"] == 0.9
    assert "autocast(enabled=False)" in finding.summary
    assert ("set_float32_matmul_precision" in finding.advice) is has_tf32


@pytest.mark.parametrize(("float32", "named"), [(50, False), (51, True)])
def test_half_of_the_flops_is_the_threshold(*, float32: int, named: bool) -> None:
    """A run that computes everything in both precisions to compare them is not one."""
    watched = Watched().take(matmul("a", 100 - float32), matmul("b", float32, "float32", REGION))

    assert bool(watched.named) is named


@pytest.mark.parametrize(
    "large",
    [
        matmul("big", 900, "tf32"),
        matmul("big", 900, "float32", phase=Phase.EVAL),
        matmul("big", 900, "float32", phase=Phase.OPTIMIZER),
        matmul("", 900, "float32", Fallback.OUTSIDE_REGION),
    ],
    ids=["TF32", "an evaluation", "an optimizer that multiplies matrices", "another model"],
)
def test_what_is_no_float32_matmul_of_the_forward_pass_does_not_count(large: object) -> None:
    """Tensor cores run TF32; the others are not what autocast is for."""
    assert Watched().take(matmul("a", 100), large).named == []


def test_the_reason_that_has_most_flops_says_where() -> None:
    """The place of another reason would lead astray."""
    watched = Watched().take(
        matmul("head", 30, "float32", Fallback.OUTSIDE_REGION),
        matmul("ff", 70, "float32", Fallback.CUSTOM_FUNCTION),
    )

    finding = watched.only("fp32_matmul")
    assert finding.where == "ff"
    assert "autograd.Function" in finding.summary
    assert finding.evidence["reason_share"] == 0.7


@pytest.mark.parametrize("reason", [Fallback.OTHER_THREAD, Fallback.DEVICE_TYPE])
def test_autocast_that_is_elsewhere_is_another_finding(reason: Fallback) -> None:
    """One incident is one finding."""
    watched = Watched().take(matmul("m", 100, "float32", reason))

    assert watched.named == [("autocast_inactive", "m")]


def test_float32_without_autocast_is_advised_of_tf32_only_where_there_is_some() -> None:
    """On a CPU float32 is the user's choice, and so it is where TF32 is on."""
    op = matmul("m", 100, "float32")
    finding = Watched(HOPPER, dtypes=()).take(op).only("fp32_matmul")

    assert "TF32 is off" in finding.summary
    for machine in (CPU, HOPPER._replace(matmul_tf32=True), HOPPER._replace(capability=(7, 5))):
        assert Watched(machine, dtypes=()).take(op).book.of_kind("fp32_matmul") == []


def test_the_gain_is_what_the_roofline_of_a_known_gpu_leaves() -> None:
    """4096 cubed: 2.29 ms at least at 60 TFLOP/s, and 0.18 ms at 75 % of 1000 TFLOP/s."""
    flops = 2 * 4096**3
    op = matmul("m", flops, "float32", REGION, shape=(1, 4096, 4096, 4096))
    finding = Watched(HOPPER).take(op, duration_s=0.01).only("fp32_matmul")

    expected = flops / 60e12 - flops / 750e12
    assert finding.evidence["recoverable_seconds"] == pytest.approx(expected)
    assert finding.evidence["gain_ratio"] == pytest.approx(expected / 0.01)


def test_a_gain_that_is_not_known_is_not_a_number() -> None:
    """Neither of an unknown GPU nor where one of two limits is unknown."""
    op = matmul("m", 2 * 64**3, "float32", REGION, shape=(1, 64, 64, 64))
    for machine in (CPU, HOPPER._replace(memory_bandwidth=0.0), HOPPER._replace(peak_flops={})):
        finding = Watched(machine).take(op, duration_s=0.01).only("fp32_matmul")
        assert not {"recoverable_seconds", "gain_ratio"} & finding.evidence.keys()


def test_a_census_from_a_profiler_window_is_judged_with_the_autocast_that_is_known() -> None:
    """The profiler does not see it: else float32 would be blamed on TF32 that is off."""
    ops = matmul("", 100), matmul("", 900, "float32", phase=Phase.FORWARD)

    watched = Watched(HOPPER).take(*ops, source=CensusSource.PROFILER, autocast_dtypes=())

    summary = watched.only("fp32_matmul").summary
    assert "although autocast is bfloat16" in summary
    assert "no autocast is used" not in summary
