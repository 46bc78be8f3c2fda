"""Which loggers are recognised, and what each is given."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ampwatch.errors import SettingsError
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
