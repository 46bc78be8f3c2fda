"""A receiver of OTLP over HTTP for tests: reads the protobuf of the protocol, keeps what came."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import HistogramDataPoint, NumberDataPoint
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric as Received
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.utils import floatToGoString

from tests.workshop.servers import Quiet, answering

Values = dict[tuple[str, frozenset[tuple[str, str]]], float]
"""Value of each series, by its name and the labels that are not empty."""


class Request(NamedTuple):
    path: str
    headers: Mapping[str, str]
    content: ExportMetricsServiceRequest


class Collector:
    """What a receiver has taken, and how it answers."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.logs: list[LogRecord] = []
        self.status = 200
        self.refused = ""
        self.answers = threading.Event()
        self.answers.set()
        self.url = ""

    def newest(self) -> Request:
        return self.requests[-1]


@contextmanager
def collecting(port: int = 0) -> Iterator[Collector]:
    """Serve on loopback until the block ends."""
    collector = Collector()

    class Handler(Quiet, BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers["Content-Encoding"] == "gzip":
                body = gzip.decompress(body)
            if self.path.endswith("/v1/logs"):
                for resource in ExportLogsServiceRequest.FromString(body).resource_logs:
                    collector.logs += (log for scope in resource.scope_logs for log in scope.log_records)  # fmt: skip
            else:
                content = ExportMetricsServiceRequest.FromString(body)
                collector.requests.append(Request(self.path, dict(self.headers), content))
            collector.answers.wait()
            self.send_response(404 if self.path == collector.refused else collector.status)
            self.send_header("Content-Type", "application/x-protobuf")
            answer = ExportMetricsServiceResponse().SerializeToString()
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *arguments: object) -> None:
            """Clients of these tests leave while they are answered."""

    server = Server(("127.0.0.1", port), Handler)
    with answering(server) as collector.url:
        try:
            yield collector
        finally:
            collector.answers.set()


def metrics_of(content: ExportMetricsServiceRequest) -> list[Received]:
    return [
        metric
        for resource in content.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    ]


def labels_of(point: NumberDataPoint | HistogramDataPoint) -> frozenset[tuple[str, str]]:
    return frozenset((pair.key, pair.value.string_value) for pair in point.attributes)


def received_values(requests: Iterable[Request]) -> Values:
    """Return what came, as the specification translates it to Prometheus without any suffix."""
    found: Values = {}
    for metric in (metric for request in requests for metric in metrics_of(request.content)):
        if metric.HasField("histogram"):
            for point in metric.histogram.data_points:
                labels, upto = labels_of(point), 0
                bounds = [*point.explicit_bounds, float("inf")]
                for bound, count in zip(bounds, point.bucket_counts, strict=True):
                    upto += count
                    le = ("le", floatToGoString(bound))
                    found[f"{metric.name}_bucket", labels | {le}] = upto
                if point.HasField("sum"):
                    found[f"{metric.name}_count", labels] = point.count
                    found[f"{metric.name}_sum", labels] = point.sum
        else:
            data = metric.gauge if metric.HasField("gauge") else metric.sum
            for number in data.data_points:
                key = (metric.name, labels_of(number))
                assert key not in found, "a series came twice"
                found[key] = number.as_double
    return found


def scraped_values(text: str) -> Values:
    """Return what a scrape has."""
    return {
        (s.name, frozenset((k, v) for k, v in s.labels.items() if v)): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }
