"""Promise 2: whatever breaks inside ampwatch, the training step does not notice."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
import torch._dynamo

import ampwatch
from ampwatch import lab
from ampwatch.diagnosis.book import FindingBook
from ampwatch.diagnosis.escalation import Escalation
from ampwatch.diagnosis.forward.culprit_ops import CulpritOps
from ampwatch.diagnosis.pipeline import Diagnosis
from ampwatch.diagnosis.records.op_records import OpRecorder
from ampwatch.diagnosis.records.range_records import RangeRecorder
from ampwatch.diagnosis.scale.scale_dynamics import ScaleDynamics
from ampwatch.diagnosis.steps.steps import StepJudge
from ampwatch.guard import Guard
from ampwatch.lab.training.layers import LayerSensor
from ampwatch.training.courier import Courier
from ampwatch.training.hooks import bus
from ampwatch.training.hooks.channel import Subscriber
from ampwatch.training.hooks.events import ForwardBegan
from ampwatch.training.hooks.regions import Regions
from ampwatch.training.iteration.governor import Governor
from ampwatch.training.iteration.ledger import IterationLedger
from ampwatch.training.iteration.samples import RangeSamples
from ampwatch.training.loggers.logging_action import LoggingAction
from ampwatch.training.loggers.sinks import TensorBoardSink
from ampwatch.training.model.module_stack import ModuleStack
from ampwatch.training.model.names import Names
from ampwatch.training.ops.call import OpCounts
from ampwatch.training.ops.mode import OpMode
from ampwatch.training.replay.kept_calls import KeptCall
from ampwatch.training.sensors.calls.gradient_contents import GradContents
from ampwatch.training.sensors.calls.gradient_use import GradientUseSensor
from ampwatch.training.sensors.calls.scaled_roots import ScaledRoots
from ampwatch.training.sensors.ops.census import OpCensusSensor
from ampwatch.training.sensors.ops.fallbacks import Fallbacks
from ampwatch.training.sensors.ops.inputs import InputSensor
from ampwatch.training.sensors.origins.follower import OriginFollower, Surroundings
from ampwatch.training.sensors.ranges.activations import ActivationSensor
from ampwatch.training.sensors.time.call_notes import CallNotes
from ampwatch.training.sensors.time.splitting import Splitter
from ampwatch.training.transfer.measuring import Measuring
from ampwatch.training.transfer.readback import Readback
from tests.promises.conftest import ahead
from tests.promises.faults import Fault
from tests.training.loggers.fakes import Writer
from tests.trainings import Run, build

pytestmark = ahead

IN_STEP = [
    (InputSensor, "root_called"),
    (Readback, "put"),
    (Readback, "arrived"),
    (Diagnosis, "deliver"),
    (StepJudge, "judge"),
    (ScaleDynamics, "detect"),
    (FindingBook, "make"),
    (RangeRecorder, "detect"),
    (CulpritOps, "observe_trace"),
    (Escalation, "detect"),
    (OpRecorder, "pass_on"),
    (Names, "of_optimizer"),
    (Governor, "next"),
    (Governor, "alarm"),
    (Governor, "takes_first_check"),
    (Measuring, "measure"),
    (Measuring, "seal"),
    (Measuring, "take"),
    (RangeSamples, "_seal"),
    (ActivationSensor, "_measure_gradient"),
    (LayerSensor, "called"),
    (CallNotes, "note"),
    (Splitter, "split"),
    (Regions, "update"),
    (OpMode, "put_on"),
    (OpMode, "take_off"),
    (OpCensusSensor, "begin"),
    (OpCensusSensor, "note"),
    (OpCensusSensor, "end"),
    (OpCounts, "count"),
    (ModuleStack, "enter"),
    (Fallbacks, "why"),
    (GradContents, "before"),
    (GradientUseSensor, "_backward_ended"),
    (ScaledRoots, "branches"),
    (KeptCall, "__init__"),
    (OriginFollower, "begin"),
    (OriginFollower, "note"),
    (OriginFollower, "end"),
    (Surroundings, "deliver"),
]
"""What is called within a handler, or by PyTorch; handlers have a test of their own."""


SELDOM = ("clipping", "losses", "autocast_backward", "missed_steps", "unscaled_half")
"""Guards of what has nothing to do in a loop without a scaler's mistakes."""


def _odd_run() -> Run:
    """A run that clips, and goes back inside of autocast and from a loss that nobody scales."""
    run = build("bf16-without-scaler")

    def after_step(_step: int) -> None:
        parameters = list(run.models[0].parameters())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch.autograd.grad(sum(p.sum() for p in parameters), parameters)
            (0.0 * sum(p.sum() for p in parameters)).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)

    run.after_step = after_step
    return run


def _differentiating_run() -> Run:
    """A run that takes gradients with a graph."""
    run = build("fp16-scheduled")

    def after_step(_step: int) -> None:
        parameters = list(run.models[0].parameters())
        torch.autograd.grad(
            sum(p.square().sum() for p in parameters), parameters, create_graph=True
        )

    run.after_step = after_step
    return run


def _compiling_run() -> Run:
    """A run in which something is compiled, each time anew."""
    torch._dynamo.reset()
    run = build("bf16-without-scaler")
    run.after_step = lambda step: step or torch.compile(torch.relu, backend="eager")(torch.ones(1))
    return run


def _faulty_run() -> Run:
    """A run with two findings, so that every part has something to do."""
    run = build("fp16-scheduled")
    # The scaler finds its scale first; then some steps are taken, and the rest are skipped.
    run.steps, run.poison = 12, tuple(range(6, 12))
    return run


def _run_for(guard: str) -> Callable[[], Run]:
    """Return what builds the run in which there is something to do behind a guard."""
    if guard == "compiled_backward":
        return _compiling_run
    if guard == "penalties":
        return _differentiating_run
    return _odd_run if guard in SELDOM else _faulty_run


@cache
def _bare_digest(build_run: Callable[[], Run]) -> str:
    """The digest of a run without ampwatch."""
    run = build_run()
    run.loop()
    return run.digest()


@pytest.mark.rotating
@pytest.mark.parametrize("at_call", [pytest.param(1, marks=pytest.mark.nightly), 2])
@pytest.mark.parametrize(("owner", "method"), IN_STEP, ids=lambda x: getattr(x, "__name__", x))
def test_a_fault_at_any_call_leaves_training_as_it_was(
    owner: type,
    method: str,
    at_call: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The sensor is counted, logged once and switched off; the bits stay the same."""
    # At deep every op is traced, and inputs are not looked at besides.
    level = "standard" if owner is InputSensor else "deep"
    bare = _bare_digest(_faulty_run)
    gc.collect()  # a mode of an earlier test takes itself off when it is collected
    if owner is CallNotes:  # C notes what is as ever
        monkeypatch.setattr("ampwatch.training.sensors.time.call_notes.timed", None)
    fault = Fault(getattr(owner, method), at_call, RuntimeError)
    monkeypatch.setattr(owner, method, fault.bound_to())

    watched = _faulty_run()
    with (
        caplog.at_level(logging.WARNING, logger="ampwatch.guard"),
        ampwatch.monitor(
            watched.models, watched.scaler, level=level, serve=False, lab=True
        ) as watch,
    ):
        watched.loop()
        report = watch.report()

    switched_off = [r for r in caplog.records if "failed and is switched off" in r.message]
    reached = fault.calls >= at_call
    assert watched.digest() == bare
    assert reached
    assert len(switched_off) == 1
    assert "was switched off" in report


LOGGING = [
    (LoggingAction, "notify"),
    (LoggingAction, "settle"),
    (LoggingAction, "close"),
    (LoggingAction, "_point"),
    (LoggingAction, "_note"),
    (LoggingAction, "_put"),
    (LoggingAction, "_last_words"),
    (Courier, "put"),
    (Courier, "close"),
    (TensorBoardSink, "log"),
    (TensorBoardSink, "tell"),
    (TensorBoardSink, "end"),
]


@pytest.mark.rotating
@pytest.mark.parametrize(("owner", "method"), LOGGING, ids=lambda x: getattr(x, "__name__", x))
def test_a_fault_in_what_serves_a_logger_leaves_training_as_it_was(
    owner: type,
    method: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is said; and another logger of the training has all its numbers, unless actions are off."""
    bare = _bare_digest(_faulty_run)
    fault = Fault(getattr(owner, method), 1, RuntimeError)
    monkeypatch.setattr(owner, method, fault.bound_to())

    watched, first, others = _faulty_run(), Writer(), list[int]()
    with ampwatch.monitor(watched.models, watched.scaler, level="deep", serve=False) as watch:
        watch.log_to(first, every=1)
        watch.log_to(lambda _, step: others.append(step), every=1)
        watched.loop()
    for action in watch._loggers:  # what has failed may have left the thread behind
        action._courier.close(60.0)

    assert watched.digest() == bare
    assert fault.calls
    said = [m for m in caplog.messages if "failed" in m]
    assert said
    if not any("sensor 'actions' failed" in message for message in said):
        assert others == list(range(watched.steps))


SCALED = (
    "device",
    "steps",
    "autocast",
    "notices",
    "failures",
    "schedulers",
    "diagnosis",
    "succession",
    "stale_casts",
    "compiled_backward",
    "replicas",
    "governor",
    "ranges",
    "collectives",
    "gradients",
    "activations",
    "weights",
    "updates",
    "flushed_gradients",
    "regions",
    "census",
    "births",
    "replay",
    "lossy_casts",
    "fp8_casts",
    "sums",
    "averages",
    "weight_additions",
    "scattered_sums",
    "hand_clips",
    "refused_ops",
    "deferred",
    "inputs",
    "window",
    "exceptions",
    "gradient_use",
    "clipping",
    "autocast_backward",
    "programs",
    "no_iteration",
    "ownership",
    "error_budget",
    "memory",
    "penalties",
    "phases",
    "waits",
    "layers",
    "logits",
)
UNWATCHED = ("losses", "missed_steps", "unscaled_half")
"""Guards of what is there without a scaler only."""


@pytest.fixture
def neighbour(name: str) -> Iterator[None]:
    """Have another training watched, where whose something is is only asked beside one."""
    if name != "ownership":
        yield
        return
    model = torch.nn.Linear(2, 2)  # a monitor whose model is gone is closed
    with ampwatch.monitor(model, serve=False):
        yield


def test_the_guards_of_a_monitor_are_those_that_are_tested() -> None:
    """Whoever gives a sensor a guard of its own plants a fault in it below."""
    names = {}
    for recipe in ("fp16-scheduled", "bf16-without-scaler"):
        run = build(recipe)
        with ampwatch.monitor(run.models, run.scaler, level="deep", serve=False, lab=True) as watch:
            names[recipe] = [guard.name for guard in watch._session.bus.guards]

    assert sorted(names["fp16-scheduled"]) == sorted(SCALED)
    assert set(names["bf16-without-scaler"]) - set(SCALED) == set(UNWATCHED)


@pytest.mark.rotating
@pytest.mark.parametrize("name", [*SCALED, *UNWATCHED])
@pytest.mark.usefixtures("neighbour")
def test_a_fault_behind_any_guard_reaches_neither_training_nor_its_exception(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The very first thing that is done behind it fails, in a training that ends by an error."""
    original = Guard.run
    failed: list[object] = []

    def fail(*_: Any) -> None:
        msg = "planted"
        raise RuntimeError(msg)

    def is_first(guard: Guard, work: object) -> bool:
        if guard.name != name or failed:
            return False
        failed.append(work)
        return True

    def run_guarded(guard: Guard, work: Callable[..., Any], *arguments: Any) -> Any:
        return original(guard, fail if is_first(guard, work) else work, *arguments)

    def subscribed(sensor: Any, guard: Guard, handle: Callable[..., Any], wakes: bool) -> Any:  # noqa: FBT001 - as it is called
        def handled(event: object) -> Any:
            return (fail if is_first(guard, handle) else handle)(event)

        return Subscriber(sensor, guard, handled, wakes)

    mine = ValueError("batch 3 is empty")
    build_run = _run_for(name)
    bare = _bare_digest(build_run)
    watched = build_run()

    def train() -> None:
        with ampwatch.monitor(
            watched.models, watched.scaler, level="deep", serve=False, lab=True
        ) as watch:
            watched.loop()
            if name == "error_budget":  # which nobody runs unasked
                assert "it has failed" in str(lab.error_budget(watch))
            raise mine

    monkeypatch.setattr(Guard, "run", run_guarded)
    monkeypatch.setattr(bus, "Subscriber", subscribed)
    with (
        caplog.at_level(logging.WARNING, logger="ampwatch.guard"),
        pytest.raises(ValueError, match="batch 3") as caught,
    ):
        train()

    assert len(failed) == 1
    assert caught.value is mine
    assert watched.digest() == bare
    assert [r.args for r in caplog.records if "failed and is switched off" in r.message] == [
        (name,)
    ]


@pytest.mark.rotating
def test_every_error_type_is_kept_from_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the errors that no one expects, such as running out of memory."""
    for error in (MemoryError, RecursionError, KeyError, AssertionError, StopIteration):
        monkeypatch.setattr(
            IterationLedger, "updating", Fault(lambda *_: None, 1, error).bound_to()
        )
        run = build("fp16-fused")
        with ampwatch.monitor(run.models, run.scaler, serve=False):
            run.loop()
        monkeypatch.undo()

        assert len(run.losses) == run.steps


def test_the_users_interrupt_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C is meant for the program, even when it arrives inside ampwatch."""

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(IterationLedger, "updating", interrupted)
    run = build("fp16-fused")

    with (
        ampwatch.monitor(run.models, run.scaler, serve=False),
        pytest.raises(KeyboardInterrupt),
    ):
        run.loop()


def test_a_callback_that_raises_is_called_once_and_never_again() -> None:
    """The user's callback must not end the user's training."""
    calls = []

    def callback(finding: ampwatch.Finding) -> None:
        calls.append(finding.kind)
        msg = "the user's webhook is down"
        raise ConnectionError(msg)

    run = build("fp16-scheduled")
    run.steps, run.poison = 24, tuple(range(16, 24))
    with ampwatch.monitor(run.models, run.scaler, serve=False) as watch:
        watch.on_finding(callback)
        run.loop()

    assert len(watch.findings) > 1
    assert calls == [watch.findings[0].kind]


def test_a_census_that_failed_does_not_stay_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the next iteration on the dispatcher and the modules are as without ampwatch."""
    monkeypatch.setattr(OpCensusSensor, "note", Fault(lambda *_: None, 1, KeyError).bound_to())
    run = build("fp16-fused")
    depths = []
    run.after_step = lambda _step: depths.append(
        (
            torch._C._len_torch_dispatch_stack(),
            [
                subscriber.guard.name
                for subscriber in watch._session.bus.channel(ForwardBegan).subscribers
                if not subscriber.guard.off
            ],
        )
    )
    with ampwatch.monitor(run.models, run.scaler, serve=False) as watch:
        run.loop()

    assert depths == [(0, [])] * run.steps


@pytest.mark.parametrize(("owner", "method"), [(Governor, "next"), (Measuring, "seal")])
def test_what_all_ranges_share_stops_measuring_once_it_has_failed(
    owner: type, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last plan does not go on for ever: nobody would weigh it against the budget."""
    fault = Fault(getattr(owner, method), 3, KeyError)
    monkeypatch.setattr(owner, method, fault.bound_to())
    run = build("fp16-fused")
    wanted = []
    run.after_step = lambda _step: wanted.append(watch._session._context.governor.wanted)
    with ampwatch.monitor(run.models, run.scaler, level="deep", serve=False) as watch:
        run.loop()

    assert wanted[0]
    assert wanted[4:] == [frozenset()] * (run.steps - 4)
