"""Which loggers are recognised, what each is given and when, and what one that fails or hangs costs."""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import ampwatch
from ampwatch.errors import SettingsError
from ampwatch.guard import Guard
from ampwatch.training.loggers import logging_action
from ampwatch.training.loggers.logging_action import LoggingAction, Source
from ampwatch.training.loggers.sinks import (
    Exponents,
    Note,
    Point,
    Summary,
    raw_histogram,
    recognised,
)
from ampwatch.wire.records import Severity
from tests.training.loggers.fakes import Mlflow, MlflowClient, TrackioRun, WandbRun, Writer
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


EXPONENTS = Exponents("amp/gradient_exponents", step=96, first=-3, counts=(1, 0, 4))
OF_HEAD = Exponents("amp/gradient_exponents/head", step=96, first=-3, counts=(1,))
POINT = Point(99, 1000.5, {"amp/step": 99.0, "amp/loss_scale": 1024.0}, (EXPONENTS, OF_HEAD))
NOTE = Note(
    "scale_collapse@optimizer:0",
    "scale_collapse",
    Severity.CRITICAL,
    98,
    1000.25,
    "__It__ broke",
    "Mend it",
)
SUMMARY = Summary(99, 1001.0, {"amp/loss_scale": 1024.0, "amp/steps": 100.0})


COUNTED = {"amp/gradient_exponents": ([1, 0, 4], [-4, -3, -2, -1]), "amp/gradient_exponents/head": ([1], [-4, -3])}  # fmt: skip
"""Histograms by their counts and the edges between them: logarithms, as for TensorBoard."""


def counted(*, np_histogram: object) -> object:
    return np_histogram


def filled(sink: Any) -> None:
    sink.log(POINT)
    sink.tell(NOTE)
    sink.end(SUMMARY)


def test_a_summary_writer_gets_scalars_text_and_a_histogram() -> None:
    """Each at the step it belongs to; text in front of which Markdown stops."""
    writer = Writer()
    filled(recognised(writer))

    assert writer.scalars == [
        ("amp/step", 99.0, 99, 1000.5),
        ("amp/loss_scale", 1024.0, 99, 1000.5),
    ]
    assert writer.texts == [
        ("amp/findings", "    __It__ broke\n    \n    Mend it", 98),
        ("amp/summary", "    amp/loss_scale  1024.0\n    amp/steps       100.0", 99),
    ]
    tags = [(histogram["tag"], histogram["global_step"]) for histogram in writer.histograms]
    assert tags == [("amp/gradient_exponents", 96), ("amp/gradient_exponents/head", 96)]
    assert writer.flushes == 2


def test_a_histogram_of_exponents_is_one_of_logarithms() -> None:
    """Bin -3 has magnitudes above 2**-4, up to 2**-3: logarithms from -4 to -3."""
    assert raw_histogram(EXPONENTS) == {
        "min": -4,
        "max": -1,
        "num": 5,
        "sum": -3.5 + 4 * -1.5,
        "sum_squares": 3.5**2 + 4 * 1.5**2,
        "bucket_limits": [-3.0, -2.0, -1.0],
        "bucket_counts": [1, 0, 4],
    }


def test_a_run_of_wandb_keeps_its_own_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers join the row that is being filled, and their x axis is the iteration."""
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(Histogram=counted))
    run = WandbRun()
    run.log({"loss": 1.0})
    filled(recognised(run))
    assert run.step == 1
    run.log({"loss": 0.5})

    assert run.rows[:2] == [{"loss": 1.0}, {**POINT.values, **COUNTED, "loss": 0.5}]
    assert run.axes == {"amp/step": None, "amp/*": "amp/step"}
    assert run.alerts == [("ampwatch critical: scale_collapse", "__It__ broke\n\nMend it", "ERROR")]
    assert run.summary == {"amp/finding/scale_collapse@optimizer:0": "__It__ broke"} | (
        SUMMARY.values
    )


def test_a_run_of_wandb_without_alerts_has_findings_in_its_summary() -> None:
    class Older(WandbRun):
        alert = property()  # type: ignore[assignment]

    run = Older()
    recognised(run).tell(NOTE)

    assert run.summary == {"amp/finding/scale_collapse@optimizer:0": "__It__ broke"}


def test_points_that_take_one_anothers_place_are_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A program that logs no rows of its own keeps only the newest point: it is told how to keep all."""
    run = WandbRun()
    sink = recognised(run)
    for _ in range(3):
        sink.log(POINT)
    assert caplog.messages == []
    for row in range(10):
        sink.log(POINT)
        run.step += row == 4

    (said,) = caplog.messages
    assert "only the newest is kept" in said
    assert "log_to(lambda numbers, step: run.log(numbers))" in said


def test_a_program_with_rows_of_its_own_is_told_nothing(caplog: pytest.LogCaptureFixture) -> None:
    run = WandbRun()
    sink = recognised(run)
    with caplog.at_level(logging.DEBUG):
        for _ in range(9):
            sink.log(POINT)
            run.log({"loss": 1.0})

    assert caplog.messages == []
    assert len(run.rows) == 10


def wandb_module() -> ModuleType:
    module = ModuleType("wandb")
    vars(module).update(init=print, log=print, define_metric=print, summary={}, run=WandbRun())
    return module


def test_the_module_of_wandb_stands_for_its_run() -> None:
    module = wandb_module()
    recognised(module).log(POINT)

    assert module.run.rows == [POINT.values]


def trackio_module(monkeypatch: pytest.MonkeyPatch, run: TrackioRun | None) -> ModuleType:
    """The module, whose current run is one of a context; ``run`` is a submodule."""
    module = ModuleType("trackio")
    contexts = SimpleNamespace(current_run=SimpleNamespace(get=lambda: run))
    levels = {"ERROR": "error"}
    vars(module).update(init=print, log=print, context_vars=contexts)
    vars(module).update(run=module, AlertLevel=levels, Histogram=counted)
    monkeypatch.setitem(sys.modules, "trackio", module)
    return module


@pytest.mark.parametrize("rows_before", [0, 7, 200])
def test_a_run_of_trackio_keeps_the_steps_that_it_counts(
    monkeypatch: pytest.MonkeyPatch, rows_before: int
) -> None:
    """The user's next row has the step that it would have; without rows, the numbers have their own."""
    run = TrackioRun()
    for _ in range(rows_before):
        run.log({"loss": 1.0})
    filled(recognised(trackio_module(monkeypatch, run)))

    at = min(99, rows_before - 1) if rows_before else 99
    assert run.rows[rows_before:] == [(at, POINT.values | COUNTED), (at, {"amp/steps": 100.0})]
    assert run.alerts == [("ampwatch critical: scale_collapse", "__It__ broke\n\nMend it", "error", 98)]  # fmt: skip
    assert run._next_step == (rows_before or 100)


@pytest.mark.parametrize("how", ["module", "pair"])
def test_mlflow_gets_metrics_and_tags(how: str) -> None:
    """Of the run that was active at set-up; the end repeats nothing that the last point had."""
    mlflow = Mlflow("r1")
    filled(recognised(mlflow if how == "module" else (mlflow.client, "r1")))

    assert mlflow.client.metrics == [
        ("r1", "amp/step", 99.0, 1000500, 99),
        ("r1", "amp/loss_scale", 1024.0, 1000500, 99),
        ("r1", "amp/steps", 100.0, 1001000, 99),
    ]
    assert mlflow.client.tags == {
        "amp/finding/scale_collapse_optimizer_0": "__It__ broke Mend it",
        "amp/kind/scale_collapse": "critical",
    }


def test_a_function_gets_a_dictionary_of_its_own() -> None:
    """What it does with it is no concern of the next one."""
    got: list[tuple[dict[str, float], int]] = []

    def take(numbers: dict[str, float], step: int) -> None:
        got.append((dict(numbers), step))
        numbers.clear()

    filled(recognised(take))
    filled(recognised(take))

    assert got == [(POINT.values, 99)] * 2


class Framework:
    @property
    def experiment(self) -> Any:
        raise AssertionError


class OfLightning(Framework):
    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        raise AssertionError


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Writer, r"got the class Writer; write log_to\(Writer\(...\)\)"),
        (lambda: Mlflow(None), r"without an active run of this thread; call mlflow.start_run\(\)"),
        (MlflowClient, r"a client of MLflow without a run; write log_to\(\(client, run_id\)\)"),
        (lambda: (MlflowClient(), ""), r"got \(MlflowClient, str\); write log_to"),
        (lambda: (MlflowClient(),), r"got \(MlflowClient\); write log_to"),
        (Framework, r"a Framework of a framework; write log_to\(that_logger.experiment\)$"),
        (OfLightning, r"that_logger.experiment\), or .* log_to\(that_logger.log_metrics\)$"),
        (lambda: logging, r"got the module logging; pass its logger"),
        (lambda: "runs/1", r"got 'runs/1'; write log_to\(lambda numbers, step"),
        (lambda: None, r"got a NoneType; write log_to\(lambda numbers, step"),
    ],
)
def test_what_is_no_logger_is_refused_with_what_to_do(
    make: Callable[[], object], words: str
) -> None:
    with pytest.raises(SettingsError, match=rf"`sink`: expected a SummaryWriter, .*{words}"):
        recognised(make())


def test_a_module_without_a_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module = wandb_module()
    module.run = None  # type: ignore[assignment]

    with pytest.raises(SettingsError, match=r"got wandb without a run; call wandb.init\(\) before"):
        recognised(module)
    with pytest.raises(SettingsError, match=r"got trackio without a run; call trackio.init\(\)"):
        recognised(trackio_module(monkeypatch, None))
