"""Promise 2: whatever breaks inside ampwatch, the training step does not notice."""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import torch

import ampwatch
from ampwatch.diagnosis.book import FindingBook
from ampwatch.diagnosis.calls.api_misuse import ApiMisuse
from ampwatch.diagnosis.escalation import Escalation
from ampwatch.diagnosis.forward.culprit_ops import CulpritOps
from ampwatch.diagnosis.forward.forward_range import ForwardRange
from ampwatch.diagnosis.gradients.culprits import Culprits
from ampwatch.diagnosis.gradients.gradient_range import GradientRange
from ampwatch.diagnosis.gradients.loss_dtype import LossDtype
from ampwatch.diagnosis.performance.performance import Performance
from ampwatch.diagnosis.pipeline import Diagnosis
from ampwatch.diagnosis.records.op_records import OpRecorder
from ampwatch.diagnosis.records.range_records import RangeRecorder
from ampwatch.diagnosis.rounding.update_precision import UpdatePrecision
from ampwatch.diagnosis.scale.scale_dynamics import ScaleDynamics
from ampwatch.diagnosis.state.poisoned_state import PoisonedState
from ampwatch.diagnosis.steps.step_bookkeeping import StepBookkeeping
from ampwatch.diagnosis.steps.steps import StepJudge
from ampwatch.guard import Guard
from ampwatch.training.hooks.regions import Regions
from ampwatch.training.iteration.governor import Sampler
from ampwatch.training.iteration.ledger import IterationLedger
from ampwatch.training.model.module_stack import ModuleStack
from ampwatch.training.model.names import Names
from ampwatch.training.model.optimizers import OptimizerRegistry
from ampwatch.training.ops.call import OpCounts
from ampwatch.training.ops.listener import GuardedListeners
from ampwatch.training.ops.mode import OpMode
from ampwatch.training.sensors.autocast.dtypes import AutocastSensor
from ampwatch.training.sensors.births.births import BirthListener
from ampwatch.training.sensors.calls.clipping import ClippingSensor
from ampwatch.training.sensors.calls.gradient_contents import GradContents
from ampwatch.training.sensors.calls.gradient_use import GradientUseSensor
from ampwatch.training.sensors.calls.scaled_roots import ScaledRoots
from ampwatch.training.sensors.ops.census import OpCensusSensor
from ampwatch.training.sensors.ops.fallbacks import Fallbacks
from ampwatch.training.sensors.ops.inputs import InputSensor
from ampwatch.training.sensors.ranges.activations import ActivationSensor
from ampwatch.training.sensors.ranges.gradients import GradientSensor
from ampwatch.training.sensors.ranges.updates import UpdateSensor
from ampwatch.training.sensors.ranges.weights import WeightSensor
from ampwatch.training.sensors.rounding.averages import WeightAverages
from ampwatch.training.sensors.rounding.fp8_casts import Fp8Casts
from ampwatch.training.sensors.rounding.gradient_sums import GradientSums
from ampwatch.training.sensors.rounding.lossy_casts import LossyCasts
from ampwatch.training.sensors.rounding.metric_sums import MetricSums
from ampwatch.training.sensors.scaler.loss_scale import LossScaleSensor
from ampwatch.training.sensors.scaler.optimizer_steps import OptimizerStepSensor
from ampwatch.training.sensors.scaler.replicas import ReplicaSensor
from ampwatch.training.sensors.scaler.schedulers import SchedulerSensor
from ampwatch.training.sensors.scaler.succession import ScalerSuccession
from ampwatch.training.transfer.losses import LossSum
from ampwatch.training.transfer.measuring import Measuring
from ampwatch.training.transfer.readback import Readback
from ampwatch.training.wiring.ops import OpWatch
from tests.promises.conftest import ahead
from tests.trainings import Run, build

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = ahead

IN_STEP = [
    (AutocastSensor, "entered"),
    (LossScaleSensor, "before_scale"),
    (LossScaleSensor, "before_step"),
    (LossScaleSensor, "after_step"),
    (LossScaleSensor, "before_update"),
    (LossScaleSensor, "after_update"),
    (OptimizerStepSensor, "stepped"),
    (SchedulerSensor, "look"),
    (OptimizerRegistry, "admit"),
    (LossSum, "add"),
    (IterationLedger, "begin_scaled_step"),
    (IterationLedger, "optimizer_stepped"),
    (IterationLedger, "take_verdicts"),
    (IterationLedger, "close_scaled"),
    (Readback, "open"),
    (Readback, "put"),
    (Readback, "seal"),
    (Readback, "arrived"),
    (Diagnosis, "deliver"),
    (StepJudge, "judge"),
    (ScaleDynamics, "detect"),
    (StepBookkeeping, "detect"),
    (FindingBook, "make"),
    (FindingBook, "count"),
    (RangeRecorder, "record"),
    (Culprits, "update"),
    (GradientRange, "detect"),
    (LossDtype, "detect"),
    (ForwardRange, "detect"),
    (PoisonedState, "detect"),
    (UpdatePrecision, "detect"),
    (GradientSensor, "before_unscale"),
    (GradientSensor, "look_at_skips"),
    (GradientSensor, "before_direct_step"),
    (ActivationSensor, "after_forward"),
    (ActivationSensor, "before_node"),
    (WeightSensor, "look"),
    (UpdateSensor, "before_step"),
    (UpdateSensor, "after_step"),
    (Names, "of_optimizer"),
    (Measuring, "measure"),
    (Measuring, "seal"),
    (Measuring, "take"),
    (Sampler, "next"),
    (Sampler, "alarm"),
    (Sampler, "takes_first_look"),
    (OpCensusSensor, "begin"),
    (OpCensusSensor, "before_forward"),
    (OpCensusSensor, "after_forward"),
    (OpCensusSensor, "note"),
    (OpCensusSensor, "end"),
    (OpCounts, "count"),
    (OpMode, "put_on"),
    (OpMode, "take_off"),
    (ModuleStack, "enter"),
    (ModuleStack, "name_of_node"),
    (Regions, "entered"),
    (Regions, "left"),
    (Regions, "look"),
    (Fallbacks, "why"),
    (OpRecorder, "record"),
    (OpRecorder, "pass_on"),
    (Performance, "check_census"),
    (ApiMisuse, "detect"),
    (ClippingSensor, "by_norm"),
    (GradContents, "before"),
    (GradContents, "after"),
    (GradientUseSensor, "before_backward"),
    (GradientUseSensor, "after_backward"),
    (GradientUseSensor, "scaled"),
    (GradientUseSensor, "judge"),
    (GradientUseSensor, "use_up"),
    (GradientUseSensor, "before_update"),
    (GradientUseSensor, "zeroed"),
    (ScaledRoots, "branches"),
    (BirthListener, "begin"),
    (BirthListener, "note"),
    (BirthListener, "end"),
    (GuardedListeners, "_note"),
    (OpWatch, "_deliver"),
    (CulpritOps, "observe_trace"),
    (CulpritOps, "judge_input"),
    (Escalation, "update"),
    (LossyCasts, "note"),
    (Fp8Casts, "begin"),
    (MetricSums, "note"),
    (WeightAverages, "end"),
    (GradientSums, "note"),
    (InputSensor, "begin"),
    (InputSensor, "before_forward"),
    (ScalerSuccession, "loaded"),
    (ReplicaSensor, "before_step"),
    (ReplicaSensor, "before_update"),
]


class Fault:
    """Raises at one call of a method and counts the calls."""

    def __init__(self, original: Callable[..., Any], at_call: int, error: type[Exception]) -> None:
        self.original = original
        self.at_call = at_call
        self.error = error
        self.calls = 0

    def bound_to(self) -> Callable[..., Any]:
        def method(instance: Any, *args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            if self.calls == self.at_call:
                msg = "planted"
                raise self.error(msg)
            return self.original(instance, *args, **kwargs)

        return method


SELDOM = ("clipping", "backward", "autocast_backward")
"""Guards of what has nothing to do in a loop without a scaler's mistakes."""


def _odd_run() -> Run:
    """A run that clips, and goes back inside of autocast and from a loss that nobody scales."""
    run = build("bf16-without-scaler")

    def after_step(_step: int) -> None:
        parameters = list(run.models[0].parameters())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            (0.0 * sum(p.sum() for p in parameters)).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)

    run.after_step = after_step
    return run


def _faulty_run(method: str = "") -> Run:
    """A run with two findings, so that every part has something to do."""
    if method == "before_direct_step":
        return build("bf16-without-scaler")
    if method in SELDOM:
        return _odd_run()
    if method == "by_norm":
        return build("fp16-accumulated-clipped")
    run = build("fp16-scheduled")
    run.steps, run.poison = 20, tuple(range(12, 20))
    if method == "loaded":
        run.after_step = lambda _step: run.scaler.load_state_dict(run.scaler.state_dict())
    return run


@cache
def _bare_digest(method: str) -> str:
    """The digest of that run without ampwatch."""
    run = _faulty_run(method)
    run.loop()
    return run.digest()


@pytest.mark.parametrize("at_call", [1, 2])
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
    bare = _bare_digest(method)
    fault = Fault(getattr(owner, method), at_call, RuntimeError)
    monkeypatch.setattr(owner, method, fault.bound_to())

    watched = _faulty_run(method)
    with (
        caplog.at_level(logging.WARNING, logger="ampwatch.guard"),
        ampwatch.monitor(watched.models, watched.scaler, level=level, serve=False) as watch,
    ):
        watched.loop()
        report = watch.report()

    switched_off = [r for r in caplog.records if "switched its sensor" in r.message]
    reached = fault.calls >= at_call
    assert watched.digest() == bare
    assert reached
    assert len(switched_off) == 1
    assert "was switched off" in report


GUARDS = (
    "steps",
    "autocast",
    "schedulers",
    "diagnosis",
    "succession",
    "backward",
    "replicas",
    "ranges",
    "gradients",
    "activations",
    "weights",
    "updates",
    "regions",
    "census",
    "births",
    "rounding",
    "inputs",
    "window",
    "exceptions",
    "gradient_use",
    "clipping",
    "autocast_backward",
)


def test_the_guards_of_a_monitor_are_those_that_are_tested() -> None:
    """Whoever gives a sensor a guard of its own plants a fault in it below."""
    run = build("fp16-scheduled")
    with ampwatch.monitor(run.models, run.scaler, level="deep", serve=False) as watch:
        names = [guard.name for guard in watch._instruments._guards]

    assert sorted(names) == sorted(GUARDS)


@pytest.mark.parametrize("name", GUARDS)
def test_a_fault_behind_any_guard_reaches_neither_training_nor_its_exception(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The very first thing that is done behind it fails, in a training that ends by an error."""
    original = Guard.run
    failed: list[object] = []

    def fail(*_: Any) -> None:
        msg = "planted"
        raise RuntimeError(msg)

    def run_guarded(guard: Guard, work: Callable[..., Any], *arguments: Any) -> Any:
        if guard.name == name and not failed:
            failed.append(work)
            return original(guard, fail)
        return original(guard, work, *arguments)

    mine = ValueError("batch 3 is empty")
    bare = _bare_digest(name)
    watched = _faulty_run(name)

    def train() -> None:
        with ampwatch.monitor(watched.models, watched.scaler, level="deep", serve=False):
            watched.loop()
            raise mine

    monkeypatch.setattr(Guard, "run", run_guarded)
    with (
        caplog.at_level(logging.WARNING, logger="ampwatch.guard"),
        pytest.raises(ValueError, match="batch 3") as caught,
    ):
        train()

    assert len(failed) == 1
    assert caught.value is mine
    assert watched.digest() == bare
    assert [r.args for r in caplog.records if "switched its sensor" in r.message] == [(name,)]


def test_every_error_type_is_kept_from_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the errors that no one expects, such as running out of memory."""
    for error in (MemoryError, RecursionError, KeyError, AssertionError, StopIteration):
        monkeypatch.setattr(
            LossScaleSensor, "before_update", Fault(lambda *_: None, 1, error).bound_to()
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

    monkeypatch.setattr(LossScaleSensor, "before_update", interrupted)
    run = build("fp16-fused")

    with (
        ampwatch.monitor(run.models, run.scaler, serve=False),
        pytest.raises(KeyboardInterrupt),
    ):
        run.loop()


def test_the_users_own_error_reaches_the_user_unchanged() -> None:
    """An exception of torch or of the user passes through the taps as it is."""
    run = build("fp16-foreach")
    with ampwatch.monitor(run.models, run.scaler, serve=False):
        run.loop()
        assert run.scaler is not None
        with pytest.raises(AssertionError, match="No inf checks were recorded prior to update"):
            run.scaler.update()


def test_a_callback_that_raises_is_called_once_and_never_again() -> None:
    """The user's callback must not end the user's training."""
    calls = []

    def callback(finding: ampwatch.Finding) -> None:
        calls.append(finding.kind)
        msg = "the user's webhook is down"
        raise ConnectionError(msg)

    run = build("fp16-scheduled")
    run.steps, run.poison = 20, tuple(range(12, 20))
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
            # One stays: the one that looks at inputs.
            len(torch.nn.modules.module._global_forward_pre_hooks) - 1,
        )
    )
    with ampwatch.monitor(run.models, run.scaler, serve=False):
        run.loop()

    assert depths == [(0, 0)] * run.steps
