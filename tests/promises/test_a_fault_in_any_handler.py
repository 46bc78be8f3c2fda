"""Promise 2 for each event: whoever fails in it is off, told in a record of its own, and nobody else is."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

import ampwatch
from ampwatch.host.fleet.rank import RankView
from ampwatch.training.hooks import bus, taps
from ampwatch.training.hooks.bus import TORCH_EVENTS, handler_name
from ampwatch.training.hooks.channel import Subscriber
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.iteration.governor import DEEP_OPENING, QUIET_AFTER_ALARM
from ampwatch.training.ops.events import OP_EVENTS, OpSensor
from ampwatch.training.outlet import Outlet
from ampwatch.training.sensors.origins.sensor import OriginSensor
from ampwatch.wire.records import Record, SensorFailureRecord
from tests.promises.conftest import ahead
from tests.trainings import Run, build

pytestmark = ahead

ELSEWHERE = {
    "altered_called",
    "backward_ended",
    "batch_arrived",
    "batch_awaited",
    "clip_began",
    "clip_ended",
    "collective_began",
    "collective_waited",
    "communication_arrived",
    "communication_awaited",
    "communication_awaited_within",
    "compile_called",
    "compiled_entering",
    "end_called",
    "end_returned",
    "graph_captured",
    "requested",
    "scale_seen",
    "sensor_failed",
    "step_missed",
    "tensors_swapping",
}
"""Events that no sensor hears here: of ranks, compiled code and other processes, or only their moment is noted."""

EVENTS = sorted({handler_name(event) for event in (*TORCH_EVENTS, *OP_EVENTS)} - ELSEWHERE)
UNSCALED = ("backward_began", "optimizer_stepped", "optimizer_stepping", "zeroed")
"""Events that other sensors hear where there is no scaler."""

CASES = [
    *((event, "fp16-scheduled") for event in EVENTS),
    *((event, "bf16-without-scaler") for event in UNSCALED),
]


def _run(recipe: str) -> Run:
    """A run that fails in a step, and does what people do beside the documented loop."""
    run = build(recipe)
    run.steps, run.poison, run.clip = 4, (2,), True

    def after_step(step: int) -> None:
        if step != 1:
            return
        parameters = list(run.models[0].parameters())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch.autograd.grad(sum(p.sum() for p in parameters), parameters, create_graph=True)
            (0.0 * sum(p.sum() for p in parameters)).backward()
        nn.utils.clip_grad_value_(parameters, 1.0)
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
            pass
        with suppress(SystemExit):
            sys.exit(1)
        for thing in (*run.optimizers, run.scaler):
            if thing is not None:
                thing.load_state_dict(thing.state_dict())

    run.after_step = after_step
    return run


@cache
def _bare_digest(recipe: str) -> str:
    run = _run(recipe)
    run.loop()
    return run.digest()


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> list[Record]:
    """Return the list that the records of a training come into."""
    put: list[Record] = []
    original = Outlet.put

    def kept(self: Outlet, *records: Record) -> None:
        put.extend(records)
        original(self, *records)

    monkeypatch.setattr(Outlet, "put", kept)
    return put


@pytest.mark.parametrize("at_call", [1, pytest.param(2, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(("event", "recipe"), CASES)
def test_whoever_fails_in_an_event_is_off_and_told_and_nobody_else(
    event: str,
    recipe: str,
    at_call: int,
    records: list[Record],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """All that hear of it fail at once; the training is the same bit for bit."""
    calls: Counter[str] = Counter()
    failed: list[str] = []

    def subscribed(sensor: Any, guard: Any, handle: Callable[..., Any], wakes: bool) -> Any:  # noqa: FBT001 - as it is called
        def fail(event: object) -> Any:
            calls[guard.name] += 1
            if calls[guard.name] < at_call:
                return handle(event)
            failed.append(guard.name)
            msg = "planted"
            raise RuntimeError(msg)

        return Subscriber(sensor, guard, fail if handle.__name__ == event else handle, wakes)

    bare = _bare_digest(recipe)
    run = _run(recipe)
    monkeypatch.setattr(bus, "Subscriber", subscribed)
    with (
        caplog.at_level(logging.WARNING, logger="ampwatch.guard"),
        ampwatch.monitor(run.models, run.scaler, level="deep", serve=False, lab=True) as watch,
    ):
        run.loop()
        off = sorted(guard.name for guard in watch._session.bus.guards if guard.off)

    told = [record for record in records if isinstance(record, SensorFailureRecord)]
    logged = [r for r in caplog.records if "failed and is switched off" in r.message]
    assert run.digest() == bare
    assert failed or at_call > 1
    assert len(failed) == len(set(failed))
    assert (
        sorted(failed) == off == sorted(r.sensor for r in told) == sorted(r.args[0] for r in logged)
    )
    assert all(record.errors == 1 for record in told)
    rank = RankView(watch.identity, clock=lambda: 0.0, settings=watch.settings)
    for record in told:
        rank.apply(record)
    assert {name: of.errors for name, of in rank.failures.items()} == dict.fromkeys(failed, 1)


def test_a_sensor_that_fails_at_the_end_leaves_nothing_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each ``removed`` raises after it has run; close() does not, and what was placed is taken off."""
    run = build("fp16-scheduled")
    before = dict(taps._taps)
    calls: list[str] = []
    with ampwatch.monitor(run.models, run.scaler, level="deep", serve=False, lab=True) as watch:
        run.loop()
        for sensor in watch._session.bus.sensors:

            def removed(
                sensor: Sensor = sensor, original: Callable[[], None] = sensor.removed
            ) -> None:
                original()
                calls.append(sensor.name)
                msg = "planted"
                raise RuntimeError(msg)

            monkeypatch.setattr(sensor, "removed", removed)
        names = [sensor.name for sensor in watch._session.bus.sensors]

    assert sorted(calls) == sorted(names)
    assert taps._taps == before


@pytest.mark.rotating
def test_a_prefilter_that_fails_leaves_the_call_to_the_handler(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No guard is around it, and nothing that it raises reaches the training."""
    failed: set[type] = set()

    def fail(self: OpSensor, _call: object) -> bool:
        failed.add(type(self))
        msg = "planted"
        raise RuntimeError(msg)

    kinds = [kind for kind in OpSensor.__subclasses__() if kind.__module__.startswith("ampwatch.")]
    for kind in kinds:
        monkeypatch.setattr(kind, "prefilter", fail)
    digests = []
    for is_watched in (False, True):
        run = build("fp16-scheduled")
        # Ops are counted in the opening and for a while after an alarm, and nothing is saved.
        run.steps = DEEP_OPENING + QUIET_AFTER_ALARM + 8
        if not is_watched:
            run.loop()
        else:
            with (
                caplog.at_level(logging.WARNING, logger="ampwatch.guard"),
                ampwatch.monitor(run.models, run.scaler, level="deep", serve=False, lab=True),
            ):
                run.loop()
        digests.append(run.digest())

    assert digests[0] == digests[1]
    assert OriginSensor in failed
    assert [r for r in caplog.records if "failed and is switched off" in r.message] == []
