"""Scales that arrive later."""

from __future__ import annotations

import math

import torch

from ampwatch.training.sensors.calls.scale_doubts import MAX_SCALES, ScaleLog
from ampwatch.training.transfer.deferred import Deferred
from tests.training.sensors.late import FakeDevice


def scaler(scale: float) -> torch.amp.GradScaler:
    made = torch.amp.GradScaler("cpu", init_scale=scale)
    made.scale(torch.ones(()))  # makes the scale
    return made


def test_a_scale_in_host_memory_is_known_at_once() -> None:
    """The scale is known as it was, not as it has become."""
    log = ScaleLog(Deferred())
    made = scaler(64.0)
    log.note(0, made)
    made.update(8.0)
    log.note(0, made)
    log.note(1, made)

    assert (log.of(0), log.of(1)) == (64.0, 8.0)
    assert math.isnan(log.of(2) or 0.0)


def test_a_scale_on_a_device_is_on_its_way_until_it_has_arrived() -> None:
    """The scale is not waited for."""
    device = FakeDevice()
    log = ScaleLog(Deferred(device))
    made = scaler(64.0)
    log.note(0, made)
    log.take_arrived()
    before = log.of(0)
    device.done = 1
    log.take_arrived()

    assert (before, log.of(0)) == (None, 64.0)


def test_old_scales_are_forgotten() -> None:
    """A run has millions."""
    log = ScaleLog(Deferred())
    made = scaler(64.0)
    for number in range(MAX_SCALES + 10):
        log.note(number, made)

    assert math.isnan(log.of(0) or 0.0)
    assert log.of(MAX_SCALES + 9) == 64.0
