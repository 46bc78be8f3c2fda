"""``monitor`` as a user sees it: steps, skips, losses, findings, report."""

from __future__ import annotations

import contextlib
import errno
import gc
import logging
import math
import re
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo.testing
from torch import nn

import ampwatch
from ampwatch.integrations.attached import Callback
from ampwatch.training import announcement, outlet
from ampwatch.training import monitor as watching
from ampwatch.training.iteration.ledger import IterationLedger
from ampwatch.training.launcher import DaemonStatus
from ampwatch.training.session import Session
from ampwatch.wire.records import (
    EndRecord,
    FactsRecord,
    FindingRecord,
    OptimizerRecord,
    RunState,
    StepRecord,
)
from ampwatch.wire.ring import RingReader
from tests.promises.conftest import ahead, serving
from tests.trainings import Net, Run, adamw, build, scaler
from tests.workshop.nursery import Nursery

pytestmark = ahead
__all__ = ["serving"]


def _totals(watch: ampwatch.Monitor) -> Any:
    return watch._diagnosis.totals


def test_the_scheduler_recipe_keeps_schedule_and_updates_together() -> None:
    """``if not watch.last_step.skipped: scheduler.step()`` needs no sync and is exact."""
    model = Net()
    optimizer = adamw(model)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 50)
    run = Run([model], [optimizer], scaler(init_scale=2.0**28))
    with ampwatch.monitor(model, run.scaler, serve=False) as watch:
        run.after_step = lambda _: None if watch.last_step.skipped else scheduler.step()
        run.loop()
    applied = _totals(watch).steps[0] - sum(_totals(watch).skipped[0])

    assert 0 < applied < run.steps
    assert scheduler.last_epoch == applied
    assert watch.findings == []


@pytest.mark.parametrize(
    ("given", "is_scaled"),
    [
        (lambda _: scaler(), True),
        (lambda _: torch.amp.GradScaler("cpu", enabled=False), False),
        (lambda engine: ampwatch.LossScaler(lambda: 1024.0, ends=(engine, "step")), True),
        (lambda engine: ampwatch.LossScaler(None, ends=(engine, "step")), False),
        (lambda _: None, False),
    ],
    ids=["enabled", "disabled", "described", "described without a scale", "none"],
)
def test_a_monitor_says_whether_the_loss_is_scaled(given: Any, *, is_scaled: bool) -> None:
    """By torch's scaler, or one that is described by its calls."""
    model = Net()
    optimizer = adamw(model)
    with ampwatch.monitor(model, given(optimizer), optimizer=optimizer, serve=False) as watch:
        assert watch.is_scaled is is_scaled


def test_before_the_first_step_there_is_no_last_step() -> None:
    """``step`` is -1 and the loss scale is the initial one."""
    with ampwatch.monitor(None, scaler(init_scale=8.0), serve=False) as watch:
        assert watch.last_step == ampwatch.LastStep(step=-1, loss_scale=8.0)


def test_a_training_that_goes_on_is_counted_as_its_program_counts() -> None:
    """From its checkpoint's step on, be it recorded in C or not; whoever looks too early gets the step before."""
    model, first = nn.Linear(4, 1), 1000
    optimizer, scaler_ = torch.optim.SGD(model.parameters(), lr=1e-3), scaler(init_scale=16.0)
    with ampwatch.monitor(model, scaler_, step=first, level="light", serve=False) as watch:
        assert watch.last_step.step in {-1, first - 1}
        for step in range(first, first + 150):
            loss = model(torch.ones(1, 4)).sum() * (math.inf if step >= first + 140 else 1.0)
            scaler_.scale(loss).backward()
            scaler_.step(optimizer)
            scaler_.update()
            optimizer.zero_grad()
            assert watch.last_step.step == step
        steps = [record.step for record in watch.box().steps]
        found = {finding.kind: finding for finding in watch.findings}

    assert steps == list(range(first, first + 150))[-len(steps) :]
    assert len(steps) > 100
    assert found["scale_collapse"].first_step == first + 140
    # At `light` no gradient is measured, so that nothing is said of any.
    assert "gradient" not in found["scale_runaway"].summary


@pytest.mark.parametrize("step", [-1, 2.5, "3", True])
def test_a_first_step_that_is_no_count_is_refused(step: Any) -> None:
    with pytest.raises(ampwatch.SettingsError, match="`step`: expected a whole number"):
        ampwatch.monitor(None, scaler(), step=step, serve=False)


def test_two_optimizers_are_told_apart() -> None:
    """One of them overflows and is skipped, the other one steps."""
    models = [nn.Linear(2, 1), nn.Linear(2, 1)]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in models]
    scaler_ = scaler(init_scale=16.0)
    with ampwatch.monitor(models, scaler_, serve=False) as watch:
        for step in range(6):
            losses = [m(torch.ones(1, 2)).sum() for m in models]
            if step % 2:
                losses[1] = losses[1] * math.inf
            scaler_.scale(losses[0] + losses[1]).backward()
            for optimizer in optimizers:
                scaler_.step(optimizer)
            scaler_.update()
            for optimizer in optimizers:
                optimizer.zero_grad()
            expected = (1,) if step % 2 else ()
            assert watch.last_step.skipped_optimizers == expected
    totals = _totals(watch)

    assert totals.steps == {0: 6, 1: 6}
    assert (sum(totals.skipped[0]), sum(totals.skipped[1])) == (0, 3)


@pytest.mark.parametrize("recipe", ["bf16-without-scaler", "bf16-disabled-scaler", "fp32"])
def test_without_an_enabled_scaler_every_step_counts(recipe: str) -> None:
    """No scale, no skips, but steps and heartbeat."""
    run = build(recipe)
    with ampwatch.monitor(run.models, run.scaler, serve=False) as watch:
        run.loop()

    assert watch.last_step.step == run.steps - 1
    assert math.isnan(watch.last_step.loss_scale)
    assert _totals(watch).steps == {0: run.steps}
    assert watch.findings == []


def test_two_optimizers_without_a_scaler_are_one_iteration() -> None:
    """The first one leads; the other one's steps are counted beside it."""
    models = [nn.Linear(2, 1), nn.Linear(2, 1)]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in models]
    with ampwatch.monitor(models, serve=False) as watch:
        for _ in range(5):
            sum(m(torch.ones(1, 2)).sum() for m in models).backward()
            for optimizer in optimizers:
                optimizer.step()

    assert watch.last_step.step == 4
    assert _totals(watch).steps == {0: 5, 1: 4}  # the last one's iteration has not ended


def test_a_step_past_the_scaler_is_counted_as_applied() -> None:
    """An optimizer that steps by itself beside a scaled one is not lost."""
    models = [nn.Linear(2, 1), nn.Linear(2, 1)]
    scaled, plain = (torch.optim.SGD(m.parameters(), lr=0.1) for m in models)
    scaler_ = scaler(init_scale=16.0)
    with ampwatch.monitor(models, scaler_, optimizer=[scaled, plain], serve=False) as watch:
        for _ in range(5):
            models[1](torch.ones(1, 2)).sum().backward()
            plain.step()
            scaler_.scale(models[0](torch.ones(1, 2)).sum()).backward()
            scaler_.step(scaled)
            scaler_.update()

    assert watch.last_step.step == 4
    assert _totals(watch).steps == {0: 5, 1: 5}


def test_a_scaler_that_is_never_updated_is_said_to_be_so() -> None:
    """Nothing to report is not the same as nothing seen."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ampwatch.monitor(model, scaler(), serve=False) as watch:
        for _ in range(5):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    report = watch.report()

    assert "no step has been seen: neither scaler.update()" in report


def test_a_step_within_a_step_is_counted_once() -> None:
    """``super().step()`` of a subclass, and the optimizer inside a wrapper."""

    class Own(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    class Lookahead(torch.optim.Optimizer):
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            super().__init__(inner.param_groups, {})
            self.inner = inner

        def step(self, closure: Any = None) -> Any:
            return self.inner.step(closure)

    torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)  # both classes are hooked now
    for make in (lambda p: Own(p, lr=0.1), lambda p: Lookahead(torch.optim.SGD(p, lr=0.1))):
        for scaler_ in (None, scaler(init_scale=16.0)):
            model = nn.Linear(2, 1)
            run = Run([model], [make(model.parameters())], scaler_)
            run.forward = lambda *_: run.models[0](torch.ones(1, 2)).sum()  # type: ignore[method-assign] # noqa: B023
            with ampwatch.monitor(model, scaler_, serve=False) as watch:
                run.loop()

            assert watch.last_step.step == run.steps - 1
            assert _totals(watch).steps == {0: run.steps}


@pytest.mark.rotating
def test_a_scale_held_up_by_hand_does_not_hide_a_run_that_never_steps() -> None:
    """``if scaler.get_scale() < 128: scaler.update(128.0)`` is no iteration and no calibration."""
    model = Net()
    run = Run([model], [adamw(model)], scaler(init_scale=256.0), steps=30)
    run.poison = tuple(range(30))

    def hold_up(_step: int) -> None:
        if run.scaler.get_scale() < 128.0:
            run.scaler.update(128.0)

    run.after_step = hold_up
    with ampwatch.monitor(model, run.scaler, serve=False) as watch:
        run.loop()
        last = watch.last_step

    assert (last.step, last.skipped) == (29, True)
    assert _totals(watch).steps == {0: 30}
    assert _totals(watch).set_by_hand > 10
    assert [f.kind for f in watch.findings] == ["scale_collapse"]


def test_a_sensor_that_is_off_does_not_leave_a_verdict_standing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``skipped`` is ``None`` when nobody knows, so the schedule goes on as without ampwatch."""
    run = build("fp16-foreach")
    with ampwatch.monitor(run.models, run.scaler, serve=False) as watch:
        run.after_step = lambda step: (
            step == 0
            and monkeypatch.setattr(  # type: ignore[func-returns-value]
                IterationLedger, "_close", None
            )
        )
        run.loop()

        assert watch.last_step.skipped is None


def test_a_resumed_scaler_that_overflows_at_once_backs_off_and_was_set_by_hand() -> None:
    """``load_state_dict`` after ``monitor()`` is a hand; the backoff is the scaler's own."""
    run = build("fp16-foreach")
    with ampwatch.monitor(run.models, run.scaler, serve=False) as watch:
        run.steps, run.poison = 2, ()
        run.loop()
        before = (_totals(watch).backoffs, _totals(watch).set_by_hand)
        run.scaler.load_state_dict({**run.scaler.state_dict(), "scale": 2.0**10})
        run.steps, run.poison = 1, (0,)
        run.loop()
        after = (_totals(watch).backoffs, _totals(watch).set_by_hand)

    assert (after[0] - before[0], after[1] - before[1]) == (1, 1)


def test_parameters_that_are_replaced_after_monitor_are_found() -> None:
    """Sharding replaces parameters; the optimizer that holds the new ones is ours."""
    model = nn.Linear(2, 1)
    with ampwatch.monitor(model, serve=False) as watch:
        model.weight = nn.Parameter(torch.zeros(1, 2))
        model.bias = nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    assert watch.last_step.step == 0


def test_an_error_or_an_interrupt_while_attaching_leaves_nothing_half_installed(
    serving: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while the daemon starts, and a scaler whose getters raise."""

    class Odd(torch.amp.GradScaler):
        def get_growth_interval(self) -> int:
            msg = "no interval"
            raise ValueError(msg)

    before = torch.amp.GradScaler.update
    with pytest.raises(ValueError, match="no interval"):
        ampwatch.monitor(None, Odd("cpu"))

    def interrupted(_settings: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(outlet, "ensure_daemon", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ampwatch.monitor(None, scaler())

    assert torch.amp.GradScaler.update is before
    assert list(serving.rglob("*.ring")) == []


@pytest.mark.parametrize("refusal", [MemoryError("no room"), OSError(24, "Too many open files")])
def test_a_machine_that_has_no_room_leaves_the_run_unwatched(
    refusal: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Said in one line. The recipes of the README go on: each step counts as taken."""

    def refuse(_self: object) -> None:
        raise refusal

    before = torch.amp.GradScaler.update
    monkeypatch.setattr(Session, "install", refuse)
    run = build("fp16-foreach")
    with ampwatch.monitor(run.models, run.scaler, serve=False) as watch:
        run.loop()

    (line,) = caplog.messages
    assert "this run is not watched, training is not affected" in line
    assert str(refusal) in line
    assert "raise the limit" in line
    assert torch.amp.GradScaler.update is before
    assert not watch.findings
    assert not watch.last_step.skipped


@pytest.mark.parametrize(
    ("error", "got"),
    [
        (MemoryError(), "MemoryError"),
        (
            OSError(errno.EMFILE, "Too many open files"),
            r"OSError: \[Errno 24\] Too many open files",
        ),
    ],
)
def test_no_room_for_the_parts_of_a_monitor_is_an_error_that_says_what_to_do(
    error: Exception, got: str, serving: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is placed: nothing is left behind, and the same call works later."""

    def refuse(*_arguments: object, **_more: object) -> None:
        raise error

    before = torch.amp.GradScaler.update
    run = build("fp16-foreach")
    with monkeypatch.context() as refusing:
        refusing.setattr(watching, "Session", refuse)
        with pytest.raises(ampwatch.StateError, match=rf"\({got}\); raise the limit"):
            ampwatch.monitor(run.models, run.scaler)
    left = list(serving.rglob("*"))

    assert torch.amp.GradScaler.update is before
    assert left == []
    with ampwatch.monitor(run.models, run.scaler, serve=False):
        assert torch.amp.GradScaler.update is not before


@pytest.mark.parametrize("level", ["light", "standard", "deep"])
def test_names_that_are_no_utf8_are_watched_and_printed_as_escapes(
    level: str, serving: Path
) -> None:
    """Of a module, and of the program's file: a lone surrogate can be neither written nor printed."""
    model = nn.Sequential(OrderedDict({"caf\udce9": nn.Linear(4, 2)}))
    model.register_buffer("t\udce9", torch.ones(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    program = """
with ampwatch.monitor(model, None, optimizer=optimizer, level=level) as watch:
    for step in range(3):
        loss = model(torch.full((2, 4), math.nan if step == 1 else 1.0)).sum()
        loss.backward()
        optimizer.step()
"""
    found = {**globals(), "model": model, "optimizer": optimizer, "level": level}
    exec(compile(program, "train\udce9.py", "exec"), found)
    watch = found["watch"]
    broken = set() if level == "light" else {"param:caf\\udce9.weight"}

    assert watch._outlet._ring.dropped == 0
    assert watch._not_seen() == []
    assert {f.where for f in watch.findings if f.kind == "param_nonfinite"} == broken
    for written in (watch.report("text"), watch.report("json"), watch.report("html")):
        assert written.encode()


def test_an_interrupt_while_closing_still_takes_everything_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C in the wait for the device."""

    def interrupted(_self: object) -> None:
        raise KeyboardInterrupt

    before = torch.amp.GradScaler.update
    run = build("fp16-foreach")
    watch = ampwatch.monitor(run.models, run.scaler, serve=False)
    monkeypatch.setattr(Session, "drain", interrupted)
    with pytest.raises(KeyboardInterrupt):
        watch.close()

    assert torch.amp.GradScaler.update is before


def test_attaching_looks_through_no_objects_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass takes as long as there are objects; the first step that a scaler may skip makes one."""
    passes = []
    for name in ("get_objects", "get_referrers"):
        look = getattr(gc, name)
        counted = lambda *of, look=look: passes.append(1) or look(*of)  # noqa: E731
        monkeypatch.setattr(gc, name, counted)
    run = build("fp16-foreach")
    with ampwatch.monitor(run.models, run.scaler, level="light", serve=False):
        attaching = len(passes)
        run.loop()

    assert attaching == 0
    assert 1 <= len(passes) <= 2


def test_level_off_attaches_nothing() -> None:
    """The switch for operators: ``AMPWATCH_LEVEL=off``."""
    before = torch.amp.GradScaler.update
    run = build("fp16-foreach")
    with ampwatch.monitor(run.models, run.scaler, level="off") as watch:
        during = torch.amp.GradScaler.update
        run.loop()

    assert during is before
    assert watch.last_step.step == -1


def test_a_ring_holds_the_facts_every_step_and_the_end(serving: Path) -> None:
    """What the daemon needs is in the ring: facts, steps, optimizers, findings, end."""
    run = build("fp16-scheduled")
    with ampwatch.monitor(run.models, run.scaler, run="demo"):
        (path,) = serving.rglob("*.ring")
        reader = RingReader(path)
        run.loop()
    records = reader.poll()
    steps = [r for r in records if isinstance(r, StepRecord)]
    reader.close()

    assert (reader.identity.run, reader.identity.rank) == ("demo", 0)
    assert [r.step for r in steps] == list(range(run.steps))
    assert [r.loss_scale for r in steps] == run.scales
    assert [r.loss for r in steps] == pytest.approx(run.losses)
    assert [r for r in records if isinstance(r, OptimizerRecord)][-1].total_steps == run.steps
    facts: dict[str, str] = {}
    for record in records:
        facts |= record.facts if isinstance(record, FactsRecord) else {}
    assert facts["autocast_dtype"] == "float16"
    assert [r.finding.kind for r in records if isinstance(r, FindingRecord)][
        -1
    ] == "scheduler_ahead"
    assert records[-1] == EndRecord(RunState.FINISHED, "", records[-1].time_ns)


def test_a_nonfinite_loss_is_counted(serving: Path) -> None:
    """Also the NaN that a log would have averaged away."""
    run = build("fp16-foreach")
    run.poison = (2, 5)
    with ampwatch.monitor(run.models, run.scaler):
        (path,) = serving.rglob("*.ring")
        reader = RingReader(path)
        run.loop()
    last = [r for r in reader.poll() if isinstance(r, StepRecord)][-1]
    reader.close()

    assert last.total_nonfinite_losses == 2


def test_an_exception_ends_the_run_as_failed_and_reaches_the_user(serving: Path) -> None:
    """The daemon learns why the loop ended; the exception is the user's own."""
    run = build("fp16-foreach")
    error = ValueError("the batch is empty")
    readers: list[RingReader] = []

    def fail(_step: int) -> None:
        readers.extend(RingReader(path) for path in serving.rglob("*.ring"))
        raise error

    run.after_step = fail

    def train() -> None:
        with ampwatch.monitor(run.models, run.scaler):
            run.loop()

    with pytest.raises(ValueError, match="the batch is empty") as caught:
        train()
    (reader,) = readers
    end = reader.poll()[-1]
    reader.close()

    assert caught.value is error
    assert isinstance(end, EndRecord)
    assert (end.state, end.reason) == (RunState.FAILED, "ValueError: the batch is empty")


@pytest.mark.parametrize(
    ("ending", "state"),
    [("", "finished"), ("raise ValueError('boom')", "failed"), ("raise SystemExit(0)", "finished")],
)
def test_a_program_that_just_ends_tells_how(
    ending: str, state: str, own_places: Path, nursery: Nursery
) -> None:
    """Without ``close()`` and without ``with``: the end of the program is the end of the run."""
    program = f"""
import torch, ampwatch, ampwatch.training.outlet as outlet
from ampwatch.training.launcher import DaemonStatus
outlet.ensure_daemon = lambda settings: DaemonStatus("", "unavailable")
outlet.daemon_is_running = lambda settings: True
ampwatch.monitor(torch.nn.Linear(1, 1), run="ends")
{ending}
"""
    nursery.start(program).wait()
    (path,) = (own_places / "rings").rglob("*.ring")
    reader = RingReader(path)
    end = reader.poll()[-1]
    reader.close()

    assert isinstance(end, EndRecord)
    assert end.state.value == state


@pytest.mark.parametrize(
    ("begin", "close", "kept"), [(True, False, True), (False, True, True), (False, False, False)]
)
def test_the_ring_of_a_run_that_ends_while_its_daemon_is_gone_is_left_for_the_next_one(
    own_places: Path, monkeypatch: pytest.MonkeyPatch, *, begin: bool, close: bool, kept: bool
) -> None:
    """Where there never was one nobody would read it, nor remove it."""
    is_running = iter((begin, close))
    monkeypatch.setattr(outlet, "ensure_daemon", lambda _: DaemonStatus("", "running"))
    monkeypatch.setattr(outlet, "daemon_is_running", lambda _: next(is_running))

    ampwatch.monitor(nn.Linear(1, 1)).close()

    assert len(list((own_places / "rings").rglob("*.ring"))) == kept


@pytest.mark.parametrize(("rank", "times"), [("0", 1), ("1", 0)])
def test_of_the_ranks_of_a_machine_the_first_tells_the_address(
    rank: str, times: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line for all of them."""
    for name, value in {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(announcement, "_announced", set())
    url = "http://127.0.0.1:1/"
    monkeypatch.setattr(outlet, "ensure_daemon", lambda _: DaemonStatus(url, "running"))
    ampwatch.monitor(nn.Linear(1, 1), run="gpt").close()

    assert capsys.readouterr().err.count(f"watching run gpt: {url}") == times


def test_trouble_with_the_ring_is_a_warning_and_training_goes_on(
    own_places: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No place for the ring: findings only, and the user is told."""
    (own_places / "file").write_text("")
    monkeypatch.setenv("AMPWATCH_RING_DIR", str(own_places / "file"))
    run = build("fp16-foreach")
    with caplog.at_level(logging.WARNING), ampwatch.monitor(run.models, run.scaler) as watch:
        run.loop()

    assert "no ring: findings only" in caplog.text
    assert watch.last_step.step == run.steps - 1


@pytest.mark.parametrize(
    "given", ["no", "False", "", b"0", None, 2, 0.5, [], [False], np.array([True, False])]
)
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("serve", lambda _, given: ampwatch.monitor(Net(), serve=given)),
        ("serve", lambda _, given: Callback(serve=given)),
        ("by_module", lambda watch, given: watch.log_to(print, by_module=given)),
    ],
    ids=["monitor", "callback", "log_to"],
)
def test_a_yes_or_no_is_not_guessed(name: str, call: Any, given: object) -> None:
    """``"no"`` would count as a yes, and ``None`` as a no; 0 and NumPy's are as clear as the words."""
    model: Any = Net()
    with ampwatch.monitor(model, None, serve=0, level="light") as watch:  # type: ignore[arg-type]
        watch.log_to(print, by_module=np.bool_(0))
        words = re.escape(f"`{name}`: expected True or False, got {given!r}")
        with pytest.raises(ampwatch.SettingsError, match=words):
            call(watch, given)

        assert (watch.url, watch.closed) == ("", False)


@pytest.mark.parametrize(("ranks", "times"), [("01", 1), ("10", 1), ("", 2)])
def test_a_variable_that_is_no_setting_is_warned_of_by_one_process_of_a_run(
    ranks: str, times: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, however often it watches; processes that are no ranks of one run are on their own."""
    monkeypatch.setenv("AMPWATCH_LEVLE", "off")
    models = [Net() for _ in range(4)]
    with contextlib.ExitStack() as stack:
        for number, rank in enumerate(ranks or "--"):
            monkeypatch.setattr(outlet, "_warned", set())  # another process
            if ranks:
                monkeypatch.setenv("RANK", rank)
                monkeypatch.setenv("WORLD_SIZE", "2")
            for model in models[2 * number : 2 * number + 2]:
                stack.enter_context(ampwatch.monitor(model, serve=False))

    assert [r.getMessage() for r in caplog.records if "AMPWATCH_" in r.getMessage()] == [
        "expected settings in AMPWATCH_* variables, got AMPWATCH_LEVLE; did you mean 'AMPWATCH_LEVEL'?"
    ] * times


def test_the_loss_of_an_unscaled_run_is_seen_through_a_disabled_scaler() -> None:
    """A disabled scaler passes the loss through, and shows it."""
    run = build("bf16-disabled-scaler")
    seen = []
    with ampwatch.monitor(run.models, run.scaler, serve=False) as watch:
        deliver = watch._diagnosis.deliver
        watch._diagnosis.deliver = lambda *its: (seen.extend([i.loss for i in its]), deliver(*its))
        run.loop()

    assert seen == pytest.approx(run.losses)


@pytest.fixture
def swapping() -> Iterator[None]:
    """Let ``Module.to`` swap parameters in place."""
    torch.__future__.set_swap_module_params_on_conversion(value=True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(value=False)


@pytest.mark.usefixtures("swapping")
@pytest.mark.parametrize("recipe", ["fp16-scheduled", "bf16-without-scaler"])
@pytest.mark.parametrize(
    "level",
    [
        pytest.param("light", marks=pytest.mark.rotating),
        pytest.param("standard", marks=pytest.mark.rotating),
        "deep",
    ],
)
def test_parameters_may_be_swapped_at_any_time(level: str, recipe: str) -> None:
    """PyTorch refuses to swap what anybody refers to weakly; ampwatch lets go of it in time."""
    digests = []
    for watched in (False, True):
        torch.manual_seed(0)
        run = build(recipe)

        def convert(_step: int, run: Run = run) -> None:
            for model in run.models:
                model.double().float()

        run.after_step = convert
        settings: dict[str, Any] = {"optimizer": run.optimizers, "level": level, "serve": False}
        watch = ampwatch.monitor(run.models, run.scaler, **settings) if watched else None
        convert(0)
        run.loop()
        digests.append(run.digest())
        if watch is not None:
            watch.close()
            assert watch.last_step.step == run.steps - 1
            assert "switched off" not in watch.report()

    assert digests[1] == digests[0]


@pytest.mark.parametrize("level", ["light", "standard", "deep"])
def test_what_set_up_takes_is_not_counted_as_the_cost_of_steps(level: str) -> None:
    """On a GPU it compiles for seconds, which would be a share of the first thousand steps."""
    model = nn.Linear(2, 2)
    with ampwatch.monitor(model, torch.amp.GradScaler("cpu"), level=level, serve=False) as watch:
        assert watch._session.cost().overhead_ns == 0
        model(torch.ones(1, 2))
