"""The Prometheus that `fleet.py` measures, and what it is asked."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

RULES = Path(__file__).parents[1] / "dashboards" / "alerts" / "ampwatch.fleet.rules.yml"

QUERIES = {
    "loss scale of every rank": "ampwatch_loss_scale",
    "the five ranks that step slowest": "topk(5, sum by (run, rank) (rate(ampwatch_step_duration_seconds_sum[2m])) / sum by (run, rank) (rate(ampwatch_step_duration_seconds_count[2m])))",
    "mean step of the rank at p99": "quantile by (run) (0.99, rate(ampwatch_step_duration_seconds_sum[2m]) / rate(ampwatch_step_duration_seconds_count[2m]))",
    "p99 of steps over all ranks": "histogram_quantile(0.99, sum by (run, le) (rate(ampwatch_step_duration_seconds_bucket[2m])))",
    "gradient exponents over all ranks": "sum by (le) (rate(ampwatch_gradient_magnitude_bucket[2m]))",
    "skipped share of the run": "sum by (run) (rate(ampwatch_optimizer_steps_skipped_total[2m])) / sum by (run) (rate(ampwatch_optimizer_steps_total[2m]))",
    "ranks by state": "sum by (run, state) (ampwatch_run_state)",
    "findings of every kind": "sum by (run, kind) (rate(ampwatch_finding_steps_total[2m]))",
    "largest gradient of each module": "max by (run, module) (ampwatch_module_gradient_amax)",
    "everything, as a user types it by mistake": 'count({__name__=~"ampwatch_.+"})',
}
"""Questions as dashboards ask them, of raw series."""

RECORDED = {
    "loss scale of every host": "instance_run:ampwatch_loss_scale:min",
    "the five hosts that step slowest": "topk(5, instance_run:ampwatch_step_duration_seconds:max_mean5m)",
    "mean step of the median rank": "run:ampwatch_step_duration_seconds:median_mean5m",
    "p99 of steps over all ranks": "run:ampwatch_step_duration_seconds:p99_rate5m",
    "skipped share of the run": "run:ampwatch_optimizer_steps_skipped:ratio_rate5m",
    "ranks by state": "run:ampwatch_run_state:sum",
    "findings of every kind": "run:ampwatch_finding_steps:rate5m",
}
"""Questions of series that the recording rules keep."""


class Server:
    """A Prometheus, asked."""

    def __init__(self, port: int, pid: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.pid = pid

    def own(self) -> dict[str, float]:
        """Return its metrics about itself, those without labels."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        pairs = (line.split(" ") for line in lines if re.match(r"[a-z_]+ ", line))
        return {name: float(value) for name, value in pairs}

    def ask(self, path: str, **parameters: Any) -> tuple[list[Any], float]:
        """Return the result of a query and how long it took. Unit: s."""
        address = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        begin = time.perf_counter()
        with urllib.request.urlopen(address, timeout=300) as answer:
            result = json.load(answer)["data"]["result"]
        return result, time.perf_counter() - begin

    def value(self, query: str) -> float:
        """Return the answer to a query that has one value; 0 if it has none."""
        result, _ = self.ask("query", query=query)
        return float(result[0]["value"][1]) if result else 0.0


@contextmanager
def prometheus(directory: Path, ports: list[int], seconds: int) -> Iterator[Server]:
    """Run one that scrapes ``ports``, with the recording rules."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shutil.copy(RULES, directory / "fleet.yml")
    targets = [f"127.0.0.1:{port}" for port in ports]
    config = {
        "global": {"scrape_interval": f"{seconds}s", "evaluation_interval": "15s"},
        "rule_files": [str(directory / "fleet.yml")],
        "scrape_configs": [
            {"job_name": "ampwatch", "static_configs": [{"targets": targets}]},
            {"job_name": "prometheus", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]},
        ],
    }
    file = directory / "prometheus.yml"
    file.write_text(json.dumps(config), encoding="utf-8")
    command = [
        "prometheus",
        f"--config.file={file}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    ]
    process = subprocess.Popen(command)
    server = Server(port, process.pid)
    try:
        while True:
            try:
                server.own()
                break
            except OSError:
                time.sleep(0.2)
        yield server
    finally:
        process.terminate()
        process.wait(60)


def timed(server: Server, queries: dict[str, str], mark: str = "") -> dict[str, Any]:
    """Return how long each query takes: for one moment, and for 20 of them a quarter minute apart."""
    found = {}
    for title, query in queries.items():
        end = time.time()
        runs = [server.ask("query", query=query) for _ in range(3)]
        over = {"query": query, "start": end - 285, "end": end, "step": 15}
        _, range_took = server.ask("query_range", **over)
        found[mark + title] = {
            "series": len(runs[0][0]),
            "instant_s": round(min(took for _, took in runs), 4),
            "range_s": round(range_took, 4),
        }
    return found
