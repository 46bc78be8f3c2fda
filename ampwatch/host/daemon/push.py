"""The thread that pushes the metrics by OTLP: when it sends, what it says when it cannot.

A collector that is away, hangs or refuses costs one line in the log, and is tried again at the
next interval. Nothing waits for the thread: neither the rings, nor a scrape, nor the end.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from ampwatch.errors import DaemonError
from ampwatch.host.fleet.passes import CollectorPass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ampwatch.host.fleet import Fleet

NAME = "otlp"
"""Value of the label ``collector``."""

BASE = "OTEL_EXPORTER_OTLP_ENDPOINT"
SIGNAL = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
"""The standard variables of where to send: ``/v1/metrics`` is added to the first."""

DEFAULT_BASE = "http://localhost:4318"
"""Where a collector listens, by the specification."""

INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"
DEFAULT_INTERVAL_SECONDS = 60.0
"""The standard variable of the time between two pushes, in ms, and what holds without it. Unit: s."""

PATH = "/v1/metrics"

MAX_POINTS = 10_000
"""Points of one request. Collectors refuse bodies over 20 MB, which some 100 000 points are."""

STOP_SECONDS = 2.0
"""Time that the end of the daemon waits for the last push. Unit: s."""

EXPORTER_LOGGER = "opentelemetry.exporter.otlp.proto.http.metric_exporter"

logger = logging.getLogger(__name__)


class Outlet(Protocol):
    """What sends, as ``OTLPMetricExporter`` does."""

    def send(self) -> str:
        """Send everything as it is now; return why that failed, empty if it did not."""

    def close(self) -> None:
        """End a sending that waits to try again."""


class Pusher:
    """Sends at every interval, from a thread of its own.

    Args:
        fleet: Its lock guards ``passes``.
        passes: Where it is noted how a push went.
        outlet: What sends.
        target: Where to, for the log.
        interval_seconds: Time between the beginnings of two pushes. Unit: s.
        clock: A clock that never goes back. Unit: s.
    """

    def __init__(
        self,
        fleet: Fleet,
        passes: dict[str, CollectorPass],
        outlet: Outlet,
        target: str,
        interval_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fleet = fleet
        self._passes = passes
        self._outlet = outlet
        self._target = target
        self._interval_seconds = interval_seconds
        self._clock = clock
        self._failed = False
        self._stopping = threading.Event()
        # A daemon thread: a collector that hangs must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="ampwatch-otlp", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        logger.info("metrics go to %s every %g s", self._target, self._interval_seconds)
        self._thread.start()

    def stop(self) -> None:
        """Send the last values, unless that takes long or the push before has failed."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)
        self._outlet.close()

    def update(self) -> None:
        """Send once."""
        begin = self._clock()
        try:
            problem = self._outlet.send()
        except Exception as error:
            # A boundary: nothing may end the thread, which nobody would start again.
            logger.debug("a push failed", exc_info=True)
            problem = f"{type(error).__name__}: {error!s:.200}"
        with self._fleet.lock:
            self._passes[NAME] = CollectorPass(not problem, self._clock() - begin)
        # Said once, whatever the reason becomes: a collector that starts fails in several ways.
        if problem and not self._failed:
            logger.warning(
                "%s takes no metrics (tried again until it does): %s", self._target, problem
            )
        elif self._failed and not problem:
            logger.info("%s takes metrics again", self._target)
        self._failed = bool(problem)

    def _run(self) -> None:
        while not self._stopping.is_set():
            begin = self._clock()
            self.update()
            self._stopping.wait(max(self._interval_seconds - (self._clock() - begin), 0.0))
        if not self._failed:
            self.update()


class _Reasons(logging.Filter):
    """Takes what the exporter would log of each try, so that one line can say it once."""

    def __init__(self) -> None:
        super().__init__()
        self.newest = ""

    def filter(self, record: logging.LogRecord) -> bool:
        self.newest = record.getMessage()
        return False


class _Exporter:
    """An outlet that is OpenTelemetry's own exporter.

    Args:
        exporter: An ``OTLPMetricExporter``.
        take: Returns what is to be sent.
    """

    def __init__(self, exporter: Any, take: Callable[[], Any]) -> None:
        self._exporter = exporter
        self._take = take
        self._reasons = _Reasons()
        logging.getLogger(EXPORTER_LOGGER).addFilter(self._reasons)

    def send(self) -> str:
        self._reasons.newest = ""
        if self._exporter.export(self._take()).name == "SUCCESS":
            return ""
        return self._reasons.newest or "no reason was given"

    def close(self) -> None:
        self._exporter.shutdown()
        logging.getLogger(EXPORTER_LOGGER).removeFilter(self._reasons)


def open_pusher(
    fleet: Fleet, passes: dict[str, CollectorPass], url: str, instance: str, host: str
) -> Pusher:
    """Return what pushes the metrics of ``fleet``, not yet started.

    Args:
        fleet: What is exported.
        passes: The newest pass of each of the daemon's collectors, by name.
        url: Base address of the receiver; empty for what the standard variables say.
        instance: ``host:port`` of this daemon.
        host: Name of this machine.

    Raises:
        DaemonError: If the packages are not there, or a wish makes no sense.
    """
    endpoint = endpoint_of(url, os.environ)
    interval_seconds = interval_of(os.environ)
    try:
        otlp = import_module("ampwatch.host.metrics.otlp")
        package = import_module("opentelemetry.exporter.otlp.proto.http.metric_exporter")
    except ImportError as error:
        msg = f"`--otlp`: expected the packages of OpenTelemetry, found no {error.name!r}; pip install 'ampwatch[otlp]'"
        raise DaemonError(msg) from error
    try:
        exporter = package.OTLPMetricExporter(endpoint, max_export_batch_size=MAX_POINTS)
    except (OSError, ValueError) as error:
        # A certificate that cannot be read, a compression that is none.
        msg = f"`--otlp`: expected variables OTEL_EXPORTER_OTLP_* that can be used, got {error}"
        raise DaemonError(msg) from error
    snapshots = otlp.Snapshots(fleet, passes, otlp.resource(instance, host), time.time_ns)
    outlet = _Exporter(exporter, snapshots.take)
    return Pusher(fleet, passes, outlet, without_password(endpoint), interval_seconds)


def endpoint_of(url: str, environment: Mapping[str, str]) -> str:
    """Return the address to post to.

    Args:
        url: Base address, or the whole one that ends in ``/v1/metrics``; empty if not given.
        environment: Holds the standard variables, which are asked without it.

    Raises:
        DaemonError: If it is no address of HTTP.
    """
    whole = environment.get(SIGNAL, "") if not url else ""
    base = url or environment.get(BASE, "") or DEFAULT_BASE
    endpoint = whole or (base if base.endswith(PATH) else base.rstrip("/") + PATH)
    try:
        parts = urlsplit(endpoint)
        is_usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none, half an IPv6 address
        is_usable = False
    if not is_usable:
        msg = f"`--otlp`: expected an address as {DEFAULT_BASE}, got {(whole or base)!r}"
        raise DaemonError(msg)
    return endpoint


def interval_of(environment: Mapping[str, str]) -> float:
    """Return the time between two pushes. Unit: s.

    Raises:
        DaemonError: If the standard variable is no time.
    """
    given = environment.get(INTERVAL, "").strip()
    if not given:
        return DEFAULT_INTERVAL_SECONDS
    # Digits alone, as the specification has it: no sign, no fraction, no "nan".
    if not (given.isascii() and given.isdigit() and 0 < len(given) <= 9 and int(given)):
        msg = f"{INTERVAL}: expected a time in ms above 0, got {given!r}"
        raise DaemonError(msg)
    return int(given) / 1000


def without_password(url: str) -> str:
    """Return an address as it may stand in a log."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()
