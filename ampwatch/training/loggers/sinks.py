"""Loggers of others, each behind the same three calls, and the plain values that they are handed.

None of them is imported here. What is handed over is made on the training thread and never changed after.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from msgspec import Struct

from ampwatch.errors import SettingsError
from ampwatch.guard import Log
from ampwatch.wire.records import Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

logger = Log()

WANTED = (
    "a SummaryWriter, a run of W&B or Trackio, mlflow, (client, run_id) of MLflow, or a function that"
    " takes the numbers as a dict and the step"
)

MAX_TITLE = 63
"""Characters of the title of an alert; W&B takes fewer than 64."""

MAX_TAG = 4000
"""Characters of the value of a tag; older servers of MLflow take 5000."""

MAX_TAG_NAME = 250
"""Characters of the name of a tag; servers of MLflow take no more."""

ROWLESS_POINTS = 3
"""Points without a row of the user's own between them, after which W&B's way is explained."""

LEVELS = {Severity.INFO: "INFO", Severity.WARNING: "WARN", Severity.CRITICAL: "ERROR"}
"""Levels of alerts, of W&B and of Trackio."""


class Exponents(Struct, frozen=True):
    """How many gradient elements have which magnitude, without the loss scale.

    Attributes:
        key: Under which a logger has them.
        step: Iteration in which they were measured.
        first: Exponent of the first bin; bin ``e`` has the magnitudes above ``2**(e - 1)``, up to
            ``2**e``.
        counts: Elements per bin, consecutive exponents.
    """

    key: str
    step: int
    first: int
    counts: tuple[int, ...]

    @property
    def edges(self) -> tuple[int, ...]:
        """The exponents between which the bins are, one more than bins."""
        return tuple(range(self.first - 1, self.first + len(self.counts)))


class Point(Struct, frozen=True):
    """The numbers of one iteration.

    Attributes:
        step: Index of the iteration.
        time_s: Unix time at which they were taken. Unit: s.
        values: The numbers by key.
        exponents: Those of gradients, where they are newer than those of the point before: of all
            together, and of each module if they were asked for.
    """

    step: int
    time_s: float
    values: dict[str, float]
    exponents: tuple[Exponents, ...]


class Note(Struct, frozen=True):
    """A finding as it stood.

    Attributes:
        key: Identity of the finding within its run.
        kind: Slug of its kind.
        severity: How bad it is.
        step: Iteration in which it was last seen.
        time_s: Unix time. Unit: s.
        text: What happened, in one line.
        advice: What to change.
    """

    key: str
    kind: str
    severity: Severity
    step: int
    time_s: float
    text: str
    advice: str


class Summary(Struct, frozen=True):
    """The numbers at the end of the run.

    Attributes:
        step: Index of the last iteration; -1 if there was none.
        time_s: Unix time. Unit: s.
        values: The numbers by key.
    """

    step: int
    time_s: float
    values: dict[str, float]


class ClosedError(Exception):
    """A logger that takes nothing any more."""


class Sink(Protocol):
    """A logger. Its methods are called on the thread of the loggers.

    What is not taken is raised, and then nothing more is handed over.

    Attributes:
        name: What it is, for the log.
        wants_traceback: Whether an exception of it comes from code of the user's own.
    """

    name: str
    wants_traceback: bool

    def log(self, point: Point) -> None:
        """Take the numbers of an iteration."""

    def tell(self, note: Note) -> None:
        """Take a finding."""

    def end(self, summary: Summary) -> None:
        """Take the numbers at the end, and see that nothing stays in a buffer."""


class FunctionSink:
    """A function of the user's. It gets the numbers; findings have ``on_finding``.

    Args:
        function: Takes a dict and a step.
    """

    wants_traceback = True

    def __init__(self, function: Callable[[dict[str, float], int], object]) -> None:
        self.name = f"the function {getattr(function, '__qualname__', type(function).__name__)}"
        self._function = function

    def log(self, point: Point) -> None:
        """Call the function."""
        self._function(dict(point.values), point.step)

    def tell(self, note: Note) -> None:
        """Do nothing: a function takes numbers."""

    def end(self, summary: Summary) -> None:
        """Do nothing: the last point has been handed over, and ``watch.summary()`` is there."""


class TensorBoardSink:
    """A ``SummaryWriter``, of PyTorch or of tensorboardX.

    Args:
        writer: The writer.
    """

    wants_traceback = False

    def __init__(self, writer: Any) -> None:
        self.name = "the SummaryWriter"
        self._writer = writer

    def log(self, point: Point) -> None:
        """Write scalars, and the exponents of gradients as histograms."""
        writer = self._open()
        for key, value in point.values.items():
            writer.add_scalar(key, value, point.step, walltime=point.time_s)
        for exponents in point.exponents if hasattr(writer, "add_histogram_raw") else ():
            writer.add_histogram_raw(
                exponents.key,
                **raw_histogram(exponents),
                global_step=exponents.step,
                walltime=point.time_s,
            )

    def tell(self, note: Note) -> None:
        """Write text, and see that it is in the file before the program may die of what it says."""
        self._text("amp/findings", [note.text, "", note.advice], note.step, note.time_s)

    def end(self, summary: Summary) -> None:
        """Write the numbers of the end as text: a curve of one point shows nothing."""
        width = max(map(len, summary.values), default=0)
        lines = [f"{key:{width}}  {value!r}" for key, value in summary.values.items()]
        self._text("amp/summary", lines, max(0, summary.step), summary.time_s)

    def _text(self, tag: str, lines: list[str], step: int, time_s: float) -> None:
        writer = self._open()
        # It is shown as Markdown: with four spaces in front text is text, whatever is in it.
        text = "\n".join(f"    {line}" for line in lines)
        writer.add_text(tag, text, step, walltime=time_s)
        writer.flush()

    def _open(self) -> Any:
        # A closed one would begin a new file and say nothing.
        if getattr(self._writer, "all_writers", self) is None:
            msg = "it is closed; close the monitor before it"
            raise ClosedError(msg)
        return self._writer


class WandbSink:
    """A run of W&B.

    Its rows are the user's: a call of ``run.log`` without ``commit=False`` would end one, count up
    the step, and have W&B drop the user's next row if that is logged with a step of its own. So
    the numbers join the row that is being filled, and the newest of them go with it. What they
    belong to is ``amp/step``, which is made their x axis.

    Args:
        run: The run.
    """

    wants_traceback = False

    def __init__(self, run: Any) -> None:
        self.name = f"the W&B run {getattr(run, 'name', None) or getattr(run, 'id', '')}".rstrip()
        self._run = run
        self._row: int | None = None
        self._rowless = 0
        self._is_defined = self._has_warned = False

    def log(self, point: Point) -> None:
        """Add the numbers to the row that is being filled."""
        run = self._run
        if not self._is_defined:
            self._is_defined = True
            run.define_metric("amp/step", hidden=True)
            run.define_metric("amp/*", step_metric="amp/step")
        self._find_rows()
        run.log({**point.values, **_histograms("wandb", point.exponents)}, commit=False)

    def tell(self, note: Note) -> None:
        """Send an alert, and keep the line in the summary, where old versions have no alerts."""
        run = self._run
        run.summary.update({f"amp/finding/{note.key}": note.text})
        if hasattr(run, "alert"):
            run.alert(**_alert(note), level=LEVELS[note.severity])

    def end(self, summary: Summary) -> None:
        """Put the numbers of the end into the run's summary."""
        self._run.summary.update(dict(summary.values))

    def _find_rows(self) -> None:
        """Say once that points take one another's place, where the program logs no rows."""
        row = getattr(self._run, "step", None)
        self._rowless = self._rowless + 1 if row is not None and row == self._row else 0
        self._row = row
        if self._rowless == ROWLESS_POINTS and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "log_to: expected run.log() of your own between two points for %s, got none for %d points:"
                " they join your next row, and only the newest is kept; without rows of your own,"
                " write log_to(lambda numbers, step: run.log(numbers))",
                self.name,
                ROWLESS_POINTS,
            )


class TrackioSink:
    """A run of Trackio.

    Each call of ``run.log`` is a row, and one with a step counts the next step of the user's up to it.
    So the numbers are logged at the newest step of the user's, if there is one, and at most at their
    own, which is ``amp/step``. Only then can a program that leaves the steps to Trackio keep its own.

    Args:
        run: The run.
    """

    wants_traceback = False

    def __init__(self, run: Any) -> None:
        self.name = f"the Trackio run {getattr(run, 'name', '')}".rstrip()
        self._run = run
        self._newest: Point | None = None
        self._next = 0

    def log(self, point: Point) -> None:
        """Log a row of the numbers."""
        self._newest = point
        self._row({**point.values, **_histograms("trackio", point.exponents)}, point.step)

    def tell(self, note: Note) -> None:
        """Send an alert at the step of the finding."""
        # Looked up, not imported: who made the run has it.
        level = sys.modules["trackio"].AlertLevel[LEVELS[note.severity]]
        self._run.alert(**_alert(note), level=level, step=note.step)

    def end(self, summary: Summary) -> None:
        """Log those numbers of the end that the last point has not had."""
        self._row(_further(summary, self._newest), max(0, summary.step))

    def _row(self, values: dict[str, Any], step: int) -> None:
        run = self._run
        following = getattr(run, "_next_step", 0)
        is_alone = following in (0, self._next)  # no row but those of this sink
        run.log(values, step=step if is_alone else min(step, following - 1))
        self._next = getattr(run, "_next_step", 0) if is_alone else -1


class MlflowSink:
    """A run of MLflow, by a client and its id: the active run is one of the thread that asks.

    Args:
        client: The client.
        run_id: Id of the run.
    """

    wants_traceback = False

    def __init__(self, client: Any, run_id: str) -> None:
        self.name = f"the MLflow run {run_id}"
        self._client = client
        self._run_id = run_id
        self._newest: Point | None = None

    def log(self, point: Point) -> None:
        """Log the numbers, in one request where that can be."""
        self._newest = point
        self._metrics(point.values, point.step, point.time_s)

    def tell(self, note: Note) -> None:
        """Set a tag for the finding, and one by which runs with that kind are found.

        When it becomes worse the tags change.
        """
        name = "".join(c if c.isalnum() or c in "_-. /" else "_" for c in note.key)
        text = f"{note.text} {note.advice}"
        self._client.set_tag(self._run_id, f"amp/finding/{name}"[:MAX_TAG_NAME], text[:MAX_TAG])
        self._client.set_tag(self._run_id, f"amp/kind/{note.kind}", note.severity.value)

    def end(self, summary: Summary) -> None:
        """Log those numbers of the end that the last point has not had."""
        values = _further(summary, self._newest)
        self._metrics(values, max(0, summary.step), summary.time_s)

    def _metrics(self, values: dict[str, float], step: int, time_s: float) -> None:
        client, run, time_ms = self._client, self._run_id, round(time_s * 1000)
        # Looked up, not imported: who made the client has it.
        entities = sys.modules.get("mlflow.entities")
        if entities is None or not hasattr(client, "log_batch"):
            for key, value in values.items():
                client.log_metric(run, key, value, timestamp=time_ms, step=step)
            return
        metrics = [entities.Metric(key, value, time_ms, step) for key, value in values.items()]
        client.log_batch(run, metrics=metrics)


def _alert(note: Note) -> dict[str, str]:
    # W&B mutes an equal title for a minute; one that has become worse has another.
    title = f"ampwatch {note.severity.value}: {note.kind}"[:MAX_TITLE]
    return {"title": title, "text": f"{note.text}\n\n{note.advice}"}


def _further(summary: Summary, newest: Point | None) -> dict[str, float]:
    """Return those numbers of the end that the last point has not had."""
    known = newest.values if newest is not None and newest.step == summary.step else {}
    return {key: value for key, value in summary.values.items() if known.get(key) != value}


def _histograms(package: str, exponents: Iterable[Exponents]) -> dict[str, Any]:
    """Return exponents as W&B and Trackio take them: what is counted is log2 of a magnitude."""
    # Looked up, not imported: who made the run has it.
    made = getattr(sys.modules.get(package), "Histogram", None)
    if made is None:
        return {}
    return {e.key: made(np_histogram=(list(e.counts), list(e.edges))) for e in exponents}


def recognised(given: Any) -> Sink:
    """Return the sink for a logger.

    Raises:
        SettingsError: If it is none, or has no run to log to yet.
    """
    if isinstance(given, tuple):
        return _mlflow_pair(given)
    if _can(given, "active_run", "MlflowClient"):
        return _mlflow_module(given)
    if isinstance(given, ModuleType):
        given = _run_of(given)
    _refuse_what_is_near(given)
    if _can(given, "add_scalar", "add_text", "flush"):
        return TensorBoardSink(given)
    if _can(given, "log", "define_metric") and hasattr(given, "summary"):
        return WandbSink(given)
    if _can(given, "log", "alert", "finish"):
        return TrackioSink(given)
    if not callable(given):
        what = f"{given!r}" if isinstance(given, str) else f"a {type(given).__name__}"
        _refuse(what, "write log_to(lambda numbers, step: ...)")
    return FunctionSink(given)


def _refuse_what_is_near(given: Any) -> None:
    if isinstance(given, type):
        _refuse(f"the class {given.__name__}", f"write log_to({given.__name__}(...))")
    if _can(given, "log_metric", "set_tag", "get_run"):
        _refuse("a client of MLflow without a run", "write log_to((client, run_id))")
    if hasattr(type(given), "experiment"):  # not asked for itself: that may begin a run
        instead = "write log_to(that_logger.experiment)"
        if _can(given, "log_metrics"):
            instead += ", or for the numbers alone log_to(that_logger.log_metrics)"
        _refuse(f"a {type(given).__name__} of a framework", instead)


def _run_of(module: ModuleType) -> Any:
    name = module.__name__
    if not _can(module, "init", "log"):
        _refuse(f"the module {name}", "pass its logger, not the module")
    contexts = getattr(module, "context_vars", None)  # where Trackio has the run
    run = contexts.current_run.get() if contexts else getattr(module, "run", None)
    if run is None:
        _refuse(f"{name} without a run", f"call {name}.init() before log_to()")
    return run


def _mlflow_pair(given: tuple[Any, ...]) -> Sink:
    client, run_id = given if len(given) == 2 else (None, None)
    if not _can(client, "log_metric", "set_tag") or not isinstance(run_id, str) or not run_id:
        kinds = ", ".join(type(part).__name__ for part in given)
        _refuse(f"({kinds})", "write log_to((MlflowClient(), run.info.run_id))")
    return MlflowSink(client, run_id)


def _mlflow_module(mlflow: Any) -> Sink:
    run = mlflow.active_run()
    if run is None:
        _refuse(
            "mlflow without an active run of this thread",
            "call mlflow.start_run() before log_to(), or write log_to((client, run_id))",
        )
    return MlflowSink(mlflow.MlflowClient(), run.info.run_id)


def _can(given: Any, *methods: str) -> bool:
    return all(callable(getattr(given, method, None)) for method in methods)


def _refuse(what: str, instead: str) -> NoReturn:
    msg = f"`sink`: expected {WANTED}, got {what}; {instead}"
    raise SettingsError(msg)


def raw_histogram(exponents: Exponents) -> dict[str, Any]:
    """Return exponents as ``add_histogram_raw`` takes them: what is counted is log2 of a magnitude.

    On a linear axis of magnitudes all but the largest would be one bar.
    """
    first, counts = exponents.first, exponents.counts
    middles = [e - 0.5 for e in range(first, first + len(counts))]
    both = list(zip(middles, counts, strict=True))
    return {
        "min": first - 1,
        "max": first - 1 + len(counts),
        "num": sum(counts),
        "sum": sum(middle * count for middle, count in both),
        "sum_squares": sum(middle**2 * count for middle, count in both),
        "bucket_limits": [float(e) for e in range(first, first + len(counts))],
        "bucket_counts": list(counts),
    }
