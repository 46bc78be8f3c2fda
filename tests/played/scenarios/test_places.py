"""Where a training is: on two devices, on one that comes later, on one without a kernel."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import ampwatch
from ampwatch.diagnosis.evidence.iteration import Iteration
from ampwatch.diagnosis.records.range_records import RangeRecorder
from ampwatch.training.sensors.origins.sensor import OriginSensor
from ampwatch.wire.records import Topic
from tests.played.kernel import PlayedKernel
from tests.played.machine import Machine, is_ours
from tests.played.trainings import BREAKS, DEVICE, Training

pytestmark = pytest.mark.nightly

LEVELS = ("light", "standard", "deep")


class Halves(nn.Module):
    """A model of which each half is on a device of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(16, 32).to(f"{DEVICE}:0")
        self.second = nn.Linear(32, 8).to(f"{DEVICE}:1")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.second(torch.relu(self.first(x)).to(f"{DEVICE}:1"))
        return out


def on_two_devices(flavour: str) -> Training:
    training = Training(flavour)
    training.model = Halves()
    chosen = {"fused": flavour == "fused", "foreach": flavour == "foreach"}
    training.optimizer = torch.optim.AdamW(training.model.parameters(), lr=1e-3, **chosen)
    return training


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Iteration]:
    """The iterations whose ranges have arrived."""
    seen: list[Iteration] = []
    monkeypatch.setattr(
        RangeRecorder, "detect", lambda _self, iteration, _judged: seen.append(iteration)
    )
    return seen


@pytest.mark.parametrize("level", LEVELS)
def test_a_model_on_two_devices_is_watched_on_both(device: Machine, level: str) -> None:
    """Autograd has a thread for each; what is slow is done for both at set-up."""
    bits = []
    for watched in (False, True):
        training = on_two_devices("fused")
        if not watched:
            training.run()
        else:
            with ampwatch.monitor(training.model, training.scaler, level=level, serve=False) as w:
                device.pinned_by.clear()
                training.run()
                assert [by for by in device.pinned_by if "work_units.py" not in by] == []
            assert w.last_step.step == len(BREAKS) - 1
            assert "switched off" not in w.report()
        bits.append(training.bits())

    assert bits[1] == bits[0]


@pytest.mark.parametrize("level", ["standard", "deep"])
def test_gradients_of_both_devices_are_measured(level: str, measured: list[Iteration]) -> None:
    """Each on its own."""
    training = on_two_devices("fused")
    with ampwatch.monitor(training.model, training.scaler, level=level, serve=False):
        training.run()

    names = {r.name for i in measured for r in i.ranges if r.topic is Topic.GRADIENT}
    assert names >= {"first.weight", "second.weight"}


@pytest.mark.parametrize("level", LEVELS)
def test_a_model_that_moves_after_set_up_is_found_again(
    level: str, measured: list[Iteration], caplog: pytest.LogCaptureFixture
) -> None:
    """One warning; facts, ranges and origins are those of the device it is on."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))
    scaler = torch.amp.GradScaler(DEVICE, init_scale=16.0)
    training = Training("foreach")
    with ampwatch.monitor(model, scaler, level=level, serve=False) as watch:
        training.model = model.to(DEVICE)
        training.scaler = scaler
        training.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
        training.run([1.0] * 40)
    session: Any = watch._session

    moved = [r.getMessage() for r in caplog.records if "has moved from" in r.getMessage()]
    assert len(moved) == 1
    assert "from cpu to played:0" in moved[0]
    assert str(session._home.device) == "played:0"
    assert "switched off" not in watch.report()
    if level != "light":
        assert {r.topic for i in measured for r in i.ranges} >= {Topic.GRADIENT, Topic.WEIGHT}
    if level == "deep":
        origins = session._one(OriginSensor)
        assert origins is not None
        assert origins._origins._reading.is_late


def test_a_training_without_a_model_is_found_by_its_optimizer() -> None:
    """The first that steps says where the training is, and nobody is warned of a move."""
    training = Training("foreach")
    with ampwatch.monitor(None, training.scaler, serve=False) as watch:
        training.run([1.0] * 5)

    assert str(watch._session._home.device) == "played:0"


def test_what_is_slow_is_done_at_set_up(device: Machine) -> None:
    """No kernel is compiled in a step, and no memory is pinned but for tables of addresses.

    They are small, and PyTorch keeps their memory and hands it out again.
    """
    training = Training("fused")
    for level in LEVELS:
        with ampwatch.monitor(training.model, training.scaler, level=level, serve=False):
            device.pinned_by.clear()
            device.compiled.clear()
            training.run()
            first = list(device.pinned_by)
            device.pinned_by.clear()
            training.run([1.0] * 40)
        assert device.compiled == []
        assert [where for where in first if "work_units.py" not in where] == []
        assert len(device.pinned_by) < 10


@pytest.mark.parametrize("level", LEVELS)
def test_a_kernel_that_cannot_be_compiled_stops_no_training(
    level: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning and one sentence of the report; everything else is watched."""
    monkeypatch.setattr(PlayedKernel, "is_broken", RuntimeError("Failed to find C compiler."))
    training = Training("fused")
    with ampwatch.monitor(training.model, training.scaler, level=level, serve=False) as watch:
        training.run()
    report = " ".join(watch.report().split())
    told = [r.getMessage() for r in caplog.records if "not measured" in r.getMessage()]

    assert watch.last_step.step == len(BREAKS) - 1
    assert "switched off" not in report
    if level != "light":
        (sentence,) = told
        assert "ranges of tensors are not measured on played:0: Failed to find C compiler" in report
        assert sentence in report


@pytest.mark.parametrize("level", ["standard", "deep"])
def test_memory_that_is_short_costs_samples_and_nothing_else(device: Machine, level: str) -> None:
    """Each allocation of ours fails for a while: the training has the same bits, and is seen again."""
    bits = []
    for watched in (False, True):
        training = Training("fused")
        if not watched:
            training.run([1.0] * 40)
        else:
            with ampwatch.monitor(training.model, training.scaler, level=level, serve=False) as w:
                training.run([1.0] * 5)
                device.refuses = lambda _nbytes: is_ours()
                training.run([1.0] * 15)
                device.refuses = lambda _nbytes: False
                training.run([1.0] * 20)
            off = [g.name for g in w._session.bus.guards if g.off]
            assert not {"births", "ranges", "gradients", "activations", "steps"} & set(off)
        bits.append(training.bits())

    assert bits[1] == bits[0]


@pytest.mark.parametrize("level", ["standard", "deep"])
def test_what_is_expanded_is_not_copied(device: Machine, level: str) -> None:
    """A mask of which one row is stored seems to have a million elements."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mask = torch.zeros(1, 8, device=DEVICE).expand(128, 1024, 8)
            return self.layer(x) + mask.amin((0, 1)) + mask.transpose(0, 2).amin((1, 2))[:, None][0]

    training = Training("fused")
    training.model = Masked().to(DEVICE)
    training.optimizer = torch.optim.AdamW(training.model.parameters(), fused=True)
    seeming = 128 * 1024 * 8 * 4
    with ampwatch.monitor(training.model, training.scaler, level=level, serve=False):
        training.run([1.0])
        before = device.start_peak()
        training.run([1.0] * 3)
        peak = device.peak

    assert peak - before < seeming / 8


@pytest.mark.parametrize("level", LEVELS)
def test_the_memory_of_the_device_is_told_and_nothing_waits_for_it(
    device: Machine, level: str
) -> None:
    """As the device itself has counted it."""
    training = Training("fused")
    with ampwatch.monitor(training.model, training.scaler, level=level, serve=False) as watch:
        device.is_error_to_wait = True
        training.run([1.0] * 8)
        device.is_error_to_wait = False
    metrics = watch.metrics()

    weights = sum(p.nbytes for p in training.model.parameters())
    assert weights < metrics["amp/memory_bytes"] <= metrics["amp/memory_peak_bytes"]
    assert metrics["amp/memory_peak_bytes"] <= device.peak
    assert "is not read" not in watch.report()
