"""The scenarios fail when a defect of the device paths is planted again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ampwatch.errors import StateError
from ampwatch.training import devices
from ampwatch.training.hooks import compiling, tapped_call, taps
from ampwatch.training.hooks.places import graphs, optimizer
from ampwatch.training.model.home import Home
from ampwatch.training.ops import mode
from ampwatch.training.sensors.origins import sensor as following
from ampwatch.training.sensors.ranges.gradients import ScaledGradientSensor
from ampwatch.training.transfer import extremes
from ampwatch.training.transfer.measuring import Measuring
from ampwatch.training.transfer.readback import Readback
from ampwatch.training.transfer.slabs import Slab
from tests.played import module
from tests.played.machine import Machine
from tests.played.scenarios import test_captures, test_places, test_steps


def _capture(of: Any, level: str, *, scaled: bool, has_stepped: bool) -> Callable[..., None]:
    def run(device: Machine, **_: Any) -> None:
        test_captures.test_a_capture_has_the_nodes_that_it_has_without_us(
            device, of, level, scaled=scaled, has_stepped=has_stepped
        )

    return run


def origins_are_sent_in_a_capture(patch: pytest.MonkeyPatch) -> None:
    """A copy and pinned memory in the user's graph."""
    patch.setattr(following, "is_capturing", lambda: False)


def steps_are_heard_in_a_capture(patch: pytest.MonkeyPatch) -> None:
    """An iteration ends in it, and its rows are copied."""
    patch.setattr(taps, "TappedCall", tapped_call.PythonTappedCall)
    for user in (tapped_call, compiling, graphs, optimizer):
        patch.setattr(user, "captures", {})


def events_are_asked_in_a_capture(patch: pytest.MonkeyPatch) -> None:
    """Which ends it."""
    patch.setattr(devices.Link, "may_ask", lambda _self, _devices: True)


def a_kernel_that_fails_is_let_through(patch: pytest.MonkeyPatch) -> None:
    """Where there is no compiler."""

    def prepare(self: Measuring, device: torch.device) -> None:
        raise StateError(str(device))

    patch.setattr(Measuring, "prepare", prepare)


def what_is_expanded_is_copied(patch: pytest.MonkeyPatch) -> None:
    """By aminmax."""
    patch.setattr(extremes, "stored", lambda tensor: tensor.contiguous())


def the_device_is_read_once(patch: pytest.MonkeyPatch) -> None:
    """At set-up, where the model may be elsewhere."""
    update = Home.update

    first: set[int] = set()

    def only_at_set_up(self: Home) -> bool:
        if id(self) in first:
            return False
        first.add(id(self))
        return update(self)

    patch.setattr(Home, "update", only_at_set_up)


def one_device_is_prepared(patch: pytest.MonkeyPatch) -> None:
    """And the slabs of the other are pinned in a step."""
    update = Home.update

    def first_alone(self: Home) -> bool:
        changed = update(self)
        self.devices = self.devices[:1]
        return changed

    patch.setattr(Home, "update", first_alone)


def a_variant_is_compiled_in_a_step(patch: pytest.MonkeyPatch) -> None:
    """When the first tensor of its dtype comes."""
    patch.setattr(Slab, "warm_up", lambda _self, _kernel: None)


def a_frame_is_looked_for_that_is_not_there(patch: pytest.MonkeyPatch) -> None:
    """In a thread of autograd nothing of Python is below."""
    patch.setattr(mode, "_is_in_other_mode", lambda: bool(sys._getframe(5).f_back))


def a_value_is_read_at_once(patch: pytest.MonkeyPatch) -> None:
    """By a sensor, in a step."""
    unscaling = ScaledGradientSensor.unscaling

    def reads(self: Any, event: Any) -> None:
        unscaling(self, event)
        float(event.scaler._scale)

    patch.setattr(ScaledGradientSensor, "unscaling", reads)


def memory_is_not_pinned(patch: pytest.MonkeyPatch) -> None:
    """A copy to it waits, whatever ``non_blocking`` says."""
    patch.setattr(devices.Link, "landing_place", lambda _self, numel: torch.zeros(numel))


def nobody_waits_for_the_event(patch: pytest.MonkeyPatch) -> None:
    """What is read before is not there yet."""
    patch.setattr(module.Event, "query", lambda _self: True)


def a_row_is_used_again_before_it_has_arrived(patch: pytest.MonkeyPatch) -> None:
    """The next copy overwrites it."""
    put = Readback.put

    def into_the_first(self: Readback, row: Any, column: int, *values: Any) -> None:
        row.cells = self._rows[0].cells
        put(self, row, column, *values)

    patch.setattr(Readback, "put", into_the_first)


def _arrives(device: Machine, **_: Any) -> None:
    test_steps.test_what_arrives_is_what_happened("light", "fused")


def _waits(device: Machine, **_: Any) -> None:
    test_steps.test_no_step_of_a_fused_optimizer_waits(device, "standard")


PLANTED: tuple[tuple[Callable[[pytest.MonkeyPatch], None], Callable[..., None]], ...] = (
    (
        origins_are_sent_in_a_capture,
        _capture(test_captures.graphed_where_it_warmed_up, "deep", scaled=False, has_stepped=False),
    ),
    (
        steps_are_heard_in_a_capture,
        _capture(test_captures.unscaled, "standard", scaled=False, has_stepped=True),
    ),
    (
        events_are_asked_in_a_capture,
        lambda device, **_: test_captures.test_events_are_not_asked_while_a_graph_is_captured(
            device
        ),
    ),
    (
        a_kernel_that_fails_is_let_through,
        lambda device, **more: test_places.test_a_kernel_that_cannot_be_compiled_stops_no_training(
            "standard", **more
        ),
    ),
    (
        what_is_expanded_is_copied,
        lambda device, **_: test_places.test_what_is_expanded_is_not_copied(device, "deep"),
    ),
    (
        the_device_is_read_once,
        lambda device, monkeypatch, caplog: (
            test_places.test_a_model_that_moves_after_set_up_is_found_again("light", [], caplog)
        ),
    ),
    (
        one_device_is_prepared,
        lambda device, **_: test_places.test_a_model_on_two_devices_is_watched_on_both(
            device, "standard"
        ),
    ),
    (
        a_variant_is_compiled_in_a_step,
        lambda device, **_: test_places.test_what_is_slow_is_done_at_set_up(device),
    ),
    (
        a_frame_is_looked_for_that_is_not_there,
        _capture(test_captures.whole, "standard", scaled=True, has_stepped=False),
    ),
    (a_value_is_read_at_once, _waits),
    (memory_is_not_pinned, _waits),
    (nobody_waits_for_the_event, _arrives),
    (a_row_is_used_again_before_it_has_arrived, _arrives),
)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match")
@pytest.mark.parametrize(("plant", "scenario"), PLANTED)
def test_a_planted_defect_is_found(
    device: Machine,
    plant: Callable[[pytest.MonkeyPatch], None],
    scenario: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """By what the scenario compares, or by the device itself; without it there is nothing to find."""
    with pytest.MonkeyPatch.context() as patch:
        scenario(device, monkeypatch=patch, caplog=caplog)
    assert device.faults == []
    device.reset()
    caplog.clear()
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        try:
            scenario(device, monkeypatch=patch, caplog=caplog)
        except Exception:  # noqa: BLE001 - that it fails is what is wanted
            is_found = True
        else:
            is_found = bool(device.faults)
    device.abandon()

    assert is_found
