"""Matmuls in float32 although the training uses autocast."""

from __future__ import annotations

import pytest

from ampwatch.diagnosis.evidence.ops import Machine
from ampwatch.numerics.units.ops import Fallback, Phase
from ampwatch.wire.records import CensusSource, Severity
from tests.workshop.censuses import CPU, HOPPER, Watched, matmul

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
