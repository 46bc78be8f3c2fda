"""Autocast that was meant for this code and is not on in it."""

from __future__ import annotations

import pytest

from ampwatch.diagnosis.evidence.ops import LoneForward
from ampwatch.numerics.units.ops import Fallback, OpKind
from ampwatch.wire.records import Severity
from tests.workshop.censuses import CPU, HOPPER, Watched, matmul, op

FLOAT32 = matmul("net.0", 100, "float32")


def lone(module: str, reason: Fallback, device_type: str, calls: int = 1) -> LoneForward:
    return LoneForward(module, reason, "float16", device_type, calls)


def test_a_model_called_in_a_thread_without_autocast_is_named() -> None:
    """Once, although each census sees it, with the module that was called most."""
    watched = Watched(dtypes=())
    for _ in range(2):
        watched.take(
            lone_forwards=[
                lone("head", Fallback.OTHER_THREAD, "cpu"),
                lone("", Fallback.OTHER_THREAD, "cpu", 3),
            ]
        )

    finding = watched.only("autocast_inactive")
    assert (finding.where, finding.phase, finding.count) == ("", "forward", 2)
    assert finding.severity is Severity.WARNING
    assert finding.evidence["calls"] == 4
    assert "thread" in finding.summary
    assert "inside the function that the thread runs" in finding.advice


@pytest.mark.parametrize(
    ("machine", "region", "severity"),
    [
        (CPU, "cuda", Severity.INFO),
        (HOPPER, "cuda", Severity.WARNING),
        (HOPPER, "cpu", Severity.WARNING),
    ],
    ids=["no such device", "the model was left behind", "the wrong device"],
)
def test_a_region_for_another_type_of_device_is_a_mistake_if_there_is_such_a_device(
    machine: object, region: str, severity: Severity
) -> None:
    """``autocast("cuda", enabled=torch.cuda.is_available())`` on a CPU is meant to do nothing."""
    watched = Watched(machine, dtypes=())
    watched.take(FLOAT32, lone_forwards=[lone("net", Fallback.DEVICE_TYPE, region)])

    finding = watched.only("autocast_inactive")
    assert (finding.severity, finding.where) == (severity, "net")
    assert f"for {region}" in finding.summary


@pytest.mark.parametrize(("lost", "named"), [(50, []), (51, [("autocast_inactive", "net.1")])])
def test_flops_that_a_region_elsewhere_does_not_reach_count_from_one_half(
    lost: int, named: list[tuple[str, str]]
) -> None:
    """A helper thread for next to nothing is none of it."""
    watched = Watched().take(
        matmul("net.0", 100 - lost),
        matmul("net.1", lost, "float32", Fallback.OTHER_THREAD),
    )

    assert watched.named == named


def test_a_scaler_without_any_low_precision_is_an_info_after_three_looks() -> None:
    """It scales the loss for nothing; but that is all it does."""
    watched = Watched(dtypes=())
    watched.take(FLOAT32, scaled=True).take(FLOAT32, scaled=True)
    before = watched.named
    watched.take(FLOAT32, scaled=True)

    assert before == []
    finding = watched.only("autocast_inactive")
    assert (finding.severity, finding.where) == (Severity.INFO, "net.0")
    assert "GradScaler" in finding.summary


def test_autocast_that_stops_under_a_scaler_is_a_warning() -> None:
    """AMP was switched off behind the scaler's back."""
    watched = Watched(dtypes=())
    watched.take(matmul("net.0", 100), scaled=True, autocast_dtypes=("float16",))
    for _ in range(3):
        watched.take(FLOAT32, scaled=True)

    finding = watched.only("autocast_inactive")
    assert finding.severity is Severity.WARNING
    assert "in low precision before" in finding.summary


def test_a_phase_in_float32_without_a_scaler_is_an_info() -> None:
    """It may be meant."""
    watched = Watched(dtypes=()).take(matmul("net.0", 100))
    for _ in range(3):
        watched.take(FLOAT32)

    assert watched.only("autocast_inactive").severity is Severity.INFO


@pytest.mark.parametrize(
    "looks",
    [
        [matmul("net.0", 100), FLOAT32, FLOAT32, matmul("net.0", 100), FLOAT32, FLOAT32],
        [matmul("net.0", 1000), FLOAT32, FLOAT32, FLOAT32, FLOAT32],
        [matmul("net.0", 100), *[op("add", OpKind.POINTWISE, "", "float32")] * 4],
    ],
    ids=["now and then", "a part of the iteration", "no matmul was seen"],
)
def test_what_a_census_has_not_seen_is_not_held_against_it(looks: list) -> None:
    """Compiled code, and iterations seen in part."""
    watched = Watched(dtypes=())
    for ops in looks:
        watched.take(ops, scaled=True)

    assert watched.named == []


def test_float32_training_without_a_scaler_is_left_alone() -> None:
    """Nobody expected autocast."""
    watched = Watched(dtypes=())
    for _ in range(5):
        watched.take(FLOAT32)

    assert watched.named == []
