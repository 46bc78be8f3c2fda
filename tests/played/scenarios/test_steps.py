"""Whole trainings: nothing waits, nothing changes, and what arrives late is what happened."""

from __future__ import annotations

import math

import pytest
import torch

import ampwatch
from ampwatch.training import session
from tests.played.machine import Machine, PlayedError
from tests.played.trainings import BREAKS, Training, at_night

LEVELS = ("light", "standard", "deep")
FLAVOURS = ["fused", *at_night("foreach", "for-loop")]


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("level", ["deep", *at_night("light", "standard")])
def test_bits_and_waits_are_those_of_the_training_alone(
    device: Machine, level: str, flavour: str
) -> None:
    """With an overflow on the way: then sensors look closer."""
    found = []
    for watched in (False, True):
        training = Training(flavour)
        device.waits.clear()
        watch = (
            ampwatch.monitor(training.model, training.scaler, level=level, serve=False)
            if watched
            else None
        )
        training.run()
        waits = [wait.name for wait in device.waits]
        if watch is not None:
            assert [w for w in device.waits if w.is_ours] == []
            watch.close()
            assert not any("switched off" in line for line in watch.report().splitlines())
        found.append((training.bits(), waits))

    assert found[1][0] == found[0][0]
    assert found[1][1] == found[0][1]
    assert len(found[0][1]) == (0 if flavour == "fused" else len(BREAKS))


@pytest.mark.parametrize("level", ["standard", *at_night("light", "deep")])
def test_no_step_of_a_fused_optimizer_waits(device: Machine, level: str) -> None:
    """Not even the first: the device itself would raise."""
    training = Training("fused")
    with ampwatch.monitor(training.model, training.scaler, level=level, serve=False) as watch:
        device.is_error_to_wait = True
        training.run()
        device.is_error_to_wait = False

    assert watch.last_step.step == len(BREAKS) - 1


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("level", ["light", *at_night("standard", "deep")])
def test_what_arrives_is_what_happened(level: str, flavour: str) -> None:
    """Scale, skips and losses agree with reading them one by one."""
    training = Training(flavour)
    skipped, scales = 0, [training.scaler.get_scale()]
    with ampwatch.monitor(training.model, training.scaler, level=level, serve=False) as watch:
        for factor in BREAKS:
            training.step(factor)
            scales.append(training.scaler.get_scale())
            skipped += scales[-1] < scales[-2]
    totals = watch._diagnosis.totals

    assert sum(totals.skipped[0]) == skipped == 4
    assert totals.steps[0] == len(BREAKS)
    assert totals.nonfinite_losses == 4
    assert watch.last_step.loss_scale == scales[-1]


def test_the_verdict_of_a_fused_optimizer_comes_late(device: Machine) -> None:
    """``None`` until the device has got there, then the truth."""
    training = Training("fused")
    device.lag = 10**9
    with ampwatch.monitor(training.model, training.scaler, serve=False) as watch:
        training.step(math.inf)
        early = watch.last_step
        device.finish()
        late = watch.last_step

    assert (early.step, early.skipped) == (0, None)
    assert (late.step, late.skipped) == (0, True)


@pytest.mark.nightly
@pytest.mark.parametrize("level", LEVELS)
def test_a_device_far_behind_drops_observations_and_recovers(
    device: Machine, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are counted, and never waited for."""
    monkeypatch.setattr(session, "READBACK_SLOTS", 4)
    training = Training("fused")
    with ampwatch.monitor(training.model, training.scaler, level=level, serve=False) as watch:
        training.step()
        device.finish()
        device.is_hanging = True
        for _ in range(12):
            training.step()
        device.is_hanging = False
        device.finish()
        training.run([1.0] * 3)
        device.finish()
        last = watch.last_step
    dropped = watch._session._readback.dropped

    assert dropped >= 8
    assert (last.step, last.skipped) == (15, False)
    assert f"{dropped} iterations were not observed" in " ".join(watch.report().split())


@pytest.mark.nightly
def test_closing_on_a_device_that_hangs_comes_back(device: Machine) -> None:
    """A hanging device must not hang the end of the program as well."""
    training = Training("fused")
    watch = ampwatch.monitor(training.model, training.scaler, level="deep", serve=False)
    training.run([1.0] * 3)
    device.is_hanging = True
    training.run([1.0] * 3)
    watch.close()

    assert device.waits == [wait for wait in device.waits if not wait.is_ours]
    assert watch.closed


@pytest.mark.nightly
@pytest.mark.parametrize("level", ["standard", "deep"])
def test_memory_may_be_given_back_as_soon_as_a_step_is_over(device: Machine, level: str) -> None:
    """Gradients and outputs are measured in stream order; the allocator poisons what is freed."""
    training = Training("fused")
    with ampwatch.monitor(training.model, training.scaler, level=level, serve=False) as watch:
        for number in range(40):
            training.batch = torch.full((4, 16), 2.0 ** (number % 3)).to("played")
            training.step()
        device.finish()

    assert [f.kind for f in watch.findings if f.severity == "critical"] == []
    assert "nonfinite" not in watch.report()


def test_the_device_punishes_a_wait(device: Machine) -> None:
    """Else nothing here would prove anything."""
    device.is_error_to_wait = True
    with pytest.raises(PlayedError, match="_local_scalar_dense waited"):
        torch.ones(1, device="played").item()
    device.is_error_to_wait = False
    device.faults.clear()
