"""The thread that pushes metrics and findings by OTLP: when it sends, what it says when it cannot.

A collector that is away, hangs or refuses costs one line in the log, and is tried again at the
next interval. Nothing waits for the thread: neither the rings, nor a scrape, nor the end.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ampwatch.errors import DaemonError
from ampwatch.host.fleet.fleet import CollectorPass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ampwatch.host.fleet import Fleet

NAME = "otlp"
"""Value of the label ``collector``."""

BASE = "OTEL_EXPORTER_OTLP_ENDPOINT"
SIGNAL = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
PATH = "/v1/metrics"
"""The standard variables of where to send, and what is added to the first."""

DEFAULT_BASE = "http://localhost:4318"
"""Where a collector listens, by the specification."""

INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"
DEFAULT_INTERVAL_SECONDS = 60.0
"""The standard variable of the time between two pushes, in ms, and what holds without it. Unit: s."""

LOGS_SIGNAL = "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT"
LOGS_EXPORTER = "OTEL_LOGS_EXPORTER"
LOGS_PATH = "/v1/logs"
"""The standard variables of where events go, and that none are wanted (``none``)."""

MAX_POINTS = 10_000
"""Points of one request. Collectors refuse bodies over 20 MB, which some 100 000 points are."""

STOP_SECONDS = 2.0
"""Time that the end of the daemon waits for the last push. Unit: s."""

EXPORTERS = "opentelemetry.exporter.otlp.proto.http"
"""The package of the exporters, each of which logs by the name of its module."""

logger = logging.getLogger(__name__)


class Pusher:
    """Sends at every interval, from a thread of its own.

    Args:
        fleet: Where it is noted how a push of the first outlet went.
        outlets: What sends, one after the other until one of them fails.
        interval_seconds: Time between the beginnings of two pushes. Unit: s.
        clock: A clock that never goes back. Unit: s.
    """

    def __init__(
        self,
        fleet: Fleet,
        outlets: Sequence[Outlet],
        interval_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fleet = fleet
        self._outlets = outlets
        self._interval_seconds = interval_seconds
        self._clock = clock
        self._failed: set[str] = set()
        self._stopping = threading.Event()
        # A daemon thread: a collector that hangs must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="ampwatch-otlp", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        for outlet in self._outlets:
            logger.info(
                "%s go to %s every %g s", outlet.what, outlet.target, self._interval_seconds
            )
        self._thread.start()

    def stop(self) -> None:
        """Send the last values, unless that takes long or the push before has failed."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)
        for outlet in self._outlets:
            outlet.close()

    def update(self) -> None:
        """Send once."""
        begin = self._clock()
        metrics, *others = self._outlets
        is_sent = self._push(metrics)
        with self._fleet.lock:
            self._fleet.passes[NAME] = CollectorPass(is_sent, self._clock() - begin)
        # Events have no pass of their own: a receiver that takes metrics alone is none that fails.
        if is_sent:
            for outlet in others:
                self._push(outlet)

    def _push(self, outlet: Outlet) -> bool:
        """Send what an outlet has; return whether it has arrived."""
        try:
            problem = outlet.send()
        except Exception as error:
            # A boundary: nothing may end the thread, which nobody would start again.
            logger.debug("a push failed", exc_info=True)
            problem = f"{type(error).__name__}: {error!s:.200}"
        what, target = outlet.what, outlet.target
        # Logged once, whatever the reason becomes: a collector that starts fails in several ways.
        if problem and what not in self._failed:
            self._failed.add(what)
            logger.warning("%s takes no %s (tried again until it does): %s", target, what, problem)
        elif not problem and what in self._failed:
            self._failed.remove(what)
            logger.info("%s takes %s again", target, what)
        return not problem

    def _run(self) -> None:
        while not self._stopping.is_set():
            begin = self._clock()
            self.update()
            self._stopping.wait(max(self._interval_seconds - (self._clock() - begin), 0.0))
        if self._outlets[0].what not in self._failed:
            self.update()


class _Reasons(logging.Filter):
    """Takes what the exporter would log of each try, so that one line can say it once."""

    def __init__(self) -> None:
        super().__init__()
        self.newest = ""

    def filter(self, record: logging.LogRecord) -> bool:
        self.newest = record.getMessage()
        return False


class Outlet:
    """A way out of the daemon: one of OpenTelemetry's own exporters.

    Args:
        what: What it sends, in a word.
        target: Where to, for the log.
        exporter: An ``OTLPMetricExporter`` or ``OTLPLogExporter``.
        take: Returns what is to be sent; nothing is sent if that is empty.
        keep: Called once it has arrived.
    """

    def __init__(
        self,
        what: str,
        target: str,
        exporter: Any,
        take: Callable[[], Any],
        keep: Callable[[], object] = lambda: None,
    ) -> None:
        self.what = what
        self.target = without_password(target)
        self._exporter = exporter
        self._take = take
        self._keep = keep
        self._reasons = _Reasons()
        self._logger = logging.getLogger(type(exporter).__module__)
        self._logger.addFilter(self._reasons)

    def send(self) -> str:
        """Send everything as it is now; return why that failed, empty if it did not."""
        self._reasons.newest = ""
        taken = self._take()
        if taken and self._exporter.export(taken).name != "SUCCESS":
            return self._reasons.newest or "no reason was given"
        self._keep()
        return ""

    def close(self) -> None:
        """End a sending that waits to try again."""
        self._exporter.shutdown()
        self._logger.removeFilter(self._reasons)


def open_pusher(fleet: Fleet, url: str, instance: str, host: str) -> Pusher:
    """Return what pushes the metrics and findings of ``fleet``, not yet started.

    It sends to the base address ``url``, or where the standard variables say if that is empty, as the
    daemon at ``instance`` (``host:port``) on the machine ``host``.

    Raises:
        DaemonError: If the packages are not there, or a wish makes no sense.
    """
    endpoint, logs = endpoints_of(url, os.environ)
    interval_seconds = interval_of(os.environ)
    try:
        otlp = import_module("ampwatch.host.metrics.otlp")
        for_metrics = import_module(f"{EXPORTERS}.metric_exporter").OTLPMetricExporter
        for_logs = import_module(f"{EXPORTERS}._log_exporter").OTLPLogExporter
    except ImportError as error:
        msg = f"`--otlp`: expected the packages of OpenTelemetry, found no {error.name!r}; pip install 'ampwatch[otlp]'"
        raise DaemonError(msg) from error
    sender = otlp.resource(instance, host)
    snapshots = otlp.Snapshots(fleet, sender, time.time_ns)
    events = otlp.FindingEvents(fleet, sender, time.time_ns)
    try:
        exporter = for_metrics(endpoint, max_export_batch_size=MAX_POINTS)
        outlets = [Outlet("metrics", endpoint, exporter, snapshots.take)]
        if logs:
            exporter = for_logs(logs)
            outlets.append(Outlet("findings", logs, exporter, events.take, events.keep))
    except (OSError, ValueError) as error:
        # A certificate that cannot be read, a compression that is none.
        msg = f"`--otlp`: expected variables OTEL_EXPORTER_OTLP_* that can be used, got {error}"
        raise DaemonError(msg) from error
    return Pusher(fleet, outlets, interval_seconds)


def endpoints_of(url: str, environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the address to post metrics to, and that of events; empty if none are wanted, or it is not known.

    Args:
        url: Base address, or the whole one that ends in ``/v1/metrics``; empty if not given.
        environment: Holds the standard variables, which are asked without it.

    Raises:
        DaemonError: If one is no address of HTTP.
    """
    whole = environment.get(SIGNAL, "") if not url else ""
    base = url or environment.get(BASE, "") or DEFAULT_BASE
    endpoint = _checked(whole or (base if base.endswith(PATH) else base.rstrip("/") + PATH))
    if environment.get(LOGS_EXPORTER, "").strip().lower() == "none":
        return endpoint, ""
    if not url and environment.get(LOGS_SIGNAL):
        return endpoint, _checked(environment[LOGS_SIGNAL])
    beside = endpoint.removesuffix(PATH) + LOGS_PATH
    return endpoint, beside if endpoint.endswith(PATH) else ""


def _checked(endpoint: str) -> str:
    try:
        parts = urlsplit(endpoint)
        is_usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none, half an IPv6 address
        is_usable = False
    if not is_usable:
        msg = f"`--otlp`: expected an address as {DEFAULT_BASE}, got {endpoint!r}"
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
