"""Tests of the push by OTLP: a real daemon against a receiver that reads the protocol."""

from __future__ import annotations

import logging
import socket
import sys

import pytest

from ampwatch.errors import DaemonError
from ampwatch.host.daemon.app import Daemon, DaemonOptions
from ampwatch.host.daemon.push import (
    BASE,
    LOGS_EXPORTER,
    LOGS_SIGNAL,
    NAME,
    SIGNAL,
    Pusher,
    endpoints_of,
    interval_of,
    open_pusher,
    without_password,
)
from ampwatch.host.fleet import Fleet
from ampwatch.host.fleet.fleet import CollectorPass
from ampwatch.settings import Settings
from tests.host.daemon.collector import collecting, metrics_of, received_values
from tests.host.daemon.parts import Place, eventually
from tests.workshop.fleets import made_up_fleet


def test_a_daemon_pushes_the_steps_of_a_run_and_says_who_it_is(place: Place) -> None:
    """All other values of a scrape are compared in ``tests/host/metrics/test_otlp.py``."""
    with (
        collecting() as collector,
        place.writer("gpt") as writer,
        place.daemon(
            "--otlp", collector.url, "--no-gpu", OTEL_METRIC_EXPORT_INTERVAL="200"
        ) as daemon,
    ):
        for _ in range(3):
            writer.do("step")
        key = ("ampwatch_steps_total", frozenset({("run", "gpt"), ("rank", "0")}))
        eventually(lambda: received_values(collector.requests[-1:]).get(key) == 3, "three steps")
        # The pass of the push itself is in the scrape as soon as one is done.
        eventually(lambda: 'collector="otlp"' in daemon.ask("/metrics").text, "the pass")

    assert collector.newest().path == "/v1/metrics"
    (resource,) = collector.newest().content.resource_metrics
    attributes = {a.key: a.value.string_value for a in resource.resource.attributes}
    host = socket.gethostname()
    assert attributes["service.name"] == "ampwatch"
    assert attributes["service.instance.id"] == f"{host}:{daemon.info.port}"


def test_the_standard_variables_say_where_how_and_how_often(place: Place) -> None:
    """Long before the next interval the last values are sent: a run of a minute is not lost with its daemon."""
    with (
        collecting() as collector,
        place.daemon(
            "--otlp",
            "--no-gpu",
            OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=f"{collector.url}/api/v1/otlp/v1/metrics",
            OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9",
            OTEL_EXPORTER_OTLP_HEADERS="x-scope-orgid=lab%20one",
            OTEL_EXPORTER_OTLP_COMPRESSION="gzip",
            OTEL_METRIC_EXPORT_INTERVAL="3600000",
        ) as daemon,
    ):
        eventually(lambda: collector.requests, "the first push")
        daemon.process.terminate()
        daemon.process.wait(60)

    assert len(collector.requests) == 2
    request = collector.newest()
    assert request.path == "/api/v1/otlp/v1/metrics"
    assert {k.lower(): v for k, v in request.headers.items()}["x-scope-orgid"] == "lab one"
    assert metrics_of(request.content)


def test_a_daemon_without_the_wish_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables that are there for another program of the job are no wish."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    daemon = Daemon(Settings.resolve({"port": 0}), DaemonOptions())
    daemon._server.server_close()

    assert daemon._pusher is None


@pytest.mark.rotating
def test_a_collector_that_hangs_delays_neither_a_scrape_nor_the_end(place: Place) -> None:
    """The push waits in its own thread, which nobody waits for."""
    with collecting() as collector:
        collector.answers.clear()
        never = {"OTEL_METRIC_EXPORT_INTERVAL": "100", "OTEL_EXPORTER_OTLP_TIMEOUT": "600"}
        with place.daemon("--otlp", collector.url, "--no-gpu", **never) as daemon:
            eventually(lambda: collector.requests, "a push that hangs")
            with place.writer("gpt") as writer:
                writer.do("step")
                eventually(lambda: "gpt" in daemon.states(), "the run on the page")
            assert daemon.ask("/metrics").status == 200
            daemon.process.terminate()
            assert daemon.process.wait(60) == 0


class TestFailures:
    """What is said of a receiver that is away, and when."""

    def pusher(
        self, url: str, monkeypatch: pytest.MonkeyPatch, timeout_seconds: str = "60"
    ) -> tuple[Pusher, dict[str, CollectorPass]]:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", timeout_seconds)
        fleet = made_up_fleet()
        return open_pusher(fleet, url, "node1:1", "node1"), fleet.passes

    def test_a_receiver_that_is_away_costs_one_line_and_is_tried_again(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """And one line when it is back; the exporter's own lines are not logged."""
        caplog.set_level(logging.INFO)
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            port = held.getsockname()[1]
        # The exporter tries again for so long, with pauses.
        pusher, passes = self.pusher(f"http://127.0.0.1:{port}", monkeypatch, "0.5")

        pusher.update()
        pusher.update()

        (line,) = caplog.records
        assert line.levelno == logging.WARNING
        assert f"http://127.0.0.1:{port}/v1/metrics takes no metrics" in line.getMessage()
        assert not passes[NAME].success
        with collecting(port) as collector:
            eventually(lambda: pusher.update() or passes[NAME].success)
            assert len(received_values(collector.requests)) > 300
        assert passes[NAME].success
        assert caplog.records[-1].getMessage().endswith("takes metrics again")
        assert len(caplog.records) == 2
        pusher.stop()

    def test_findings_that_are_not_taken_are_sent_again_and_only_then(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A receiver of metrics alone, as Prometheus is, is said once, and is no push that fails."""
        with collecting() as collector:
            pusher, passes = self.pusher(collector.url, monkeypatch)
            collector.refused = "/v1/logs"
            pusher.update()
            pusher.update()
            refused, collector.refused = len(collector.logs), ""
            collector.logs.clear()
            pusher.update()
            pusher.update()
            pusher.stop()

        assert passes[NAME].success
        (line,) = (r.getMessage() for r in caplog.records if r.levelno == logging.WARNING)
        assert "/v1/logs takes no findings (tried again until it does)" in line
        assert "404" in line
        assert 0 < len(collector.logs) == refused / 2
        event = collector.logs[0]
        assert (event.event_name, event.severity_text) == ("ampwatch.finding", "critical")
        attributes = {a.key: a.value.string_value for a in event.attributes}
        assert {"run", "rank", "kind", "where"} <= attributes.keys()

    def test_a_fault_of_our_own_does_not_end_the_thread(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Nobody would start it again."""

        class Broken:
            what, target = "metrics", "http://there"
            sent = 0

            def send(self) -> str:
                self.sent += 1
                raise ZeroDivisionError

            def close(self) -> None:
                pass

        outlet = Broken()
        pusher = Pusher(Fleet(Settings()), [outlet], 0.01)
        pusher.start()
        eventually(lambda: outlet.sent > 3, "more tries")
        pusher.stop()

        warnings = [r for r in caplog.records if r.levelno == logging.WARNING]
        assert len(warnings) == 1
        assert "ZeroDivisionError" in warnings[0].getMessage()

    def test_large_fleets_go_in_several_requests(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A collector refuses a body over 20 MB; nothing is lost between two of them."""
        monkeypatch.setattr("ampwatch.host.daemon.push.MAX_POINTS", 100)
        with collecting() as collector:
            pusher, passes = self.pusher(collector.url, monkeypatch)
            pusher.update()
            pusher.stop()

        assert passes[NAME].success
        assert len(collector.requests) > 3
        assert len(received_values(collector.requests)) > 300


@pytest.mark.parametrize(
    ("url", "environment", "metrics", "logs"),
    [
        ("", {}, "http://localhost:4318/v1/metrics", "http://localhost:4318/v1/logs"),
        ("http://c:4318/", {}, "http://c:4318/v1/metrics", "http://c:4318/v1/logs"),
        ("http://c/v1/metrics", {}, "http://c/v1/metrics", "http://c/v1/logs"),
        ("https://p/api/v1/otlp", {}, "https://p/api/v1/otlp/v1/metrics", "https://p/api/v1/otlp/v1/logs"),
        ("", {BASE: "http://e:1"}, "http://e:1/v1/metrics", "http://e:1/v1/logs"),
        ("", {SIGNAL: "http://m/x"}, "http://m/x", ""),
        ("", {SIGNAL: "http://m/x", LOGS_SIGNAL: "http://l/x"}, "http://m/x", "http://l/x"),
        ("http://c", {SIGNAL: "http://m/x", LOGS_SIGNAL: "http://l"}, "http://c/v1/metrics", "http://c/v1/logs"),
        ("http://c", {LOGS_EXPORTER: "none"}, "http://c/v1/metrics", ""),
    ],
)  # fmt: skip
def test_the_address_is_what_is_given_first(
    url: str, environment: dict[str, str], metrics: str, logs: str
) -> None:
    """The option, the variable of a signal, that of all, a collector beside it; events nowhere if that is not known."""
    assert endpoints_of(url, environment) == (metrics, logs)


@pytest.mark.parametrize(
    "url", ["collector:4318", "grpc://c:4317", "http://", "http://c:x", "http://[::1"]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    """At the start, by name: later it would be a line in a log."""
    with pytest.raises(DaemonError, match="expected an address as http"):
        endpoints_of(url, {})


def test_the_interval_is_the_standard_one() -> None:
    """A minute without it."""
    assert interval_of({}) == 60
    assert interval_of({"OTEL_METRIC_EXPORT_INTERVAL": "2500"}) == 2.5


@pytest.mark.parametrize("given", ["0", "-1", "1.5", "nan", "1e3", "9" * 5000, "\u0663"])
def test_an_interval_that_is_none_is_refused(given: str) -> None:
    """Instead of pushing without a pause, or never."""
    with pytest.raises(DaemonError, match="expected a time in ms above 0"):
        interval_of({"OTEL_METRIC_EXPORT_INTERVAL": given})


def test_a_password_in_the_address_is_not_logged() -> None:
    """Nor is a token in its query."""
    assert (
        without_password("https://me:secret@c:4318/v1/metrics?key=1") == "https://c:4318/v1/metrics"
    )


def test_without_the_extra_the_daemon_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence with the way out."""
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)

    with pytest.raises(DaemonError, match=r"pip install 'ampwatch\[otlp\]'"):
        Daemon(Settings.resolve({"port": 0}), DaemonOptions(otlp="http://127.0.0.1:9"))
