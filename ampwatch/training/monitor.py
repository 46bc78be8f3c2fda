"""``monitor(model, scaler)``: attaches the sensors and takes everything off again."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import socket
import sys
import time
import weakref
from dataclasses import fields, replace
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import torch

from ampwatch import laboratory
from ampwatch.diagnosis.pipeline import LastStep
from ampwatch.errors import CLOSED, LIMITS, RAISE_THE_LIMIT, StateError, did_you_mean
from ampwatch.guard import Guard, Log, is_of_a_signal
from ampwatch.report import notebook
from ampwatch.report.html_report import render_html
from ampwatch.report.judged_boxes import render_json
from ampwatch.report.op_lines import GROUPINGS
from ampwatch.report.op_table import render as render_ops
from ampwatch.report.precision_words import NO_CENSUS, report_lines
from ampwatch.report.report import render_boxes
from ampwatch.settings import Settings, unknown_variables
from ampwatch.state.facts import LOGGED, WHOLE_RUN
from ampwatch.training.actions.base import Subscription
from ampwatch.training.arguments import check_count, check_flag
from ampwatch.training.hooks import probe_op
from ampwatch.training.loggers.logging_action import LoggingAction, Source
from ampwatch.training.model.facts import ranks
from ampwatch.training.model.living import alive
from ampwatch.training.outlet import Outlet
from ampwatch.training.session import Session
from ampwatch.training.targets import Targets, check_targets
from ampwatch.version import __version__
from ampwatch.wire.blackbox import Box
from ampwatch.wire.blackbox.exception import traceback_of, words_of
from ampwatch.wire.records import RunIdentity, RunState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType

    from torch import nn
    from torch.optim import Optimizer
    from typing_extensions import Self

    from ampwatch.diagnosis.pipeline import Diagnosis
    from ampwatch.report.op_lines import By
    from ampwatch.state.facts import Fact
    from ampwatch.training.scalers.loss_scaler import LossScaler
    from ampwatch.training.session import Part
    from ampwatch.wire.records import Finding, Severity

__all__ = ["LastStep", "Monitor", "monitor"]

logger = Log()

_T = TypeVar("_T")

ARGUMENTS = ("model", "scaler", "optimizer", "serve", "step")
"""Arguments of ``monitor`` that are no settings."""

_open: list[Monitor] = []
"""The monitors that are attached; it keeps alive those that nobody else holds."""


def monitor(
    model: nn.Module | Sequence[nn.Module] | None,
    scaler: torch.amp.GradScaler | LossScaler | object | None = None,
    *,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    level: str | None = None,
    run: str | None = None,
    serve: bool = True,
    step: int = 0,
    **settings: Any,
) -> Monitor:
    """Watch a mixed-precision training until it ends; the training loop stays as it is.

    If the model or scaler is already watched, the older monitor is closed with a warning, so that a
    notebook's cell can be run again.

    Args:
        model: The model, a list of models, ``None``, or an ``accelerate.Accelerator`` that has prepared
            them.
        scaler: The GradScaler, an object that holds one, a framework's engine or optimizer that scales by
            itself (docs/using.md), a ``LossScaler``, or ``None`` (bfloat16, float32).
        optimizer: The optimizers, if they are not to be found by scaler and model.
        level: How much is watched: ``off``, ``light``, ``standard`` or ``deep``.
        run: Name of the run, stable between restarts; the script's name by default.
        serve: Whether to write a ring, and to start the host's daemon if none runs. Without it: no port, no
            file (unless ``report_dir`` is given), findings only.
        step: Index of the first iteration: the steps taken before the checkpoint that a training goes on from.
        settings: Any setting of ``ampwatch.settings.Settings`` by name.

    Returns:
        The monitor, which ends with its ``with`` block, ``close()`` or the program. It need not be kept.

    Raises:
        AttachError: If an argument cannot be watched.
        SettingsError: If a setting, ``serve``, ``step`` or an ``AMPWATCH_*`` variable is not usable.
        StateError: If there is no memory, or no descriptor, for a monitor.

    Cost:
        Set-up some 10 ms, half a second where the daemon has to be started, seconds where a GPU's kernel is
        compiled. 0.1 to 0.3 ms a step on the training thread; at ``standard`` sampled steps cost more,
        within ``overhead_budget``. No host sync, no thread before there is a finding. See docs/cost.md.
    """
    given = {"level": level, "run": run, **settings}
    resolved = Settings.resolve(given, beside=ARGUMENTS, warns=False)
    serve = check_flag("serve", serve)
    check_count("step", step, least=0)
    targets = check_targets(model, scaler, optimizer)
    Monitor.num_asked_for += 1
    for other in tuple(_open):
        other._make_room_for(targets)  # noqa: SLF001 - same module
    try:
        return Monitor(targets, resolved, serve=serve, step=int(step))
    except (MemoryError, OSError) as error:  # while its parts are made: nothing is attached yet
        # What is imported only where it is needed wants a descriptor.
        if isinstance(error, OSError) and error.errno not in LIMITS:
            raise
        msg = (
            f"there is no memory or descriptor for a monitor ({words_of(error)}); {RAISE_THE_LIMIT}"
        )
        raise StateError(msg) from error


def watch_unasked(
    model: Sequence[nn.Module] | None,
    scaler: torch.amp.GradScaler | None,
    *,
    optimizer: Sequence[Optimizer] | None,
    serve: bool,
    step: int,
) -> Monitor:
    """Do what ``monitor`` does, for `ampwatch run`: it steps aside when the user calls ``monitor``.

    Args:
        model: The models, or ``None``.
        scaler: The scaler, or ``None``.
        optimizer: The optimizers, or ``None``.
        serve: Whether to write a ring and to start the host's daemon if none runs.
        step: Index of the iteration that is open.

    Raises:
        AttachError: If an argument cannot be watched.
        SettingsError: If an ``AMPWATCH_*`` variable is not usable.
    """
    targets = check_targets(model, scaler, optimizer)
    resolved = Settings.resolve(warns=False)
    for other in tuple(_open):
        other._make_room_for(targets)  # noqa: SLF001 - same module
    return Monitor(targets, resolved, serve=serve, is_unasked=True, step=step)


def monitor_of(*things: object) -> Monitor | None:
    """Return the open monitor that the user has asked for and that watches one of these.

    Args:
        things: Models and scalers, the very objects that were handed to ``monitor``; ``None`` is none.
    """
    known = [thing for thing in things if thing is not None]
    return next((m for m in reversed(_open) if m._watches(*known)), None)  # noqa: SLF001 - same module


def follows(scaler: torch.amp.GradScaler) -> bool:
    """Whether an open monitor watches a scaler now, whatever was handed to it."""
    return any(monitor._session.bus.scaler is scaler for monitor in _open)  # noqa: SLF001 - same module


class Monitor:
    """One watched training. Made by ``ampwatch.monitor``.

    Attributes:
        num_asked_for: Monitors that the user has made in this process.
        settings: The checked settings.
        identity: Run, rank and process.
    """

    num_asked_for: ClassVar[int] = 0

    def __init__(
        self,
        targets: Targets,
        settings: Settings,
        *,
        serve: bool,
        is_unasked: bool = False,
        step: int = 0,
    ) -> None:
        self.settings = settings
        self._is_unasked = is_unasked
        self.identity = _identity(settings)
        self._models = tuple(weakref.ref(m) for m in targets.models)
        self._scaler = targets.scaler
        self._loss_scaler = targets.loss_scaler
        self._outlet = Outlet(settings, self.identity)
        self._session = Session(targets, settings, self._outlet, first_step=step)
        self._number = probe_op.number_of(self._session)
        self._settles = False
        self._loggers: list[LoggingAction] = []
        self._live: notebook.Live | None = None
        self._drawing = Guard("notebook")
        self._traceback = ""
        self._at_end: Finalize | None = None
        self._closed = settings.level == "off"
        if self._closed:
            return
        self._outlet.remember(
            is_durable=serve or bool(settings.report_dir), describe=self._describe
        )
        try:
            self._outlet.warn_once(unknown_variables())
            if serve:
                self._outlet.serve()
            self._session.install()
            _open.append(self)
            # atexit runs before modules are torn down, and not at all after a signal that kills:
            # the daemon sees from the ring that the process is gone.
            atexit.register(self._at_exit)
            # A process of multiprocessing catches its exception itself, and a forked one runs no
            # atexit.
            if multiprocessing.parent_process() is not None:
                self._at_end = Finalize(None, self._at_exit, exitpriority=0)
        except BaseException as error:
            self._closed = True
            self._forget_process()
            self._session.remove()
            self._outlet.forget()
            self._outlet.close(*_how_it_ended(error))
            # What the machine refuses, memory or descriptors, is no mistake of whoever called. A time
            # limit of the program's may be a TimeoutError, which is an OSError.
            if not isinstance(error, (OSError, MemoryError)) or is_of_a_signal(error):
                raise
            logger.warning(
                "there is no memory or descriptor for a monitor (%s); this run is not watched, training is not affected; %s",
                words_of(error),
                RAISE_THE_LIMIT,
            )
            self.settings = replace(settings, level="off")  # which is what it is

    @property
    def models(self) -> list[nn.Module]:
        """The watched models that still exist."""
        return alive(self._models)

    @property
    def is_scaled(self) -> bool:
        """Whether a watched scaler scales the loss: one passed in, one found in use, or that of an engine."""
        scaler, foreign = self._session.bus.scaler, self._loss_scaler
        if scaler is not None:
            return scaler.is_enabled()
        return foreign is not None and foreign.get_scale is not None

    @property
    def closed(self) -> bool:
        """Whether the monitor is closed, or was never open (level ``off``)."""
        return self._closed

    @property
    def url(self) -> str:
        """Address of the page and of ``/metrics``, without the token; empty without a daemon.

        It can be logged. ``ampwatch url`` prints the address with the token, for a new browser.
        """
        return self._outlet.url

    @property
    def findings(self) -> list[Finding]:
        """The findings so far, in the order in which they were made. Still there after ``close``."""
        self._drawing.run(notebook.teach)
        return self._diagnosis.book.findings

    @property
    def last_step(self) -> LastStep:
        """The newest iteration that has ended, as far as it is known without a sync."""
        self._session.catch_up()
        return self._session.last_step

    def metrics(self) -> dict[str, float]:
        """Return the newest numbers, flat, for any logger: ``{"amp/loss_scale": 65536.0, ...}``.

        docs/loggers.md lists keys and units; an unknown number has no key. They can be read after
        ``close()``.

        Returns:
            Floats. All are finite, except a loss that is not.

        Cost:
            About 20 us. Never waits for a device, never raises.
        """
        return self._logged(LOGGED)

    def summary(self) -> dict[str, float]:
        """Return ``metrics()`` and the totals of the run, as of now or of its end; see docs/loggers.md."""
        return self._logged((*LOGGED, *WHOLE_RUN))

    def gradient_norms(self) -> dict[str, float]:
        """Return the L2 norm of the gradient of each parameter, divided by the loss scale.

        They are of the newest iteration in which gradients were measured (``amp/sample_step``), before
        clipping with a scaler, after it without one. Of a sharded parameter it is that of this rank's
        shard. Norms that are not finite are left out; at level ``light`` there are none.
        """
        return dict(self._diagnosis.norms)

    def _logged(self, rows: tuple[Fact, ...]) -> dict[str, float]:
        self._session.catch_up()
        return self._outlet.numbers(rows)

    def on_finding(
        self,
        callback: Callable[[Finding], None],
        *,
        min_severity: Severity | str | None = None,
        kinds: Iterable[str] | None = None,
    ) -> None:
        """Call ``callback(finding)`` when a finding is made, and again when it has become worse.

        Worse: its severity has risen, or that of a finding it explains. A callback runs where the finding
        is made, mostly on the training thread within ``scaler.update()``, so it should be quick. One that
        raises is logged once and not called again.

        Args:
            callback: A function, or an action of ``ampwatch.actions``, made for this monitor alone.
            min_severity: ``info``, ``warning`` or ``critical``; findings below are left out until they
                become as bad. A function takes all by default, an action has its own default.
            kinds: Kinds of findings, all others are left out.

        Raises:
            StateError: If the monitor is closed, or another open monitor has the action already.
            SettingsError: If ``callback`` cannot be called, or a severity or a kind does not exist.
        """
        self._require_open()
        subscription = Subscription(callback, min_severity, kinds)
        if self._closed:  # at level off
            return
        self._outlet.subscribe(subscription)
        action = subscription.action
        if action is not None and action.wants_safe_point and not self._settles:
            self._settles = True
            self._session.bus.call_at_boundary(self._outlet.settle)

    def log_to(self, sink: object, *, every: int = 50, by_module: bool = False) -> None:
        """Pass ``metrics()`` to your logger every few iterations, and findings as text.

        A thread of its own calls the logger. ``close()`` passes the last numbers and ``summary()``. Called
        again with the same logger, only ``every`` and ``by_module`` change. See docs/loggers.md.

        Args:
            sink: A SummaryWriter (PyTorch's or tensorboardX's), a run of W&B or Trackio, ``mlflow`` with
                an active run, ``(client, run_id)`` of MLflow, or ``f(numbers, step)``.
            every: Iterations from one point to the next.
            by_module: Whether TensorBoard, W&B and Trackio also get a histogram of the gradients of each module.

        Raises:
            StateError: If the monitor is closed.
            SettingsError: If the logger is none of these or has no run, if ``every`` is not a positive
                integer, or ``by_module`` not a bool.

        Cost:
            Some 50 us on the training thread each time, and 0.5 us for each module, 2.5 us with histograms;
            at the end up to 5 s for a logger that hangs.
        """
        self._require_open()
        outlet, session = self._outlet, self._session
        source = Source(self.metrics, self.summary, lambda: outlet.gradients, lambda: self.url)
        guard = session.bus.guard("log_to")
        action = LoggingAction(sink, every, source, guard, by_module=by_module)
        if self._closed:  # at level off
            return
        for known in self._loggers:
            if known.given is sink:
                known.every, known.by_module = action.every, action.by_module
                return
        self._loggers.append(action)
        self.on_finding(action)

    def report(self, format: Literal["text", "json", "html"] = "text") -> str:  # noqa: A002 - what it is
        """Return the run in words: what happened, where, since when, how sure, what to change.

        Args:
            format: ``text`` for a terminal; ``html`` for a self-contained page with pictures; ``json`` for
                programs, and for ``ampwatch report FILE`` on any machine.

        Raises:
            ValueError: If the format is another one.

        Cost:
            A few ms; 20 ms as a page.
        """
        if format not in _FORMATS:
            msg = f"expected `format` to be text, json or html, got {format!r}"
            raise ValueError(msg)
        text = _FORMATS[format]([self.box()])
        return text.encode(errors="backslashreplace").decode()  # a file's name may be no UTF-8

    def box(self) -> Box:
        """Return the data that a report is made of. Cost: some ms."""
        # First: iterations that catching up delivers belong to the evidence, too.
        self._session.catch_up()
        box = self._outlet.evidence() or Box(self.identity, written_ns=time.time_ns())
        box.findings = list(self.findings)
        self._describe(box)
        return box

    def live(self, every_seconds: float = 2.0) -> None:
        """Show the run below this cell of a notebook, drawn again while cells run.

        It shows state, cause, place and remedy, and the history of loss scale and loss, as output of the
        cell, drawn on the training thread. Called again in another cell, it continues there. Outside of a
        notebook it does nothing.

        Args:
            every_seconds: Shortest time between two pictures, 0.5 at least. Unit: s.

        Cost:
            Some ms a picture, in iterations without one only a reading of the clock.
        """
        shown = self._drawing.run(notebook.live, self.box, every_seconds)
        if shown is None:
            return
        if self._live is None and not self._closed:
            self._session.bus.call_at_boundary(self._draw)
        self._live = shown

    def _draw(self, _step: int) -> None:
        if self._live is not None:
            self._drawing.run(self._live.refresh)

    def _repr_mimebundle_(self, **_wished: object) -> dict[str, str]:
        """Return the run as IPython displays it: four lines, and a card with pictures."""
        bundle = self._drawing.run(notebook.bundle_of, [self.box()])
        return bundle or {"text/plain": repr(self)}

    def end_iteration(self, *, loss_scale: object = None, skipped: object = False) -> None:
        """End the open iteration. After the first call, iterations end only by this method.

        For a scaler that no ``LossScaler`` can describe, and for steps that ampwatch does not see:
        compiled, functional, of a class of your own. Call it once an iteration, after the step.

        Args:
            loss_scale: The current loss scale, a number or a tensor with one element; ``None`` if no
                loss is scaled.
            skipped: Whether the step was skipped, a bool or a tensor with one element.
        """
        if not self._closed:
            self._session.end_iteration(loss_scale, skipped)

    def batch(self, *, samples: object = None, tokens: object = None) -> None:
        """Count the samples and tokens of a batch, for samples and tokens per second.

        Call it once for each batch, anywhere in the iteration. Each rank counts its own batches; their sum
        is in Prometheus. It never raises into a training.

        Args:
            samples: Samples of the batch.
            tokens: Tokens of the batch.

        Cost: 1 us.
        """
        if not self._closed:
            self._session.count_batch(samples, tokens)

    def probe(self, name: str, tensor: _T) -> _T:
        """Measure any tensor of the program under a name: scores, logits, a loss term.

        It is measured like the output of a module of that name, in the same iterations: its range,
        its headroom and its gradient are on the page, in metrics and in findings.
        In code that ``torch.compile`` compiles it breaks no graph, and measures values but no gradients. In a
        CUDA graph it measures at the capture and not in replays. It never raises
        into a training; under vmap, without gradients and once the monitor is closed it does nothing.

        Args:
            name: Its name, as in ``"blocks.3.scores"``; at most 256 names of a training are measured.
            tensor: A floating-point tensor of any shape, on any device.

        Returns:
            The same tensor.

        Cost: 1 us; in sampled iterations that of an output of a module.
        """
        # Asked here: what is compiled runs without gradients of its own, and a compiler takes the answer down.
        if not torch.is_grad_enabled():
            return tensor
        if torch.compiler.is_compiling():
            if isinstance(name, str) and isinstance(tensor, torch.Tensor):
                probe_op.probe(tensor, name, self._number)
        elif not self._closed:
            self._session.probed(name, tensor)
        return tensor

    def op_table(self, by: By = "op") -> str:
        """Return which ops ran in which dtype, and why, as a table for a terminal.

        Of the newest iteration whose ops were counted: at ``deep`` each of the first 32, otherwise
        some, and those of profiler windows; see the setting ``op_census``.

        Args:
            by: Group ops by: ``op``, ``module`` or ``dtype``.

        Raises:
            ValueError: If it is something else.
        """
        if by not in GROUPINGS:
            hint = did_you_mean(by, GROUPINGS)
            msg = f"expected `by` to be {', '.join(GROUPINGS)}, got {by!r}{hint}"
            raise ValueError(msg)
        self._session.catch_up()
        census = self._session.census
        return NO_CENSUS if census is None else render_ops(census, by)

    def error_budget(self, *args: Any, **kwargs: Any) -> Any:
        """Return ``ampwatch.lab.error_budget(watch, ...)``, which takes its place in the next release."""
        return laboratory.load("api").error_budget(self, *args, **kwargs)

    def plan(self, **kwargs: Any) -> Any:
        """Return ``ampwatch.lab.plan(watch, ...)``, which takes its place in the next release."""
        return laboratory.load("api").plan(self, **kwargs)

    @property
    def part(self) -> Part | None:
        """The laboratory of this training, for ``ampwatch.lab``; ``None`` if it is off."""
        return self._session.part

    def close(self) -> None:
        """Remove all hooks and patches, and close the ring. Idempotent; findings stay readable."""
        self._close(RunState.FINISHED, "")

    def _watches(self, *things: object) -> bool:
        """Return whether one of these was handed to ``ampwatch.monitor``, and this came of it."""
        if self._closed or self._is_unasked:
            return False
        mine = [*self.models, self._scaler, self._loss_scaler]
        return any(thing is one for thing in things for one in mine if one is not None)

    def __enter__(self) -> Self:
        self._require_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._traceback = traceback_of(error)
        self._end(error)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"open, step {self._session.diagnosis.last_step.step}"
        return (
            f"<ampwatch.Monitor run={self.identity.run!r} rank={self.identity.rank} {state}"
            f" {self.url}>"
        )

    @property
    def _diagnosis(self) -> Diagnosis:
        self._session.catch_up()
        return self._session.diagnosis

    def _not_seen(self) -> list[str]:
        """Return, in sentences, what was not observed or kept."""
        return [*self._session.not_seen(), *self._outlet.not_kept()]

    def _describe(self, box: Box) -> None:
        """Add to a report what is not in the records."""
        session = self._session
        box.settings = {f.name: getattr(self.settings, f.name) for f in fields(self.settings)}
        box.notes = [*report_lines(session.census, session.window), *self._not_seen()]
        box.traceback = self._traceback
        if session.part is not None:
            session.part.describe(box)

    def _require_open(self) -> None:
        if self._closed and self.settings.level != "off":
            raise StateError(CLOSED)

    def _close(self, state: RunState, reason: str) -> None:
        if self._closed:
            return
        try:
            # Before anything is taken off: a callback may call close() again while findings are
            # drained.
            self._closed = True
            # Sensors go last: values of the newest iterations are still on their way to the host.
            self._session.drain()
            self._leave(state, reason)
        except BaseException:
            # All of it once more: an interrupt may have come anywhere, and close() does nothing
            # now.
            self._leave(state, reason)
            raise

    def _leave(self, state: RunState, reason: str) -> None:
        """Take everything off. Idempotent."""
        self._forget_process()
        self._session.remove()
        self._outlet.close(state, reason)
        if self._live is not None:
            self._drawing.run(self._live.draw)

    def _forget_process(self) -> None:
        """Have the process not know of this monitor any more. Idempotent."""
        # Bound methods compare equal, which is all that unregister asks for.
        atexit.unregister(self._at_exit)
        if self._at_end is not None:
            self._at_end.cancel()
        if self in _open:
            _open.remove(self)

    def _end(self, error: BaseException | None) -> None:
        if not self._closed:
            self._session.ended_by(error)
        self._close(*_how_it_ended(error))

    def _at_exit(self) -> None:
        # The interpreter leaves an uncaught exception here before it runs us; an
        # interactive one leaves there every error the user has ever made.
        error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None) or _in_flight()
        self._traceback = traceback_of(error)
        self._end(error)

    def _make_room_for(self, targets: Targets) -> None:
        """Close if the watched models are gone, or if one of them is asked for again."""
        if self._is_unasked and self.num_asked_for:
            self.close()
            return
        # Weak references: a notebook that has replaced its model frees it by that, and its monitor is
        # closed when the next one comes.
        mine = [reference() for reference in self._models]
        asked = [x for x in (targets.scaler, targets.loss_scaler, *targets.models) if x is not None]
        shared = [x for x in asked if any(x is y for y in (self._scaler, self._loss_scaler, *mine))]
        if shared and not self._is_unasked:
            logger.warning(
                "%r was watching this %s already; that monitor is closed now. Use"
                " `with ampwatch.monitor(...)` or close() where a training ends",
                self,
                type(shared[0]).__qualname__,
            )
        if shared or (mine and not any(model is not None for model in mine)):
            self.close()


_FORMATS: dict[str, Callable[[list[Box]], str]] = {
    "text": render_boxes,
    "json": render_json,
    "html": render_html,
}
"""The formats of a report."""


def _in_flight() -> BaseException | None:
    """Return the exception that is about to end a process of multiprocessing."""
    error = sys.exc_info()[1]
    if isinstance(error, SystemExit) and error.code and error.__context__ is not None:
        return error.__context__  # torch.multiprocessing.spawn has kept it for the parent
    return error


def _how_it_ended(error: BaseException | None) -> tuple[RunState, str]:
    # Without an exception in sight the program may still end by sys.exit(1): its exit
    # status is not to be had from inside.
    if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
        return RunState.FINISHED, ""
    if isinstance(error, KeyboardInterrupt):
        return RunState.FINISHED, "interrupted from the keyboard"
    return RunState.FAILED, words_of(error)


def _identity(settings: Settings) -> RunIdentity:
    rank, local_rank, world_size = ranks()
    return RunIdentity(
        run=settings.run_name,
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        pid=os.getpid(),
        host=socket.gethostname(),
        started_ns=time.time_ns(),
        version=__version__,
    )
