"""Scalers that are not torch's: what they count themselves is what ampwatch counts."""

from __future__ import annotations

import gc
import logging
import math
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn

import ampwatch
from ampwatch.training.scalers.loss_scaler import (
    NOT_KNOWN,
    LossScaler,
    Reader,
    as_outcome,
)
from ampwatch.training.targets import check_targets
from ampwatch.wire.records import Topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FAULTS = frozenset({7, 8, 20, 21, 22, 23, 24, 25, 26, 27})
STEPS = 40


class Scaler:
    """A loss scaler of a user's own, which counts what it skips.

    Attributes:
        scale: The loss scale.
        skips: Steps that it has skipped.
    """

    def __init__(self, scale: float = 65536.0, interval: int = 10) -> None:
        self.scale: Any = scale
        self.skips = 0
        self._interval = interval
        self._good = 0

    def step(self, optimizer: Any, parameters: list[nn.Parameter]) -> bool:
        if not self.check(parameters):
            return False
        optimizer.step()
        return True

    def check(self, parameters: list[nn.Parameter]) -> bool:
        """Unscale, and move the scale; whether the step is to be taken."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        if not all(bool(torch.isfinite(g).all()) for g in gradients):
            self.scale, self._good = self.scale / 2, 0
            self.skips += 1
            return False
        for gradient in gradients:
            gradient.div_(self.scale)
        self._good += 1
        if self._good % self._interval == 0:
            self.scale = self.scale * 2
        return True


def train(
    scaler: Scaler,
    step: Callable[[torch.optim.Optimizer, list[nn.Parameter]], object] | None = None,
    *,
    faults: frozenset[int] = FAULTS,
    watch: Callable[[nn.Module], ampwatch.Monitor] | None = None,
    after: Callable[[ampwatch.Monitor, object], None] | None = None,
    micro_batches: int = 1,
    between: Callable[[nn.Module, float], None] | None = None,
) -> tuple[bytes, ampwatch.Monitor | None]:
    """Train a small model; return its weights and the monitor, closed."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    parameters = list(model.parameters())
    monitor = None if watch is None else watch(model)
    factor = 1.0
    parameters[0].register_hook(lambda gradient: gradient * factor)
    for number in range(STEPS):
        factor = math.inf if number in faults else 1.0
        for _ in range(micro_batches):
            loss = model(torch.randn(4, 8)).pow(2).mean() / micro_batches
            (loss * scaler.scale).backward()
        factor = 1.0
        returned = (step or scaler.step)(optimizer, parameters)
        optimizer.zero_grad()
        if monitor is not None and after is not None:
            after(monitor, returned)
        if between is not None:
            between(model, scaler.scale)
    if monitor is not None:
        monitor.close()
    return b"".join(p.detach().numpy().tobytes() for p in parameters), monitor


def counts(monitor: ampwatch.Monitor | None) -> tuple[int, int]:
    """Return the skips and the steps that a monitor has counted."""
    assert monitor is not None
    totals = monitor._session.diagnosis.totals
    assert not [guard.name for guard in monitor._session.bus.guards if guard.off]
    return sum(map(sum, totals.skipped.values())), sum(totals.steps.values())


def monitored(*scaler: Any) -> Callable[[nn.Module], ampwatch.Monitor]:
    return lambda model: ampwatch.monitor(model, *scaler, serve=False)


def described(scaler: Scaler, **more: Any) -> LossScaler:
    return LossScaler(lambda: scaler.scale, (scaler, "step"), lambda returned: not returned, **more)


@pytest.mark.rotating
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_a_described_scaler_is_counted_as_it_counts_itself(micro_batches: int) -> None:
    """Skips, steps, growths and backoffs agree, and not a bit of the weights is another one."""
    bare, _ = train(Scaler(), micro_batches=micro_batches)
    scaler = Scaler()
    weights, monitor = train(
        scaler,
        watch=monitored(described(scaler, growth_interval=10)),
        micro_batches=micro_batches,
    )
    assert weights == bare
    assert counts(monitor) == (scaler.skips, STEPS) == (len(FAULTS), STEPS)
    assert monitor is not None
    assert monitor.last_step.loss_scale == scaler.scale
    totals = monitor._session.diagnosis.totals
    assert scaler.scale == 65536.0 * 2.0 ** (totals.growths - totals.backoffs)
    assert totals.set_by_hand == 0
    assert [f.kind for f in monitor.findings if f.kind == "scale_collapse"]


def test_gradients_of_an_accumulation_are_measured_at_its_end() -> None:
    """An infinity of a later micro-batch is in the measurement, from the second iteration on."""
    scaler, model = Scaler(), nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    seen: list[tuple[bool, bool]] = []
    with ampwatch.monitor(model, described(scaler), level="deep", serve=False) as monitor:
        deliver = monitor._session.diagnosis.deliver

        def note(*iterations: Any) -> None:
            for iteration in iterations:
                gradients = [r for r in iteration.ranges if r.topic is Topic.GRADIENT]
                is_bad = any(r.histogram.nonfinite for r in gradients)
                if Topic.GRADIENT in iteration.topics:
                    seen.append((is_bad, Topic.GRADIENT in iteration.incomplete))
            deliver(*iterations)

        monitor._session.diagnosis.deliver = note  # type: ignore[method-assign]
        for _ in range(24):  # one topic is measured in each
            for factor in (1.0, math.inf):
                (model(torch.ones(2, 4)).mean() * scaler.scale * factor).backward()
            scaler.step(optimizer, list(model.parameters()))
            optimizer.zero_grad()
    assert len(seen) >= 4
    assert seen == [(False, True)] + [(True, False)] * (len(seen) - 1)


def test_end_iteration_does_nothing_once_the_monitor_is_closed() -> None:
    monitor = ampwatch.monitor(nn.Linear(2, 2), serve=False)
    monitor.close()
    monitor.end_iteration(loss_scale=2.0, skipped=True)
    assert monitor.last_step.step == -1


@pytest.mark.rotating
@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("by_hand", [False, True])
def test_skips_are_inferred_where_nothing_was_handed_in_and_told_by_hand(
    micro_batches: int, *, by_hand: bool
) -> None:
    """From gradients that were thrown away before a loss with a smaller scale; or by who ends iterations.

    By hand also where an optimizer's step has ended the first one already.
    """
    bare, _ = train(Scaler(), micro_batches=micro_batches)
    scaler = Scaler()

    def after(monitor: ampwatch.Monitor, returned: object) -> None:
        if by_hand:
            monitor.end_iteration(loss_scale=scaler.scale, skipped=not returned)

    weights, monitor = train(scaler, watch=monitored(), after=after, micro_batches=micro_batches)
    assert weights == bare
    assert counts(monitor) == (scaler.skips, STEPS)
    assert monitor is not None
    assert [f.kind for f in monitor.findings if f.kind == "scale_collapse"]


def _saliency(model: nn.Module, _scale: float) -> None:
    inputs = torch.randn(4, 8, requires_grad=True)
    model(inputs).pow(2).mean().backward()
    model.zero_grad()


def _scaled_attack(model: nn.Module, scale: float) -> None:
    inputs = torch.randn(4, 8, requires_grad=True)
    (model(inputs).pow(2).mean() * scale).backward()
    for parameter in model.parameters():
        parameter.grad = None


@pytest.mark.rotating
@pytest.mark.parametrize("between", [_saliency, _scaled_attack])
def test_gradients_that_are_thrown_away_for_another_purpose_are_no_skips(between: Any) -> None:
    """With skips beside them too: those are counted, and nothing else is."""
    healthy = Scaler()
    _, monitor = train(healthy, faults=frozenset(), watch=monitored(), between=between)
    assert counts(monitor) == (0, STEPS)
    scaler = Scaler()
    _, monitor = train(scaler, watch=monitored(), between=between)
    assert counts(monitor) == (scaler.skips, STEPS)


def test_a_constant_weight_of_a_loss_is_no_scale() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with ampwatch.monitor(model, serve=False) as monitor:
        for _ in range(20):
            (model(torch.randn(2, 4)).mean() * 256.0).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert math.isnan(monitor.last_step.loss_scale)
        assert monitor.last_step.step == 19


# Frameworks. The fakes have the structure of the versions that the rows name.


class Apex(Scaler):
    """apex: the scaler says at the end of `amp.scale_loss` whether to skip."""

    def __init__(self) -> None:
        super().__init__()
        self._scale_seq_len = 10
        self._clean: bool = True

    def loss_scale(self) -> float:
        scale: float = self.scale
        return scale

    def update_scale(self) -> bool:
        return not self._clean


class DynamicLossScaler:
    """fairseq: raises before the step that is skipped, is told after the one that is taken."""

    def __init__(self) -> None:
        self.loss_scale, self.scale_factor, self.scale_window = 65536.0, 2.0, 10

    def update(self) -> None:
        pass

    def check_overflow(self, norm: float) -> None:
        if not math.isfinite(norm):
            self.loss_scale /= self.scale_factor
            raise OverflowError(self.loss_scale)


class MegatronOptimizer(Scaler):
    """Megatron-Core 0.16: `step` returns (ok, norm, zeros), the scale is a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.grad_scaler = self
        self.growth_interval = 10

    def get_loss_scale(self) -> torch.Tensor:
        return torch.tensor([self.scale])

    def step(self, *given: Any) -> Any:
        return (True, 1.0, 0) if super().step(*given) else (False, None, None)


class DeepSpeedEngine(Scaler):
    """DeepSpeed 0.19: `step` for each micro-batch, counts of what it has taken and skipped."""

    def __init__(self, module: nn.Module | None = None) -> None:
        super().__init__()
        self.module = module
        self.global_steps = self.skipped_steps = 0
        self.optimizer = self

    @property
    def cur_scale(self) -> float:
        scale: float = self.scale
        return scale

    def fp16_enabled(self) -> bool:
        return True

    def step(self, *given: Any) -> Any:
        if not given:
            return  # within an accumulation
        self.global_steps += 1
        self.skipped_steps += not super().step(*given)


@pytest.fixture
def frameworks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Modules of frameworks that hold the fakes."""
    fakes = {
        "apex.amp.scaler": {"LossScaler": Apex},
        "fairseq.optim.dynamic_loss_scaler": {"DynamicLossScaler": DynamicLossScaler},
        "megatron.core.optimizer.optimizer": {"MegatronOptimizer": MegatronOptimizer},
        "deepspeed.runtime.engine": {"DeepSpeedEngine": DeepSpeedEngine},
    }
    for name, classes in fakes.items():
        module = ModuleType(name)
        vars(module).update(classes)
        monkeypatch.setitem(sys.modules, name, module)
    gc.collect()
    yield
    gc.collect()


@pytest.mark.usefixtures("frameworks")
def test_apex() -> None:
    scaler = Apex()

    def step(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> None:
        scaler._clean = scaler.check(parameters)
        if not scaler.update_scale():
            optimizer.step()

    _, monitor = train(scaler, step, watch=monitored(scaler))
    assert counts(monitor) == (scaler.skips, STEPS)


@pytest.mark.usefixtures("frameworks")
def test_fairseq() -> None:
    inner, scaler = Scaler(), DynamicLossScaler()

    def step(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> None:
        norm = 1.0 if inner.check(parameters) else math.inf
        try:
            scaler.check_overflow(norm)
        except OverflowError:
            return
        optimizer.step()
        scaler.update()

    _, monitor = train(inner, step, watch=monitored(scaler))
    assert counts(monitor) == (inner.skips, STEPS)


@pytest.mark.usefixtures("frameworks")
def test_megatron() -> None:
    optimizer = MegatronOptimizer()
    _, monitor = train(optimizer, watch=monitored(optimizer))
    assert counts(monitor) == (optimizer.skips, STEPS)
    assert monitor is not None
    assert monitor.last_step.loss_scale == optimizer.scale


@pytest.mark.usefixtures("frameworks")
def test_deepspeed_counts_what_ends_an_accumulation() -> None:
    engine = DeepSpeedEngine()

    def step(*given: Any) -> None:
        engine.step()
        engine.step(*given)

    _, monitor = train(engine, step, watch=monitored(engine))
    assert counts(monitor) == (engine.skipped_steps, engine.global_steps) == (10, STEPS)


@pytest.mark.usefixtures("frameworks")
def test_an_engine_is_found_by_the_model_that_it_trains() -> None:
    """Nothing but the model was handed in, and another engine is alive."""
    others = [DeepSpeedEngine(nn.Linear(2, 2))]
    engine = DeepSpeedEngine()

    def watch(model: nn.Module) -> ampwatch.Monitor:
        engine.module = model
        return ampwatch.monitor(model, serve=False)

    _, monitor = train(engine, watch=watch)
    assert monitor is not None
    assert monitor._loss_scaler is not None
    assert monitor._loss_scaler.name == "deepspeed"
    assert counts(monitor) == (engine.skipped_steps, STEPS)
    assert others


@pytest.mark.usefixtures("frameworks")
@pytest.mark.parametrize("holder", ["param_groups", "param_lists", "float16_groups"])
def test_an_optimizer_of_a_framework_is_found_by_the_parameters_that_it_holds(holder: str) -> None:
    """One that holds those of another model trains that one, and an optimizer of torch's goes first."""
    models = [nn.Linear(2, 2) for _ in range(3)]
    optimizers = [MegatronOptimizer() for _ in models[:2]]
    for optimizer, model in zip(optimizers, models, strict=False):
        groups = [list(model.parameters())]
        setattr(optimizer, holder, [{"params": groups[0]}] if holder == "param_groups" else groups)
    torchs = torch.optim.SGD(models[0].parameters(), lr=0.1)
    found = [check_targets(model, None, None).loss_scaler for model in models]
    owners = [None if scaler is None else scaler.calls[0].owner for scaler in found]
    assert owners == [*optimizers, None]
    assert check_targets(models[0], None, torchs).loss_scaler is None


@pytest.mark.usefixtures("frameworks")
def test_a_scaler_that_holds_no_parameters_is_not_guessed() -> None:
    scaler = Apex()
    assert check_targets(nn.Linear(2, 2), None, None).loss_scaler is None
    assert check_targets(nn.Linear(2, 2), scaler, None).loss_scaler is not None


@pytest.mark.usefixtures("frameworks")
def test_an_engine_that_has_changed_is_said_in_a_sentence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Training goes on, watched as without a scaler."""

    class Changed(DeepSpeedEngine):
        @property
        def fp16_enabled(self) -> Any:  # type: ignore[override]
            raise AttributeError

    with caplog.at_level(logging.WARNING, "ampwatch"):
        monitor = ampwatch.monitor(nn.Linear(2, 2), Changed(), serve=False)
    monitor.close()
    (record,) = [r for r in caplog.records if "deepspeed" in r.getMessage()]
    assert "fp16_enabled" in record.getMessage()
    assert "0.19.8" in record.getMessage()


def test_what_holds_a_grad_scaler_is_unwrapped() -> None:
    class NativeScaler:
        def __init__(self) -> None:
            self._scaler = torch.amp.GradScaler("cpu")

    wrapper = NativeScaler()
    with ampwatch.monitor(nn.Linear(2, 2), wrapper, serve=False) as monitor:
        assert monitor._scaler is wrapper._scaler


# Bad input.


@pytest.mark.parametrize(
    "arguments",
    [
        {"get_scale": 3.0, "ends": (Scaler(), "step")},
        {"get_scale": None, "ends": (Scaler(), "steps")},
        {"get_scale": None, "ends": Scaler()},
        {"get_scale": None, "ends": (Scaler, "step")},
        {"get_scale": None, "ends": [(Scaler(), "step", 3)]},
        {"get_scale": None, "ends": (Scaler(), "step"), "skipped": True},
        {"get_scale": None, "ends": []},
        {"get_scale": None, "ends": (Scaler(), "step"), "growth_interval": 0},
        {"get_scale": None, "ends": (Scaler(), "step"), "growth_interval": math.inf},
        {"get_scale": None, "ends": (Scaler(), "step"), "growth_factor": torch.ones(2)},
        {"get_scale": None, "ends": (Scaler(), "step"), "backoff_factor": 2.0},
    ],
)
def test_a_protocol_that_cannot_be_used_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ampwatch.AttachError, match="expected"):
        LossScaler(**arguments)


def test_a_scale_that_cannot_be_read_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    def get_scale() -> float:
        msg = "gone"
        raise KeyError(msg)

    scaler = Scaler()
    with caplog.at_level(logging.WARNING, "ampwatch"):
        reader = Reader(LossScaler(get_scale, (scaler, "step"), name="mine"))
        assert [reader.scale() for _ in range(3)] == [None] * 3
    (record,) = caplog.records
    assert "mine" in record.getMessage()
    assert "KeyError" in record.getMessage()


_NO_SCALES = ("2", True, [2.0], torch.ones(2), -1.0, np.ones(2), 1j, torch.tensor(1j))


@pytest.mark.parametrize("given", _NO_SCALES)
def test_what_is_no_scale_is_said_once_and_not_known(
    given: object, caplog: pytest.LogCaptureFixture
) -> None:
    reader = Reader(LossScaler(lambda: given, (Scaler(), "step"), name="mine"))
    with caplog.at_level(logging.WARNING, "ampwatch"):
        assert [reader.scale() for _ in range(3)] == [None] * 3
    (record,) = caplog.records
    assert "expected a number" in record.getMessage()
    assert "raised" not in record.getMessage()


def test_a_loss_that_is_not_scaled_now_has_no_scale_now(caplog: pytest.LogCaptureFixture) -> None:
    scales = iter([None, 2.0, None, 4.0])
    reader = Reader(LossScaler(lambda: next(scales), (Scaler(), "step")))
    with caplog.at_level(logging.WARNING, "ampwatch"):
        assert [reader.scale() for _ in range(4)] == [None, 2.0, None, 4.0]
    assert not caplog.records


@pytest.mark.parametrize("given", [0, 0.0, np.bool_(0), torch.tensor(0.0), torch.tensor([False])])
def test_what_means_false_is_a_step_that_was_taken(given: object) -> None:
    assert as_outcome(given) is False


UNREADABLE = [np.ones(2), torch.ones(2), torch.ones((), dtype=torch.complex64)]


@pytest.mark.parametrize("given", UNREADABLE)
def test_an_outcome_that_cannot_be_read_is_neither_a_step_nor_a_skip(
    given: object, caplog: pytest.LogCaptureFixture
) -> None:
    """It ends its iteration anyway, and is said once; one that can be read counts again."""
    told: list[object] = [given, True, given, False]
    model = nn.Linear(4, 4)
    with (
        caplog.at_level(logging.WARNING, "ampwatch"),
        ampwatch.monitor(model, serve=False) as monitor,
    ):
        for outcome in told:
            model(torch.randn(2, 4)).mean().backward()
            monitor.end_iteration(loss_scale=given, skipped=outcome)
            expected = outcome if isinstance(outcome, bool) else None
            assert monitor.last_step.skipped is expected
        assert monitor.last_step.step == len(told) - 1
        assert counts(monitor) == (1, 2)
        assert math.isnan(monitor.last_step.loss_scale)
    said = [r.getMessage() for r in caplog.records if "end_iteration()" in r.getMessage()]
    assert len(said) == 2
    assert all("expected" in sentence and "training goes on" in sentence for sentence in said)


@pytest.mark.parametrize("given", UNREADABLE)
def test_an_answer_that_cannot_be_read_is_said_once(
    given: object, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "ampwatch"):
        reader = Reader(LossScaler(None, (Scaler(), "step"), lambda returned: returned))
        answers = [reader.outcome(returned) for returned in (given, True, given, False)]
    assert answers == [NOT_KNOWN, True, NOT_KNOWN, False]
    assert len(caplog.records) == 1


# The one line where no iteration ends.


def _no_iteration(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [m for r in caplog.records if "no iteration ends" in (m := r.getMessage())]


class Descent:
    """An optimizer that is none of torch's."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters

    @torch.no_grad()
    def step(self) -> None:
        for parameter in self.parameters:
            assert parameter.grad is not None
            parameter.sub_(parameter.grad, alpha=1e-3)
            parameter.grad = None


def _descend(steps: int, *, throws_away: bool = True) -> None:
    model = nn.Linear(4, 4)
    descent = Descent(list(model.parameters()))
    with ampwatch.monitor(model, serve=False):
        for _ in range(steps):
            model(torch.randn(2, 4)).mean().backward()
            if throws_away:
                descent.step()


def test_steps_of_nobody_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "ampwatch"):
        _descend(200)
    (line,) = _no_iteration(caplog)
    assert "weights change" in line
    assert "end_iteration" in line


def test_a_long_accumulation_is_left_in_peace(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "ampwatch"):
        _descend(200, throws_away=False)
    assert not _no_iteration(caplog)


def test_an_evaluation_with_gradients_between_steps_is_left_in_peace(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with caplog.at_level(logging.WARNING, "ampwatch"), ampwatch.monitor(model, serve=False):
        model(torch.randn(2, 4)).mean().backward()
        optimizer.step()
        for _ in range(200):
            model.zero_grad()
            model(torch.randn(2, 4)).mean().backward()
    assert not _no_iteration(caplog)


def _guarded(
    scale: float, broken: frozenset[int], micro_batches: int = 1, steps: int = STEPS
) -> ampwatch.Monitor:
    """Train with a constant scale and a guard that takes no step with gradients that are not finite."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    factor = 1.0
    model[1].weight.register_hook(lambda gradient: gradient * factor)
    with ampwatch.monitor(model, serve=False) as monitor:
        for number in range(steps):
            for micro in range(micro_batches):
                # The first of several: the last does not show it.
                factor = math.inf if number in broken and micro == 0 else 1.0
                (model(torch.ones(2, 4)).pow(2).mean() * scale).backward()
            gradients = [p.grad.div_(scale) for p in model.parameters() if p.grad is not None]
            if all(bool(gradient.isfinite().all()) for gradient in gradients):
                optimizer.step()
            optimizer.zero_grad()
    return monitor


@pytest.mark.rotating
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_a_row_of_skips_under_a_constant_scale_is_counted(micro_batches: int) -> None:
    """By gradients that are not finite; rows of two or more, as many as there are."""
    broken = frozenset({10, 11, 12, 20, 21, *range(30, 40)})
    monitor = _guarded(1024.0, broken, micro_batches)
    assert counts(monitor) == (len(broken), STEPS)
    (found,) = [f for f in monitor.findings if f.kind == "scale_collapse"]
    assert found.first_step == 30
    assert found.summary.startswith("No step is taken")
    assert "since step 30; the loss scale stays at 1024" in found.summary


@pytest.mark.rotating
def test_a_guard_without_a_scale_that_takes_no_step_any_more_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "ampwatch"):
        _guarded(1.0, frozenset(range(10, 200)), steps=200)
    (line,) = _no_iteration(caplog)
    assert "since step 9" in line
    assert "those of 1.weight are NaN or infinite" in line
    assert "end_iteration" in line


class Hysteresis(Scaler):
    """A scaler whose scale falls at every second skip."""

    def check(self, parameters: list[nn.Parameter]) -> bool:
        before = self.scale
        is_taken = super().check(parameters)
        if not is_taken and self.skips % 2:
            self.scale = before
        return is_taken


def test_skips_of_a_scaler_with_a_hysteresis_are_inferred() -> None:
    """All but the first, which stands alone at its scale and was not looked at."""
    scaler = Hysteresis()
    faults = frozenset(range(20, 30))
    _, monitor = train(scaler, faults=faults, watch=monitored())
    assert counts(monitor) == (scaler.skips - 1, STEPS - 1)


class Floored(Scaler):
    """A scaler whose scale has a least value."""

    def check(self, parameters: list[nn.Parameter]) -> bool:
        is_taken = super().check(parameters)
        self.scale = max(self.scale, 16384.0)
        return is_taken


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("last", [30, STEPS])
def test_skips_of_a_scale_that_has_nowhere_left_to_fall_are_inferred(
    last: int, micro_batches: int
) -> None:
    """Each of them, also where the training ends so."""
    scaler = Floored()
    faults = frozenset(range(20, last))
    _, monitor = train(scaler, faults=faults, watch=monitored(), micro_batches=micro_batches)
    assert scaler.skips == last - 20
    assert counts(monitor) == (scaler.skips, STEPS)


def test_the_end_that_is_never_called_is_named(caplog: pytest.LogCaptureFixture) -> None:
    scaler = Scaler()
    model = nn.Linear(4, 4)
    descent = Descent(list(model.parameters()))
    with (
        caplog.at_level(logging.WARNING, "ampwatch"),
        ampwatch.monitor(model, described(scaler), serve=False),
    ):
        for _ in range(100):
            model(torch.randn(2, 4)).mean().backward()
            descent.step()
    (line,) = _no_iteration(caplog)
    assert "Scaler.step()" in line
