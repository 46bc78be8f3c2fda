"""Iterations that are taken down in C say what the ledger says of them."""

from __future__ import annotations

import gc
import random
import signal
import sys
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import ampwatch
from ampwatch.diagnosis.records import range_records
from ampwatch.diagnosis.steps.step_bookkeeping import StepBookkeeping
from ampwatch.guard import Account
from ampwatch.training.hooks import bus
from ampwatch.training.iteration import governor, programs, quiet
from ampwatch.training.iteration.quiet import QuietSteps
from ampwatch.training.native import timed
from ampwatch.wire.records import StepRecord

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.skipif(timed is None, reason="the extension module is not built")

MEASURED = {"time_ns", "duration_s", "overhead_ns", "phases", "cpu_ns", "run_delay_ns"}
"""Fields of a record that are of the clock."""

COMPARED = [name for name in StepRecord.__struct_fields__ if name not in MEASURED]


@pytest.fixture(autouse=True, params=["light", "standard"])
def _rest_soon(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Program, "level", request.param)
    monkeypatch.setattr(bus, "AWAKE_AT_FIRST", 8)
    # What is sampled depends on no clock.
    monkeypatch.setattr(governor, "OPENING", 4)
    monkeypatch.setattr(Account, "spent_ns", 0)
    # Nor is it by a clock which samples are recorded.
    monkeypatch.setattr(range_records, "APART_NS", 0)


class Program:
    """A training in which now and then something else is done."""

    level = "light"

    def __init__(self, *, interval: int = 2000, fused: bool = False, sample_every: int = 5) -> None:
        torch.manual_seed(0)
        programs.forget()
        self.model = nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, fused=fused)
        self.other = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 10)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=interval)
        settings: Any = {"level": self.level, "sample_every": sample_every, "op_census": "window"}
        self.watch = ampwatch.monitor(self.model, self.scaler, serve=False, **settings)
        self.seen: list[Any] = []

    def loss(self, factor: float = 1.0) -> torch.Tensor:
        return self.model(torch.ones(2, 4)).float().square().mean() * factor

    def backward(self, factor: float = 1.0) -> None:
        self.scaler.scale(self.loss(factor)).backward()

    def step(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()

    # Ways to take a step.

    def quiet(self) -> None:
        self.backward()
        self.step()

    def scheduled(self) -> None:
        self.quiet()
        self.scheduler.step()

    def of_two_losses(self) -> None:
        self.backward()
        self.quiet()

    def without_a_loss(self) -> None:
        self.loss().backward()
        self.step()

    def of_a_list(self) -> None:
        (loss,) = self.scaler.scale([self.loss()])
        loss.backward()
        self.step()

    def of_another_dtype(self) -> None:
        self.scaler.scale(self.loss().double()).backward()
        self.step()

    def overflowing(self) -> None:
        self.backward()
        self.model.weight.grad.fill_(float("inf"))  # type: ignore[union-attr] # made by backward
        self.step()

    def nonfinite(self) -> None:
        self.backward(float("nan"))
        self.step()

    def huge(self) -> None:
        self.backward(1e12)
        self.step()

    def clipped(self) -> None:
        self.backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.step()

    def clipped_overflow(self) -> None:
        """Clipping by an infinite norm makes NaN and zeros of what was measured before."""
        self.backward()
        self.model.weight.grad[0, 0] = float("inf")  # type: ignore[index] # made by backward
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.step()

    def by_hand(self) -> None:
        self.backward()
        self.scaler.step(self.optimizer)
        self.scaler.update(512.0)

    def by_another(self) -> None:
        self.backward()
        self.scaler.step(self.other)
        self.scaler.update()

    def of_both(self) -> None:
        self.backward()
        self.scaler.step(self.optimizer)
        self.scaler.step(self.other)
        self.scaler.update()

    def past_the_scaler(self) -> None:
        self.quiet()
        self.optimizer.step()

    def accumulated(self) -> None:
        self.backward()

    def not_updated(self) -> None:
        self.backward()
        self.scaler.unscale_(self.optimizer)

    def interrupted(self) -> None:
        def raising() -> float:
            raise ValueError

        self.backward()
        with suppress(ValueError):
            self.scaler.step(self.optimizer, closure=raising)
        self.scaler.update()

    def loaded(self) -> None:
        self.quiet()
        self.scaler.load_state_dict(self.scaler.state_dict())

    def set_anew(self) -> None:
        self.quiet()
        self.scaler.set_growth_factor(4.0)

    def asked(self) -> None:
        self.quiet()
        self.watch.box()

    def restarted(self) -> None:
        """The step of an optimizer that raises is begun again."""
        self.backward()
        handle = self.optimizer.register_step_pre_hook(_raise)
        with suppress(RuntimeError):
            self.scaler.step(self.optimizer)
        handle.remove()
        self.scaler.update()

    def take(self, *names: str) -> None:
        for name in names:
            try:
                getattr(self, name)()
            except (RuntimeError, AssertionError) as error:  # of a scaler that is used wrongly
                self.seen.append(str(error))
            self.optimizer.zero_grad()
            wanted = self.watch._session._context.governor.wanted
            self.seen.append((self.watch.last_step, sorted(map(str, wanted))))

    def said(self) -> tuple[Any, ...]:
        """Return all that is said of it, but times."""
        box = self.watch.box()
        steps = [tuple(getattr(step, name) for name in COMPARED) for step in box.steps]
        findings = [(f.key, f.count, f.first_step, f.last_step, f.summary) for f in box.findings]
        known = self.watch.metrics().items()
        numbers = [(k, v) for k, v in known if not k.endswith(("_seconds", "_bytes"))]
        self.watch.close()
        return repr(steps), box.optimizers, findings, repr(self.seen), repr(numbers)


def _raise(*_args: object) -> None:
    msg = "once"
    raise RuntimeError(msg)


WAYS = [name for name, way in vars(Program).items() if callable(way) and "__" not in name][3:-2]


def _said_without(play: Callable[[], tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> Any:
    with monkeypatch.context() as patch:
        patch.setattr(QuietSteps, "may_be", lambda _clock: False)
        return play()


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_whatever_is_done_once_is_told_as_ever(
    way: str, monkeypatch: pytest.MonkeyPatch, *, fused: bool
) -> None:
    """And so are the plain iterations before and after it."""

    def play() -> tuple[Any, ...]:
        program = Program(fused=fused)
        for step in range(24):
            program.take(way if step in {12, 18, 19} else "quiet")
        return program.said()

    assert play() == _said_without(play, monkeypatch)


def test_a_skip_between_two_samples_is_measured_before_it_is_clipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once, and of its own iteration."""

    def play() -> tuple[Any, ...]:
        program = Program(sample_every=100)
        program.take(*["clipped"] * 60)
        quiet = program.watch._session._ledger._quiet
        is_in_c.append(quiet is not None and quiet.is_on)
        program.take("clipped_overflow", *["clipped"] * 3)
        return program.said()

    is_in_c: list[bool] = []
    assert play() == _said_without(play, monkeypatch)
    assert is_in_c == [True, False]


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_done_in_whatever_order_is_told_as_ever(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def play() -> tuple[Any, ...]:
        chance = random.Random(seed)
        program = Program(interval=7)
        common = chance.choice(WAYS)
        for _ in range(80):
            program.take(chance.choice(WAYS) if chance.random() < 0.2 else common)
        return program.said()

    assert play() == _said_without(play, monkeypatch)


def _steps_of(watch: Any) -> Any:
    return watch._session._ledger._quiet


def test_quiet_iterations_are_taken_down_in_c() -> None:
    program = Program()
    taken = []
    for _ in range(20):
        program.take("quiet")
        taken.append(_steps_of(program.watch).is_on)

    assert taken.count(True) >= 8
    assert [step.step for step in program.watch.box().steps] == list(range(20))
    program.watch.close()
    assert not _steps_of(program.watch).is_on


def test_a_way_that_is_taken_each_time_is_taken_down_in_c_too() -> None:
    for way in ("of_two_losses", "scheduled", "clipped", "of_another_dtype"):
        program = Program()
        for _ in range(22):
            program.take(way)
        assert _steps_of(program.watch).is_on, way
        program.watch.close()


def test_a_schedule_that_moves_after_a_while_is_seen_in_its_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By its count, although the rate is the very object that it was."""
    moved: list[int] = []
    detect = StepBookkeeping.detect

    def spy(self: StepBookkeeping, iteration: Any, verdict: Any) -> None:
        if iteration.scheduler_stepped:
            moved.append(iteration.step)
        detect(self, iteration, verdict)

    monkeypatch.setattr(StepBookkeeping, "detect", spy)
    program = Program()
    program.scheduler = torch.optim.lr_scheduler.ConstantLR(program.optimizer, 1.0)
    rate = program.optimizer.param_groups[0]["lr"]
    for step in range(40):
        if step == 20:
            program.scheduler.last_epoch += 1
        program.quiet()
    program.watch.close()

    assert program.optimizer.param_groups[0]["lr"] is rate
    assert moved == [20]


def test_nothing_of_the_program_is_held() -> None:
    """An optimizer that the program lets go of is gone, with iterations taken down before."""
    program = Program()
    program.take(*12 * ["quiet"])
    assert _steps_of(program.watch).is_on
    gone = weakref.ref(program.optimizer)
    program.optimizer = program.other
    del program.scheduler
    program.scaler._per_optimizer_states.clear()
    gc.collect()

    assert gone() is None
    program.take("quiet")
    program.watch.close()


def test_references_are_counted() -> None:
    """What is read in each step belongs to the program, as many times as before."""
    program = Program()
    program.take(*8 * ["quiet"])
    kept = [
        program.scaler,
        program.optimizer,
        program.scaler._scale,
        program.scaler._growth_tracker,
    ]
    kept += [torch.float32, torch.Tensor, program.watch._session.bus]
    before = [sys.getrefcount(one) for one in kept]
    for _ in range(400):
        program.quiet()
    after = [sys.getrefcount(one) for one in kept]

    assert all(abs(b - a) < 100 for a, b in zip(before, after, strict=True)), (before, after)
    program.watch.close()


def test_what_a_sensor_of_schedulers_raises_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program does not see it, and the iterations are told as ever."""
    program = Program()
    program.take(*12 * ["quiet"])
    monkeypatch.setattr(program.optimizer, "param_groups", None)
    program.scaler.scale(program.loss()).backward()
    with pytest.raises(TypeError):  # PyTorch's own
        program.scaler.step(program.optimizer)
    monkeypatch.undo()
    program.take(*4 * ["quiet"])

    assert program.watch.last_step.step == 15
    assert "schedulers" in program.watch.report()
    program.watch.close()


def test_a_callback_between_two_iterations_is_called_after_each() -> None:
    program = Program()
    closed: list[int] = []
    program.watch._session.bus.call_at_boundary(closed.append)
    program.take(*22 * ["quiet"])

    assert closed == list(range(22))
    assert _steps_of(program.watch).is_on
    program.watch.close()


def test_what_a_handler_of_a_signal_raises_is_the_programs() -> None:
    """A time limit may end anywhere, also where a step is taken down."""

    class LimitError(TimeoutError):
        pass

    def end(*_: object) -> None:
        raise LimitError

    class Groups(list[Any]):
        def __iter__(self) -> Any:
            signal.raise_signal(signal.SIGUSR1)
            return super().__iter__()

    program = Program()
    program.take(*12 * ["quiet"])
    assert _steps_of(program.watch).is_on
    program.backward()
    groups, before = program.optimizer.param_groups, signal.signal(signal.SIGUSR1, end)
    program.optimizer.param_groups = Groups(groups)
    try:
        with pytest.raises(LimitError):
            program.scaler.step(program.optimizer)
    finally:
        signal.signal(signal.SIGUSR1, before)
        program.optimizer.param_groups = groups
    program.take(*4 * ["quiet"])

    assert program.watch.last_step.step == 15
    assert "switched off" not in program.watch.report()
    program.watch.close()


def test_a_full_stack_is_the_programs() -> None:
    """It ends where it would have ended, and what is watched is watched on."""
    program = Program()
    program.take(*12 * ["quiet"])
    assert _steps_of(program.watch).is_on

    with pytest.raises(RecursionError):
        _fill(program)
    program.optimizer.zero_grad()
    program.take(*4 * ["quiet"])

    assert program.watch.last_step.step == 15
    program.watch.close()


def _fill(program: Program) -> None:
    """Take a step at each depth of the stack, until there is no room for PyTorch itself."""
    program.scaler.scale(program.loss())
    _fill(program)


class Mode(TorchFunctionMode):
    """A mode of the program in which something is done once when a scalar is read.

    Args:
        of: The tensor that is read.
        does: What is done.
    """

    def __init__(self, of: torch.Tensor, does: Callable[[], object]) -> None:
        super().__init__()
        self._of = of
        self._does: Callable[[], object] | None = does

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Do it."""
        if function is torch.Tensor.data_ptr and args[0] is self._of and self._does is not None:
            does, self._does = self._does, None
            does()
        return function(*args, **(kwargs or {}))


def _on(num: int = 12) -> Program:
    program = Program()
    for _ in range(num):
        program.take("quiet")
    assert _steps_of(program.watch).is_on
    return program


def _wait_to_be_judged(program: Program) -> int:
    """Take steps until one waits, and return how many: on a busy machine some are judged at once."""
    taken = 0
    while not _steps_of(program.watch).num_ended:
        program.quiet()
        taken += 1
    return taken


def test_a_monitor_may_be_closed_while_a_step_is_taken_down() -> None:
    """With another scaler at work as well: the form is gone by until all are done with it."""
    program, another = _on(), torch.amp.GradScaler("cpu")

    def close() -> None:
        another.scale(torch.ones(()))
        program.watch.close()

    program.backward()
    program.scaler.step(program.optimizer)
    with Mode(program.scaler._scale, close):
        program.scaler.update()
    program.quiet()

    assert not _steps_of(program.watch).is_on


def test_a_verdict_that_was_replaced_is_not_held() -> None:
    """Between the step and the update, by one that is no ordinary tensor."""
    program = _on()
    program.backward()
    program.scaler.step(program.optimizer)
    (state,) = program.scaler._per_optimizer_states.values()
    ((device, verdict),) = state["found_inf_per_device"].items()
    gone = weakref.ref(verdict)
    state["found_inf_per_device"][device] = nn.Parameter(verdict.clone(), requires_grad=False)
    del verdict
    program.scaler.update()
    gc.collect()

    assert gone() is None
    program.watch.close()


def test_a_verdict_is_read_while_it_is_there() -> None:
    """A mode that is in use has another update come first, which drops it."""
    program = _on()
    program.backward()
    program.scaler.step(program.optimizer)
    (state,) = program.scaler._per_optimizer_states.values()
    found = state["found_inf_per_device"]
    (verdict,) = found.values()
    gone = weakref.ref(verdict)

    def update() -> None:
        program.scaler.update()
        found.clear()
        vars(mode)["_of"] = None

    mode = Mode(verdict, update)
    del state, verdict
    with mode, pytest.raises(AssertionError, match="No inf checks"):
        program.scaler.update()
    gc.collect()

    assert gone() is None
    program.watch.close()


def test_what_is_being_taken_down_when_the_ledger_takes_over_is_told_to_it() -> None:
    """An optimizer of somebody else steps while ours is looked at."""
    program, other = _on(), nn.Linear(2, 2)
    stranger = torch.optim.SGD(other.parameters(), lr=0.1)

    class Group(dict[str, Any]):
        steps = True

        def get(self, *args: Any) -> Any:
            if self.steps:
                self.steps = False
                stranger.step()
            return super().get(*args)

    program.optimizer.param_groups[0] = Group(program.optimizer.param_groups[0])
    program.take("quiet")
    box = program.watch.box()

    assert not program.optimizer.param_groups[0].steps  # type: ignore[attr-defined] # a Group
    assert (box.steps[-1].step, box.optimizers[0].total_steps) == (12, 13)
    program.watch.close()


def test_an_interrupt_while_an_error_is_looked_at_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(_error: BaseException) -> bool:
        raise KeyboardInterrupt

    def refuse() -> None:
        raise ValueError

    monkeypatch.setattr(quiet, "is_of_a_signal", asked)
    program = _on()
    program.backward()
    program.scaler.step(program.optimizer)
    with Mode(program.scaler._scale, refuse), pytest.raises(KeyboardInterrupt):
        program.scaler.update()
    program.watch.close()


def test_an_interrupt_while_iterations_are_made_loses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    made = quiet.Iteration

    def interrupted(*_args: Any, **_kwargs: Any) -> Any:
        monkeypatch.setattr(quiet, "Iteration", made)
        raise KeyboardInterrupt

    program = _on()
    steps = 12 + _wait_to_be_judged(program)
    monkeypatch.setattr(quiet, "Iteration", interrupted)
    with pytest.raises(KeyboardInterrupt):
        program.watch.box()

    assert [step.step for step in program.watch.box().steps] == list(range(steps))
    program.watch.close()


def test_a_ledger_that_has_failed_takes_nothing_down(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object) -> None:
        raise ValueError

    program = _on()
    ledger = program.watch._session._ledger
    _wait_to_be_judged(program)
    monkeypatch.setattr(ledger, "_tell_times", fail)
    program.watch.box()
    for _ in range(4):
        program.quiet()

    assert ledger.guard.off
    assert not _steps_of(program.watch).is_on
    assert program.watch.last_step.skipped is None
    program.watch.close()


def test_a_scale_that_has_moved_to_other_memory_is_read_there() -> None:
    """`.data` may be set: what counts is where it lies now."""
    program = _on()
    scale = program.scaler._scale
    scale.data = scale.data.reshape(1)
    program.take("quiet")
    scale.data = torch.tensor(2.0**12)
    program.scaler.scale(program.loss()).backward()
    program.step()

    assert program.watch.last_step.loss_scale == 2.0**12
    program.watch.close()
