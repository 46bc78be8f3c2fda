"""Hands numbers and findings to a logger, from a thread that training never waits for."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct

from ampwatch.guard import Log
from ampwatch.numerics.exponents import nearest_exponent
from ampwatch.report.one_line import one_line, printable
from ampwatch.training.actions.base import Action
from ampwatch.training.arguments import check_count, check_flag
from ampwatch.training.courier import Courier
from ampwatch.training.finding_log import is_worth_a_line
from ampwatch.training.loggers.sinks import (
    ClosedError,
    Exponents,
    Note,
    Point,
    Summary,
    recognised,
)
from ampwatch.wire.blackbox.exception import words_of
from ampwatch.wire.records import ALL_MODULES, Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ampwatch.diagnosis.news import News
    from ampwatch.guard import Guard
    from ampwatch.training.loggers.sinks import Sink
    from ampwatch.wire.records import RangeRecord, RunIdentity

logger = Log()

QUEUE_SIZE = 64
"""What may wait for a logger that is slow."""

KEPT_FOR_FINDINGS = 16
"""Places of these that points leave free: there will be another point, but not that finding."""

EXPONENTS = "amp/gradient_exponents"
"""Key of the histogram of all gradients; that of a module has its name behind it."""

ROOT = "(root)"
"""What the module without a name is called there."""

CLOSE_SECONDS = 5.0
"""How long the end waits for a logger."""

Parcel = Point | Note | Summary


class Source(Struct, frozen=True):
    """Where the numbers come from. None of it waits for a device.

    Attributes:
        metrics: The newest numbers.
        summary: These and the totals.
        gradients: The newest measurement of gradients, of all together first and then of each module;
            empty before it.
        page: Address of the page, with nothing secret in it; empty without one.
    """

    metrics: Callable[[], dict[str, float]]
    summary: Callable[[], dict[str, float]]
    gradients: Callable[[], Sequence[RangeRecord]]
    page: Callable[[], str]


class LoggingAction(Action):
    """What ``watch.log_to`` has made.

    Args:
        given: The logger.
        every: Iterations from one point to the next.
        source: Where the numbers come from.
        guard: Keeps what fails here from training.
        by_module: Whether a logger that shows histograms gets one of each module as well.
        clock: Unix time. Unit: s.
        close_seconds: How long the end waits. Unit: s.

    Raises:
        SettingsError: If the logger is none that is known, ``every`` is no count, or ``by_module``
            no yes or no.

    Attributes:
        given: The logger as it was handed over.
        every: Iterations from one point to the next.
        by_module: Whether there are histograms of each module.
    """

    min_severity: ClassVar[Severity] = Severity.WARNING
    wants_safe_point: ClassVar[bool] = True

    def __init__(
        self,
        given: Any,
        every: int,
        source: Source,
        guard: Guard,
        *,
        by_module: bool = False,
        clock: Callable[[], float] = time.time,
        close_seconds: float = CLOSE_SECONDS,
    ) -> None:
        check_count("every", every, least=1)
        self.given = given
        self.every = int(every)
        self.by_module = check_flag("by_module", by_module)
        self._sink: Sink = recognised(given)
        self._source = source
        self._guard = guard
        self._clock = clock
        self._close_s = close_seconds
        self._courier: Courier[Parcel] = Courier("ampwatch-log-to", self._hand_over, QUEUE_SIZE)
        self._pid = os.getpid()
        self._run = ""
        self._settled = 0
        self._newest = -1
        self._measured = -1
        self._is_off = False
        self._has_ended = False

    @property
    def dropped(self) -> int:
        """Points and findings that the logger was too slow for."""
        return self._courier.dropped

    def __repr__(self) -> str:
        return f"log_to({self._sink.name})"

    def open(self, identity: RunIdentity) -> None:
        """Note whose numbers they are, and start the thread: at exit none can be started."""
        self._run = identity.run
        self._courier.start()

    def notify(self, news: News) -> None:
        """Hand over what the log has a line about. Never waits."""
        if is_worth_a_line(news):
            self._guard.run(self._note, news)

    def settle(self, step: int) -> None:
        """Hand over the numbers if it is time; iteration ``step`` has closed. Never waits.

        Cost: a comparison in most iterations.
        """
        if (step + 1) // self.every > self._settled:
            self._settled = (step + 1) // self.every
            self._guard.run(self._point)

    def close(self) -> None:
        """Hand over the last numbers and the summary, and wait for the logger, but not for long."""
        if self._pid != os.getpid():
            return
        until = time.monotonic() + self._close_s
        if not self._has_ended:
            self._has_ended = True
            self._guard.run(self._last_words)
        given_up = self._courier.close(max(0.0, until - time.monotonic()))
        if given_up is not None:
            logger.warning(
                "%r: the logger did not take the last points within %g s; %d and those in transit are"
                " lost",
                self,
                self._close_s,
                given_up,
            )
        if self.dropped:
            logger.warning("%r: points and findings that were dropped: %d", self, self.dropped)

    def _point(self) -> None:
        if self._is_off or self._pid != os.getpid():
            return
        values = self._source.metrics()
        step = int(values.get("amp/step", -1))
        if step <= self._newest:
            return  # nothing new has arrived
        self._newest = step
        point = Point(step, self._clock(), values, self._exponents())
        self._put(point, spare=KEPT_FOR_FINDINGS)

    def _exponents(self) -> tuple[Exponents, ...]:
        """Return the exponents of gradients where they have been measured anew."""
        records = self._source.gradients()
        if not records or records[0].step <= self._measured:
            return ()
        self._measured = records[0].step
        wanted = records if self.by_module else records[:1]
        return tuple(_plain(record) for record in wanted if record.histogram.counts)

    def _note(self, news: News) -> None:
        if self._is_off or self._pid != os.getpid():
            return
        finding = news.finding
        text = one_line(news, self._run, (), self._source.page(), of=1)
        advice = printable(finding.advice)
        self._put(
            Note(
                finding.key,
                finding.kind,
                finding.severity,
                finding.last_step,
                self._clock(),
                text,
                advice,
            )
        )

    def _put(self, parcel: Parcel, *, spare: int = 0, wait_s: float = 0.0) -> None:
        before = self._courier.dropped
        if not self._courier.put(parcel, spare=spare, wait_s=wait_s) and not before:
            logger.warning(
                "%r: the logger is slow or hangs: points that do not fit into the queue are dropped, training is"
                " not affected",
                self,
            )

    def _last_words(self) -> None:
        if self._is_off:
            return
        self._point()
        summary = Summary(self._newest, self._clock(), self._source.summary())
        self._put(summary, wait_s=self._close_s)

    def _hand_over(self, parcel: Parcel) -> None:
        """Hand over a parcel, on the thread of the logger. The first exception is the last."""
        if self._is_off:
            return
        try:
            if isinstance(parcel, Point):
                self._sink.log(parcel)
            elif isinstance(parcel, Note):
                self._sink.tell(parcel)
            else:
                self._sink.end(parcel)
        except (Exception, SystemExit) as error:
            self._is_off = True
            what = str(error) if isinstance(error, ClosedError) else printable(words_of(error))
            trace = error if self._sink.wants_traceback else None
            logger.warning(
                "%r: the logger failed: %s; it gets no more points, training is not affected",
                self,
                what,
                exc_info=trace,
            )


def _plain(record: RangeRecord) -> Exponents:
    """Return exponents without the loss scale."""
    scale, histogram = record.loss_scale, record.histogram
    plain = histogram.shifted(-nearest_exponent(scale)) if scale > 0 else histogram
    name = "" if record.module == ALL_MODULES else f"/{record.module or ROOT}"
    return Exponents(EXPONENTS + name, record.step, plain.first, plain.counts)
