"""Dimensions and memory formats that tensor cores cannot use well, and kernels that a GPU spent its time in."""

from __future__ import annotations

from typing import Any

import pytest

from ampwatch.diagnosis.evidence.ops import KernelTime, LayerShape, Window
from ampwatch.diagnosis.performance.op_shares import place
from ampwatch.numerics.units.ops import Fallback, OpKind, Phase
from ampwatch.wire.records import Severity
from tests.workshop.censuses import CPU, HOPPER, Watched, convolution, matmul
from tests.workshop.iterations import TAKEN
from tests.workshop.replay import Replay

VOCABULARY = (1, 1024, 50257, 768)


def odd(module: str, flops: int, shape: tuple[int, ...], dtype: str = "bfloat16") -> object:
    return matmul(module, flops, dtype, unaligned_flops=flops, shape=shape)


def linear(module: str, *dims: int, dtype: str = "float32", device: str = "meta") -> LayerShape:
    return LayerShape(module, OpKind.MATMUL, (dims[0], dims[1]), dims[0] * dims[1], dtype, device)


def test_the_module_with_most_unaligned_flops_is_named_with_what_would_do() -> None:
    """50257 is the vocabulary; 50264 is the next multiple of 8."""
    watched = Watched()
    for _ in range(2):
        watched.take(odd("lm_head", 600, VOCABULARY), odd("mlp", 300, (1, 1024, 770, 770)))

    finding = watched.only("dims_unaligned")
    assert (finding.where, finding.phase, finding.count) == ("lm_head", "config", 2)
    assert finding.severity is Severity.INFO
    assert "N 50257" in finding.summary
    assert "50264" in finding.summary
    assert finding.evidence["n"] == 50257
    assert finding.evidence["unaligned_share_here"] == pytest.approx(2 / 3)
    assert "not known" in finding.summary


def test_on_a_gpu_nothing_is_said_about_cost_not_being_known() -> None:
    """There it is what tensor cores need."""
    finding = Watched(HOPPER).take(odd("m", 10, VOCABULARY)).only("dims_unaligned")

    assert "not known" not in finding.summary


@pytest.mark.parametrize(("aligned", "named"), [(300, True), (301, False)])
def test_a_quarter_of_the_flops_is_the_threshold(*, aligned: int, named: bool) -> None:
    """An odd stem or head is cheap."""
    watched = Watched().take(matmul("m", aligned), odd("head", 100, VOCABULARY))

    assert bool(watched.named) is named


@pytest.mark.parametrize("shape", [(1, 1024, 10, 64), (1, 24, 7, 24), (), (3, 4, 5)])
def test_what_is_not_worth_padding_or_not_understood_is_left_alone(shape: tuple[int, ...]) -> None:
    """Ten classes, seven joints; and shapes without four numbers."""
    assert Watched().take(odd("head", 100, shape)).named == []


def test_float32_has_no_alignment_to_be_held_against() -> None:
    """The census counts unaligned FLOPs in low precision only; this is the second lock."""
    assert Watched().take(matmul("a", 1), odd("m", 100, VOCABULARY, "float32")).named == [
        ("fp32_matmul", "m")
    ]


def test_an_odd_batch_is_reported_as_such() -> None:
    """It is M, and a sampler decides it."""
    finding = Watched().take(odd("m", 9, (1, 33, 64, 64))).only("dims_unaligned")

    assert "M 33" in finding.summary
    assert "N " not in finding.summary.split(":")[1]
    assert "drop_last" in finding.advice


def test_float8_needs_sixteen() -> None:
    """Elements are half as large."""
    finding = Watched().take(odd("m", 9, (1, 64, 72, 64), "float8_e4m3fn")).only("dims_unaligned")

    assert "multiple of 16" in finding.summary
    assert finding.evidence["n"] == 72


def test_channels_of_convolutions_are_named_and_their_pixels_are_not() -> None:
    """No image is worth resizing for the sake of M."""
    op = convolution("c", 100, unaligned_flops=100, shape=(1, 1023, 67, 297))
    finding = Watched().take(op).only("dims_unaligned")

    assert "output channels 67" in finding.summary
    assert "1023" not in finding.summary
    only_pixels = convolution("c", 100, unaligned_flops=100, shape=(1, 1023, 64, 576))
    assert Watched().take(only_pixels).named == []


def test_layers_without_memory_are_judged_by_their_weights_at_once() -> None:
    """A model on the device meta never runs; its shapes are all there is."""
    watched = Watched(CPU, [linear("mlp", 770, 770), linear("lm_head", 770, 50257)], dtypes=())
    watched.performance.check_layers()
    watched.performance.check_layers()

    finding = watched.only("dims_unaligned")
    assert (finding.where, finding.phase, finding.count) == ("lm_head", "config", 1)
    assert finding.evidence["output_features"] == 50257
    assert finding.evidence["layers"] == 2


@pytest.mark.parametrize(
    "layers",
    [
        [linear("mlp", 768, 768), linear("lm_head", 768, 50304)],
        [linear("mlp", 768, 768), linear("head", 768, 10)],
        [linear("mlp", 768, 2304), linear("odd", 768, 301)],
        [linear("mlp", 770, 770, device="cpu")],
        [linear("mlp", 770, 770, device="cuda")],
        [],
    ],
    ids=["aligned", "ten classes", "few weights", "on a CPU", "float32 so far", "no layers"],
)
def test_layers_that_are_aligned_or_not_known_to_be_multiplied_low_are_left_alone(
    layers: list[LayerShape],
) -> None:
    """Whoever trains in float32 need not pad."""
    watched = Watched(HOPPER, layers, dtypes=())
    watched.performance.check_layers()

    assert watched.named == []


def test_layers_on_a_gpu_are_judged_as_soon_as_autocast_is_seen() -> None:
    """Or at once, if they are float16 themselves."""
    watched = Watched(HOPPER, [linear("m", 770, 770, device="cuda")], dtypes=())
    watched.performance.check_layers()
    before = watched.named
    watched.dtypes.append("float16")
    watched.performance.check_layers()
    half = Watched(CPU, [linear("m", 770, 770, dtype="float16", device="cpu")], dtypes=())
    half.performance.check_layers()

    assert (before, watched.named, half.named) == (
        [],
        [("dims_unaligned", "m")],
        [("dims_unaligned", "m")],
    )


@pytest.mark.parametrize(("last", "named"), [(500, True), (501, False)])
def test_convolutions_that_read_contiguous_images_are_named(*, last: int, named: bool) -> None:
    """Half of the FLOPs in low precision is the threshold; gradients have a layout of their own."""
    watched = Watched().take(
        convolution("stem", 200, nchw_flops=200),
        convolution("body", 300, nchw_flops=300),
        convolution("last", last),
        convolution("last", 5000, nchw_flops=5000, phase=Phase.BACKWARD),
        convolution("wide", 10_000, "float32"),
        matmul("head", 90_000),
    )

    assert [where for kind, where in watched.named if kind == "layout_nchw"] == ["body"] * named
    if named:
        finding = watched.only("layout_nchw")
        assert (finding.phase, finding.op) == ("config", "convolution")
        assert finding.evidence["nchw_share"] == 0.5
        assert "channels_last" in finding.advice


ENCODER = {"encoder": 10}


@pytest.mark.parametrize(
    ("amounts", "others", "where"),
    [
        ({"decoder.0": 11, "decoder.1": 89}, ENCODER, "decoder"),
        ({"decoder.1": 89}, {"decoder.0": 11}, "decoder.1"),
        ({"a.ff.0": 50, "a.ff.2": 50, "b.ff.0": 60, "b.ff.2": 60}, {"a": 90, "b": 90}, "b.ff"),
        ({"a.b.c": 1}, {}, "a.b.c"),
        ({"": 5, "a": 5}, {}, ""),
        ({"": 60, "a": 5}, {"a": 90}, ""),
        ({"decoder.0": 9_999, "decoder.1": 9_999, "loss": 1}, ENCODER, "decoder"),
        ({"block1.x": 4, "block10.x": 5}, {"block1.y": 9, "block10.y": 9}, "block10.x"),
    ],
    ids=[
        "all of a container",
        "one child of it",
        "the same part of each block",
        "one module",
        "all of the model",
        "the model's own forward",
        "next to nothing elsewhere",
        "a name that begins like another",
    ],
)
def test_it_is_the_innermost_module_that_is_affected_as_a_whole(
    amounts: dict[str, int], others: dict[str, int], where: str
) -> None:
    """A region drawn around a container names the container, and one in each block a block."""
    totals = {name: amounts.get(name, 0) + others.get(name, 0) for name in {**amounts, **others}}

    assert place(amounts, totals) == where


def kernel(name: str, unit: str, dtype: str, seconds: float, **more: Any) -> KernelTime:
    fields = {"op": "aten::mm", "align": 0, "lags": False, "gemv": False, **more}
    return KernelTime(name=name, unit=unit, dtype=dtype, seconds=seconds, **fields)


GOOD = kernel("nvjet_tst", "tensor", "bfloat16", 0.1, align=8)
ALIGN1 = kernel("cutlass_75_align1", "tensor", "bfloat16", 0.04, align=1, lags=True)
OLD = kernel("sm80_xmma", "tensor", "bfloat16", 0.04, lags=True)
SGEMM = kernel("ampere_sgemm_128x64", "cuda", "float32", 0.04)
GEMV = kernel("gemv2T_kernel", "cuda", "bfloat16", 0.04, gemv=True)
UNKNOWN = kernel("Kernel2", "unknown", "", 0.9, align=1, lags=True, gemv=True)


def pass_windows(
    watched: Watched, *kernels: KernelTime, windows: int = 2, wall_s: float = 0.4
) -> Watched:
    """Hand over windows of two iterations in which the GPU was busy for 200 ms."""
    replay = Replay()
    for step in range(windows):
        iteration = replay.take().last
        iteration.window = Window(10 * step, 2, wall_s, 0.2, [GOOD, *kernels])
        watched.performance.detect(iteration, TAKEN)
    return watched


@pytest.mark.parametrize(
    ("slow", "kind", "phase"),
    [
        (ALIGN1, "dims_unaligned", "config"),
        (OLD, "kernels_outdated", "config"),
        (SGEMM, "fp32_matmul", "forward"),
        (GEMV, "matmul_is_gemv", "config"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_slow_kernels_are_named_with_their_time_after_two_windows(
    slow: KernelTime, kind: str, phase: str
) -> None:
    """One sort of kernel is one finding."""
    watched = Watched(HOPPER)
    pass_windows(watched, slow, windows=1)
    before = watched.named
    pass_windows(watched, slow)

    assert before == []
    finding = watched.only(kind)
    assert watched.named == [(kind, "")]
    assert (finding.phase, finding.severity, finding.op) == (phase, Severity.INFO, "aten::mm")
    assert finding.evidence["kernel_seconds"] == pytest.approx(0.02)
    assert finding.evidence["kernel_share"] == pytest.approx(0.2)
    assert finding.evidence["wall_share"] == pytest.approx(0.1)
    assert slow.name in finding.summary
    assert "20 ms a step" in finding.summary


@pytest.mark.parametrize(
    "kernels",
    [
        [UNKNOWN],
        [kernel("sm90", "tensor", "bfloat16", 0.1, align=8)],
        [kernel("tf32", "tensor", "tf32", 0.1, align=4)],
        [kernel("fp8", "tensor", "float8", 0.1, align=16)],
        [ALIGN1._replace(seconds=0.019)],
        [SGEMM._replace(dtype="float64")],
        [kernel("gemv", "cuda", "float32", 0.1, gemv=True)],
        [kernel("softmax", "other", "float32", 0.1)],
    ],
    ids=["unknown", "16 bytes", "tf32", "float8", "little", "float64", "float32 gemv", "other"],
)
def test_what_is_not_known_to_be_slow_causes_no_advice(kernels: list[KernelTime]) -> None:
    """A name that says nothing is never held against a kernel."""
    assert pass_windows(Watched(HOPPER), *kernels, windows=4).named == []


def test_float32_and_vectors_are_the_users_choice_without_autocast() -> None:
    """Misaligned and old kernels are slow either way."""
    watched = pass_windows(Watched(HOPPER, dtypes=()), SGEMM, GEMV, ALIGN1, OLD)

    assert [kind for kind, _ in watched.named] == ["dims_unaligned", "kernels_outdated"]


def test_one_unusual_window_is_not_enough() -> None:
    """Two in a row have to agree."""
    watched = Watched(HOPPER)
    for _ in range(3):
        pass_windows(watched, ALIGN1, windows=1)
        pass_windows(watched, windows=1)

    assert watched.named == []


def test_the_census_says_where_the_kernels_belong() -> None:
    """The finding of the census gets the time; there are not two of them."""
    watched = Watched(HOPPER)
    odd = matmul("attention", 100, unaligned_flops=100, shape=(1, 5185, 5185, 64))
    watched.take(odd)
    pass_windows(watched, ALIGN1)

    assert watched.named == [("dims_unaligned", "attention")]
    assert watched.only("dims_unaligned").evidence["kernel_seconds"] == pytest.approx(0.02)


def test_vectors_are_traced_to_the_module_that_has_most_of_them() -> None:
    """A product with one row or one column."""
    watched = Watched(HOPPER)
    watched.take(
        matmul("small", 1, bytes=10, shape=(1, 1, 8, 8)),
        matmul("value_head", 1, bytes=100, shape=(1, 512, 1, 512)),
        matmul("body", 9, bytes=900, shape=(1, 512, 512, 512)),
    )

    assert pass_windows(watched, GEMV).only("matmul_is_gemv").where == "value_head"


def test_what_can_be_won_back_is_bounded_by_the_roofline_and_large_gains_are_warnings() -> None:
    """5185 padded: 62 FLOP/B at 3 TB/s are a roof of 187 TFLOP/s, far below the peak."""
    shape = (16, 5185, 5185, 64)
    flops = 2 * 16 * 5185 * 5185 * 64
    traffic = 16 * (2 * 5185 * 64 + 5185 * 5185) * 2
    watched = Watched(HOPPER)
    watched.take(matmul("attention", flops, unaligned_flops=flops, shape=shape))
    pass_windows(watched, ALIGN1, wall_s=0.2)
    finding = watched.only("dims_unaligned")

    assert finding.evidence["recoverable_seconds"] == pytest.approx(0.02 - traffic / 3e12)
    assert finding.evidence["gain_ratio"] == pytest.approx((0.02 - traffic / 3e12) * 2 / 0.2)
    assert finding.severity is Severity.INFO
    pass_windows(watched, ALIGN1._replace(seconds=0.09), wall_s=0.2)
    assert finding.severity is Severity.WARNING


def test_without_a_known_roof_there_is_no_gain_but_there_is_a_share() -> None:
    """A third of the wall time in float32 on CUDA cores is a warning by itself."""
    watched = Watched(HOPPER._replace(memory_bandwidth=0.0))
    watched.take(
        matmul("m", 64), matmul("f", 64, "float32", Fallback.DISABLED_REGION, shape=(1, 4, 4, 4))
    )
    pass_windows(watched, SGEMM._replace(seconds=0.06), wall_s=0.2)
    finding = watched.only("fp32_matmul")

    assert "recoverable_seconds" not in finding.evidence
    assert finding.where == "f"
    assert finding.severity is Severity.WARNING
