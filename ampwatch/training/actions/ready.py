"""Ready answers to a finding, for ``watch.on_finding``: log, webhook, checkpoint, stop.

::

    watch.on_finding(actions.webhook("https://hooks.example.com/..."))
    watch.on_finding(actions.checkpoint(save), min_severity="critical")
    watch.on_finding(actions.stop(), kinds=["param_nonfinite"])

None of them changes what the training computes. Only ``stop`` ends it, and only if asked to.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, ClassVar

from ampwatch.errors import SettingsError, StopTraining
from ampwatch.guard import Log, is_of_a_signal
from ampwatch.report.one_line import level_of, one_line
from ampwatch.training.actions.base import Action, makes_callback
from ampwatch.training.actions.webhook import Webhook
from ampwatch.training.arguments import check_callable, check_count, check_headers, check_number
from ampwatch.wire.records import Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ampwatch.diagnosis.news import News
    from ampwatch.training.actions.base import Callback
    from ampwatch.wire.records import Finding, RunIdentity

__all__ = ["checkpoint", "log", "stop", "webhook"]

logger = Log()


@makes_callback
def log(target: logging.Logger | str) -> Action:
    """Write each finding to a logger of yours, in one line, ``info`` ones included.

    The record carries the finding as ``record.finding``. Each rank writes for itself. ampwatch writes
    warnings and critical findings to the logger ``ampwatch`` anyway.

    Args:
        target: The logger, or its name.

    Returns:
        What ``on_finding`` takes.

    Raises:
        SettingsError: If it is neither.
    """
    given: Any = target
    if not isinstance(given, (str, logging.Logger, logging.LoggerAdapter)):
        msg = f"`target`: expected a logger or its name, got {target!r}; write actions.log('my.logger')"
        raise SettingsError(msg)
    return _Log(logging.getLogger(target) if isinstance(target, str) else target)


@makes_callback
def webhook(
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    timeout_seconds: float = 5.0,
    retries: int = 3,
    backoff_seconds: float = 1.0,
    queue_size: int = 64,
    close_seconds: float = 5.0,
) -> Webhook:
    """Post each finding as JSON, ``warning`` and worse unless ``on_finding`` says otherwise.

    From a thread of its own; training never waits for it. docs/callbacks.md describes the body and what is
    tried again.

    Args:
        url: ``http://`` or ``https://``. Only its scheme and host are ever logged.
        headers: Further headers, as ``Authorization``. Never logged.
        timeout_seconds: Timeout of each stage of a request. Unit: s.
        retries: How often one finding is tried again.
        backoff_seconds: Pause before the first of these; it doubles each time. Unit: s.
        queue_size: Findings that may wait; more are dropped and counted.
        close_seconds: How long ``close()`` waits for what is left. Unit: s.

    Returns:
        What ``on_finding`` takes; it counts ``sent``, ``retried``, ``failed`` and ``dropped``.

    Raises:
        SettingsError: If an argument is not usable.

    Cost:
        About 50 us a finding on the training thread.
    """
    check_count("retries", retries, least=0)
    check_count("queue_size", queue_size, least=1)
    check_number("backoff_seconds", backoff_seconds, least=0)
    check_number("close_seconds", close_seconds, least=0)
    check_number("timeout_seconds", timeout_seconds, above=0)
    return Webhook(
        url,
        headers=check_headers(headers),
        timeout_seconds=timeout_seconds,
        retries=retries,
        backoff_seconds=backoff_seconds,
        queue_size=queue_size,
        close_seconds=close_seconds,
    )


@makes_callback
def checkpoint(save: Callback, *, min_steps: int = 100) -> Action:
    """Have ``save(finding)`` called between two iterations, on the training thread.

    For ``warning`` and worse unless ``on_finding`` says otherwise. What is saved may be broken already: do
    not overwrite the last good file. An exception of ``save`` is logged, and training goes on.

    Args:
        save: Your function. It may read model, optimizer and scaler, and write them.
        min_steps: Least iterations from one call to the next, which gets the worst finding made meanwhile.

    Returns:
        What ``on_finding`` takes.

    Raises:
        SettingsError: If an argument is not usable.
    """
    check_callable("save", save, "write checkpoint(lambda finding: ...)")
    check_count("min_steps", min_steps, least=0)
    return _Checkpoint(save, min_steps)


@makes_callback
def stop() -> Action:
    """End the training by an exception, ``ampwatch.StopTraining``.

    For ``critical`` findings unless ``on_finding`` says otherwise. It is raised at the end of the call that
    ends an iteration, ``scaler.update()`` or, without a scaler, ``optimizer.step()``: an ``except
    ampwatch.StopTraining`` around the loop may save model, optimizer and scaler. In a distributed run
    torchrun then ends the other ranks.

    Returns:
        What ``on_finding`` takes.
    """
    return _Stop()


class _Log(Action):
    """Writes lines like those of ampwatch's own logger."""

    def __init__(self, out: logging.Logger | logging.LoggerAdapter[Any]) -> None:
        self._out = out
        self._run = ""
        self._ranks: list[int] = []

    def __repr__(self) -> str:
        return f"log({self._out!r})"

    def open(self, identity: RunIdentity) -> None:
        self._run = identity.run
        self._ranks = [identity.rank] if identity.world_size > 1 else []

    def notify(self, news: News) -> None:
        line = one_line(news, self._run, self._ranks)
        extra = {"finding": news.finding}
        Log(self._out).log(level_of(news), "%s", line, extra=extra)


class _Checkpoint(Action):
    """Holds the worst finding until the next safe point that is far enough from the last call."""

    min_severity: ClassVar[Severity] = Severity.WARNING
    wants_safe_point: ClassVar[bool] = True

    def __init__(self, save: Callable[[Finding], object], min_steps: int) -> None:
        self._save = save
        self._min_steps = min_steps
        self._pending: Finding | None = None
        self._not_before = 0

    def __repr__(self) -> str:
        return f"checkpoint({self._save!r})"

    def open(self, identity: RunIdentity) -> None:  # noqa: ARG002 - any run will do
        self._pending = None
        self._not_before = 0

    def notify(self, news: News) -> None:
        pending, finding = self._pending, news.finding
        is_critical = finding.severity is Severity.CRITICAL
        if pending is None or (pending.severity is Severity.WARNING and is_critical):
            self._pending = finding

    def settle(self, step: int) -> None:
        if self._pending is not None and step >= self._not_before:
            self._not_before = step + self._min_steps
            self._hand_over()

    def close(self) -> None:
        # Findings of the last iterations come while the monitor is being closed; no safe point follows.
        if self._pending is not None:
            self._hand_over()

    def _hand_over(self) -> None:
        finding, self._pending = self._pending, None
        try:
            if finding is not None:
                self._save(finding)
        except (
            Exception
        ) as error:  # of the user's own function, whatever it is: no reason to end a training
            if is_of_a_signal(error):
                raise
            logger.exception(
                "%r failed; training is not affected, and the next finding calls it again", self
            )


class _Stop(Action):
    """Raises at the safe point after the first finding."""

    min_severity: ClassVar[Severity] = Severity.CRITICAL
    wants_safe_point: ClassVar[bool] = True

    def __init__(self) -> None:
        self._pending: Finding | None = None

    def __repr__(self) -> str:
        return "stop()"

    def open(self, identity: RunIdentity) -> None:  # noqa: ARG002 - any run will do
        self._pending = None

    def notify(self, news: News) -> None:
        if self._pending is None:
            self._pending = news.finding

    def settle(self, step: int) -> StopTraining | None:
        finding, self._pending = self._pending, None
        return None if finding is None else StopTraining(finding, step)
