"""``watch.log_to`` in real trainings: numbers and findings, and loggers that fail in every way."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import ampwatch
from ampwatch.guard import Guard
from ampwatch.training.loggers import logging_action
from ampwatch.training.loggers.logging_action import LoggingAction, Source
from tests.training.loggers.fakes import WandbRun, Writer
from tests.trainings import Net, Run, adamw, build, scaler
from tests.workshop.records import identity

COLLAPSING = tuple(range(8, 20))
"""Iterations in which the loss is infinite: after five of them the scale is collapsing."""


@pytest.fixture(autouse=True)
def comparable(one_thread: None) -> None:
    """Runs are compared bit for bit."""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end waits for a logger as long as that takes on a busy machine."""
    defaults: Any = LoggingAction.__init__.__kwdefaults__
    monkeypatch.setitem(defaults, "close_seconds", 60.0)


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    yield
    assert [t.name for t in threading.enumerate() if t.name.startswith("ampwatch")] == []


def collapsing() -> Run:
    torch.manual_seed(0)
    model = Net()
    made = scaler(init_scale=1024.0, growth_interval=1000)
    return Run([model], [adamw(model)], made, steps=20, poison=COLLAPSING)


class Numbers:
    """Numbers of iterations that arrive one after the other."""

    def __init__(self) -> None:
        self.step = -1

    def metrics(self) -> dict[str, float]:
        return {} if self.step < 0 else {"amp/step": float(self.step)}


def action(given: object, numbers: Numbers, **options: Any) -> LoggingAction:
    source = Source(numbers.metrics, numbers.metrics, list, str)
    made = LoggingAction(given, 1, source, Guard("log_to"), clock=lambda: 5.0, **options)
    made.open(identity())
    return made


def settle(made: LoggingAction, numbers: Numbers, steps: range) -> None:
    for step in steps:
        numbers.step = step
        made.settle(step)


class Stuck:
    """A function that hangs until it is let go."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.called = threading.Event()
        self.may_go = threading.Event()

    def __call__(self, numbers: dict[str, float], step: int) -> None:
        self.called.set()
        self.may_go.wait(60)
        self.steps.append(step)


def test_points_come_as_often_as_asked_and_once_more_at_the_end() -> None:
    """Each with the numbers of the step it names, from a thread that is not the training's."""
    got: list[tuple[int, dict[str, float], str]] = []
    run = build("fp16-foreach")
    with ampwatch.monitor(run.models, run.scaler, serve=False) as watch:
        watch.log_to(lambda n, s: got.append((s, n, threading.current_thread().name)), every=5)
        run.loop()

    assert [step for step, _, _ in got] == [4, 9, 11]
    assert [n["amp/step"] for _, n, _ in got] == [4.0, 9.0, 11.0]
    assert [n["amp/loss_scale"] for _, n, _ in got] == [run.scales[step] for step in (4, 9, 11)]
    assert {name for _, _, name in got} == {"ampwatch-log-to"}
    kept = ("amp/loss_scale", "amp/skipped_steps", "amp/loss")
    assert {k: got[-1][1][k] for k in kept} == {k: watch.summary()[k] for k in kept}


def test_findings_and_what_becomes_of_them_go_along() -> None:
    """What the log has a line about: when it is made, and when it has become worse."""
    writer, wandb_run = Writer(), WandbRun()
    run = collapsing()
    with ampwatch.monitor(run.models, run.scaler, serve=False, run="gpt") as watch:
        watch.log_to(writer)
        watch.log_to(wandb_run)
        run.loop()

    texts = [text for tag, text, _ in writer.texts if tag == "amp/findings"]
    assert ["WARNING run gpt step 12: scale_collapse" in text for text in texts] == [True, False]
    assert "CRITICAL run gpt" in texts[1]
    assert "escalated from warning" in texts[1]
    assert watch.findings[-1].advice in texts[1]
    assert [level for _, _, level in wandb_run.alerts] == ["WARN", "ERROR"]
    assert wandb_run.alerts[1][0] == "ampwatch critical: scale_collapse"


def test_exponents_are_those_without_the_loss_scale_of_all_and_of_each_module() -> None:
    """All elements lie between the smallest and the largest gradient as they truly are; modules add up to all."""
    plain, writer, run = Writer(), Writer(), build("fp16-foreach")
    run.poison = ()
    with ampwatch.monitor(run.models, run.scaler, level="deep", serve=False) as watch:
        watch.log_to(plain, every=1)
        watch.log_to(writer, every=1, by_module=True)
        run.loop()

    newest = watch.metrics()
    histogram = next(h for h in plain.histograms if h["global_step"] == newest["amp/sample_step"])
    largest = math.log2(newest["amp/scaled_grad_amax"] / run.scales[-2])
    assert histogram["max"] - 1 < largest <= histogram["max"]
    steps = [h["global_step"] for h in plain.histograms]
    assert steps == sorted(set(steps)), "each measurement once"
    assert {h["tag"] for h in plain.histograms} == {"amp/gradient_exponents"}
    modules = {name.rpartition(".")[0] for name, _ in run.models[0].named_parameters()}
    by_step: dict[int, dict[str, int]] = {}
    for histogram in writer.histograms:
        of_step = by_step.setdefault(histogram["global_step"], {})
        assert histogram["tag"] not in of_step
        of_step[histogram["tag"]] = histogram["num"]
    for counts in by_step.values():
        whole = counts.pop("amp/gradient_exponents")
        assert whole == sum(counts.values())
        assert counts.keys() <= {f"amp/gradient_exponents/{module}" for module in modules}
    assert any(len(counts) == len(modules) for counts in by_step.values())


@pytest.mark.rotating
def test_training_is_bit_for_bit_the_same() -> None:
    bare = build("two-optimizers")
    bare.loop()

    watched = build("two-optimizers")
    with ampwatch.monitor(watched.models, watched.scaler, level="deep", serve=False) as watch:
        watch.log_to(Writer(), every=1, by_module=True)
        watch.log_to(WandbRun(), every=2)
        watched.loop()

    assert watched.digest() == bare.digest()


def raising(numbers: dict[str, float], step: int) -> None:
    msg = "no such table"
    raise LookupError(msg)


def exiting(numbers: dict[str, float], step: int) -> None:
    raise SystemExit(3)


@pytest.mark.parametrize(("function", "words"), [(raising, "no such table"), (exiting, "3")])
def test_a_logger_that_raises_is_named_once_and_gets_nothing_more(
    function: Any, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Training, and the other logger, go on."""
    bare = build("fp16-foreach")
    bare.loop()

    run, writer = build("fp16-foreach"), Writer()
    with ampwatch.monitor(run.models, run.scaler, serve=False) as watch:
        watch.log_to(function, every=1)
        watch.log_to(writer, every=1)
        run.loop()

    said = [r for r in caplog.records if "log_to" in r.message]
    assert len(said) == 1
    assert f"the function {function.__name__}" in said[0].message
    assert words in said[0].message
    assert said[0].exc_info is not None, "it is the user's own code: where it was raised helps"
    assert {step for _, _, step, _ in writer.scalars} == set(range(12))
    assert run.digest() == bare.digest()


def test_a_logger_that_is_closed_gets_one_sentence(caplog: pytest.LogCaptureFixture) -> None:
    writer, run = Writer(), build("fp16-foreach")
    run.after_step = lambda step: writer.close() if step == 5 else None
    with ampwatch.monitor(run.models, run.scaler, serve=False) as watch:
        watch.log_to(writer, every=3)
        run.loop()

    (said,) = (r for r in caplog.records if "log_to" in r.message)
    assert "the SummaryWriter" in said.message
    assert "it is closed; close the monitor before it" in said.message
    assert said.exc_info is None


def test_a_logger_that_hangs_costs_no_step_and_little_at_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What does not fit is dropped and counted; points leave room for findings."""
    stuck, numbers = Stuck(), Numbers()
    made = action(stuck, numbers, close_seconds=0.05)
    settle(made, numbers, range(1))
    assert stuck.called.wait(60)
    settle(made, numbers, range(1, 200))
    taken = logging_action.QUEUE_SIZE - logging_action.KEPT_FOR_FINDINGS
    assert made.dropped == 199 - taken

    finding = ampwatch.Finding("scale_collapse", ampwatch.Severity.CRITICAL, "loss", "It broke", "")
    made(finding)
    assert made.dropped == 199 - taken
    made.close()
    for thread in threading.enumerate():
        if thread.name == "ampwatch-log-to":
            stuck.may_go.set()
            thread.join(60)

    assert stuck.steps == [0], "what waited was given up"
    slow, late, dropped = caplog.messages
    assert "the logger is slow or hangs" in slow
    assert "the last points within 0.05 s" in late
    assert "were dropped" in dropped


def test_a_logger_that_is_slow_gets_the_last_numbers_at_the_end() -> None:
    """The end waits for a place in the queue, if it does not take too long."""
    stuck, numbers = Stuck(), Numbers()
    made = action(stuck, numbers, close_seconds=60.0)
    settle(made, numbers, range(40))
    stuck.may_go.set()
    numbers.step = 77
    made.close()

    assert stuck.steps == [*range(40), 77]
    assert made.dropped == 0


def test_numbers_that_have_not_moved_are_not_handed_over_again() -> None:
    got: list[int] = []
    numbers = Numbers()
    made = action(lambda _, step: got.append(step), numbers)
    made.settle(0)
    numbers.step = 0
    for step in range(1, 4):
        made.settle(step)
    made.close()
    made.close()

    assert got == [0]


def test_a_function_may_close_the_monitor() -> None:
    """On the thread of the loggers, which does not wait for itself."""
    numbers = Numbers()
    done = threading.Event()

    def close(_: dict[str, float], step: int) -> None:
        made.close()
        done.set()

    made = action(close, numbers)
    settle(made, numbers, range(1))
    assert done.wait(60)
    for thread in threading.enumerate():
        if thread.name == "ampwatch-log-to":
            thread.join(60)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_hands_nothing_over() -> None:
    """The thread, the file and the connection are the parent's."""
    got: list[int] = []
    numbers = Numbers()
    made = action(lambda _, step: got.append(step), numbers)
    child = os.fork()
    if not child:
        settle(made, numbers, range(3))
        made.close()
        os._exit(bool(got) or made.dropped)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    settle(made, numbers, range(2))
    made.close()

    assert got == [0, 1]


def test_once_more_with_the_same_logger_changes_how_often() -> None:
    """A notebook's cell that is run again doubles nothing."""
    got: list[int] = []
    run = build("fp16-foreach")

    def take(_: dict[str, float], step: int) -> None:
        got.append(step)

    with ampwatch.monitor(run.models, run.scaler, serve=False) as watch:
        watch.log_to(take, every=1)
        watch.log_to(take, every=6)
        run.loop()

    assert got == [5, 11]


@pytest.mark.parametrize("every", [0, 2.5, True, "50"])
def test_how_often_is_a_count(every: Any) -> None:
    run = build("fp16-foreach")
    with (
        ampwatch.monitor(run.models, run.scaler, serve=False) as watch,
        pytest.raises(ampwatch.SettingsError, match="`every`: expected a whole number >= 1, got"),
    ):
        watch.log_to(print, every=every)


def test_a_closed_monitor_logs_nothing_and_one_that_is_off_neither() -> None:
    """The first is a mistake, the second is what was asked for; a wrong logger is one in both."""
    run, got = build("fp16-foreach"), list[int]()
    watch = ampwatch.monitor(run.models, run.scaler, serve=False)
    watch.close()
    with pytest.raises(ampwatch.StateError, match="expected an open monitor"):
        watch.log_to(print)

    with ampwatch.monitor(run.models, run.scaler, level="off", serve=False) as off:
        off.log_to(lambda _, step: got.append(step), every=1)
        with pytest.raises(ampwatch.SettingsError, match="`sink`"):
            off.log_to("runs/1")
        run.loop()

    assert got == []
