"""Lines at which the host waits for the device in each step, as the device itself has counted them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import ampwatch
from ampwatch.diagnosis.performance.syncs import WINDOW
from ampwatch.wire.records import Finding
from tests.played.machine import Machine
from tests.played.trainings import DEVICE, Training, at_night

STEPS = WINDOW + 4


def logs(step: int, training: Training) -> None:
    del step
    training.losses[-1].item()


def checks_for_nan(_step: int, training: Training) -> None:
    if training.losses[-1].isnan():
        raise AssertionError


def copies_to_the_host(_step: int, training: Training) -> None:
    training.losses[-1].cpu()


def picks_by_mask(_step: int, training: Training) -> None:
    # Flat: of a matrix the places are transposed, which this device has no copy for.
    flat = training.batch.reshape(-1)
    _ = flat[flat > 0.0].sum()


def picks_by_place(_step: int, training: Training) -> None:
    _ = (training.batch > 0.0).reshape(-1).nonzero()


def chooses_by_value(_step: int, training: Training) -> None:
    batch = training.batch
    _ = torch.where(batch > 0.0, batch, 0.0).sum()


def makes_a_batch(_step: int, training: Training) -> None:
    training.batch = torch.randn(4, 16).to(DEVICE)


def makes_a_batch_ahead(_step: int, training: Training) -> None:
    pinned = torch.randn(4, 16).pin_memory()
    training.batch = pinned.to(DEVICE, non_blocking=True)


def reads_three_numbers(_step: int, training: Training) -> None:
    loss = training.losses[-1]
    for _ in range(3):
        float(loss)


SICK = {
    logs: ("item", 1.0),
    copies_to_the_host: ("copy to the host", 1.0),
    makes_a_batch: ("copy to the device", 1.0),
    checks_for_nan: ("item", 1.0),
    picks_by_mask: ("index by a mask", 1.0),
    picks_by_place: ("nonzero", 1.0),
    reads_three_numbers: ("item", 3.0),
}


def found(
    extra: Callable[[int, Training], object], flavour: str = "foreach"
) -> tuple[list[Finding], list[Any]]:
    """Train, with something done after each step; return the findings of the kind, and the bits."""
    training = Training(flavour)
    with ampwatch.monitor(training.model, training.scaler, level="deep", serve=False) as watch:
        for step in range(STEPS):
            training.step()
            extra(step, training)
    assert "switched off" not in watch.report()
    return [f for f in watch.findings if f.kind == "sync_in_step"], training.bits()


@pytest.mark.parametrize(
    "extra", [logs, *at_night(*(extra for extra in SICK if extra is not logs))]
)
def test_the_line_that_waits_is_named_with_how_often(
    extra: Callable[[int, Training], object],
) -> None:
    """An info: how long it waits is not known. What the scaler reads is not counted."""
    op, times = SICK[extra]
    (finding,), _ = found(extra)

    assert finding.severity == "info"
    assert f"{op} at 'test_waits.py:" in finding.summary
    assert finding.source.startswith(f"{__file__}:")
    lines = range(extra.__code__.co_firstlineno, extra.__code__.co_firstlineno + 5)
    assert int(finding.source.rpartition(":")[2]) in lines
    assert finding.evidence["waits_per_iteration"] == times


@pytest.mark.nightly
@pytest.mark.parametrize("extra", [chooses_by_value, makes_a_batch_ahead])
def test_a_step_that_waits_for_the_scaler_alone_is_left_alone(
    extra: Callable[[int, Training], object],
) -> None:
    """And one that chooses on the device, or whose batches come from pinned memory."""
    findings, _ = found(extra)

    assert [f.summary for f in findings] == []


# Not what picks: this device makes places on the host, and copies them back.
@pytest.mark.nightly
@pytest.mark.parametrize(
    "extra", [logs, checks_for_nan, copies_to_the_host, makes_a_batch, reads_three_numbers]
)
def test_the_device_has_counted_as_many_waits(
    device: Machine, extra: Callable[[int, Training], object]
) -> None:
    """With a fused optimizer, whose scaler reads nothing: all waits are the program's."""
    training = Training("fused")
    with ampwatch.monitor(training.model, training.scaler, level="deep", serve=False) as watch:
        device.waits.clear()
        for step in range(STEPS):
            training.step()
            extra(step, training)
        waits = len(device.waits)
        assert [wait for wait in device.waits if wait.is_ours] == []
    (finding,) = [f for f in watch.findings if f.kind == "sync_in_step"]

    assert finding.evidence["waits_per_iteration"] == waits / STEPS


@pytest.mark.nightly
def test_without_a_scaler_the_end_of_a_gradient_norm_is_a_wait_of_its_line() -> None:
    """``error_if_nonfinite`` asks, at the line that clips."""
    training = Training("fused")
    with ampwatch.monitor(training.model, level="deep", serve=False) as watch:
        for _ in range(STEPS):
            training.model(training.batch).square().mean().backward()
            nn.utils.clip_grad_norm_(training.model.parameters(), 1.0, error_if_nonfinite=True)
            training.optimizer.step()
            training.optimizer.zero_grad()
    (finding,) = [f for f in watch.findings if f.kind == "sync_in_step"]

    assert "item at 'test_waits.py:" in finding.summary
