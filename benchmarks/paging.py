"""Time between a fault and its text in the webhook, with the shipped configuration of Prometheus and Alertmanager.

Usage: ``python -m benchmarks.paging [--faults 24]``; some three minutes. Needs Debian's ``prometheus`` and
``prometheus-alertmanager``. Each fault is one of a target of its own, since Prometheus scrapes each at a moment of its
own; a target says what a daemon would say of a run whose scale collapses, or whose weights become NaN.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.integration.alertmanager import alertmanager, webhook
from tests.integration.prometheus import prometheus

ROOT = Path(__file__).parents[1]
SETTLED = 75.0
"""Seconds until every target was scraped twice and the rules were evaluated."""

SPREAD = 60.0
"""Seconds over which the faults come."""

PATIENCE = 60.0


class Target:
    """A daemon with one run, healthy until its fault.

    Attributes:
        run: Name of its run.
        fault_at: Moment of its fault; infinite before it is planned.
    """

    def __init__(self, number: int) -> None:
        self.run = f"run-{number}"
        self.collapses = bool(number % 2)
        self.fault_at = float("inf")
        self.begun = time.time() - 3600

    def metrics(self) -> str:
        """Return what a scrape reads now."""
        broken = time.time() >= self.fault_at
        halvings = 12 if broken and self.collapses else 0
        labels = f'run="{self.run}",rank="0"'
        skipped = f'{labels},optimizer="0",class='
        rows = {
            f'ampwatch_run_state{{{labels},state="running"}}': 1,
            f"ampwatch_run_start_timestamp_seconds{{{labels}}}": self.begun,
            f"ampwatch_loss_scale{{{labels}}}": 65536.0 * 0.5**halvings,
            f"ampwatch_loss_scale_backoffs_total{{{labels}}}": halvings,
            f"ampwatch_loss_scale_growths_total{{{labels}}}": 0,
            f'ampwatch_optimizer_steps_skipped_total{{{skipped}"calibrating"}}': 0,
            f'ampwatch_optimizer_steps_skipped_total{{{skipped}"storm"}}': max(halvings - 1, 0),
            f"ampwatch_parameter_nonfinite_elements{{{labels}}}": (
                2632 if broken and not self.collapses else 0
            ),
        }
        return "".join(f"{name} {value}\n" for name, value in rows.items())


def serve(stack: ExitStack, target: Target) -> str:
    """Serve a target; return its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = target.metrics().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    stack.callback(server.shutdown)
    return f"127.0.0.1:{server.server_port}"


def configured(directory: Path, addresses: list[str], hook: str) -> tuple[Path, str]:
    """Write the shipped files with the addresses of here; return Alertmanager's, and Prometheus' text."""
    source = ROOT / "deploy" / "alertmanager"
    pager = directory / "alertmanager.yml"
    text = (source / "alertmanager.yml").read_text(encoding="utf-8")
    pager.write_text(text.replace("http://127.0.0.1:5001/alerts", hook), encoding="utf-8")
    (directory / "ampwatch.tmpl").write_text((source / "ampwatch.tmpl").read_text("utf-8"), "utf-8")
    config = (ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text(encoding="utf-8")
    config = config.replace("../../dashboards", str(ROOT / "dashboards"))
    config = re.sub(r"    http_sd_configs:\n.*\n.*\n", "", config)
    listed = json.dumps(addresses)
    config = re.sub(
        r"    file_sd_configs:\n      - files: \[targets/ampwatch\*\.yml\]\n",
        f"    static_configs:\n      - targets: {listed}\n",
        config,
    )
    return pager, config


def measured(faults: int) -> dict[str, list[float]]:
    """Return the delays in seconds, by what broke."""
    targets = [Target(number) for number in range(faults)]
    delays: dict[str, list[float]] = {"collapse": [], "weights": []}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        messages = stack.enter_context(webhook())
        addresses = [serve(stack, target) for target in targets]
        pager, config = configured(directory, addresses, messages.address)
        told = stack.enter_context(alertmanager(pager, directory / "data-alertmanager"))
        config = config.replace("localhost:9093", told)
        stack.enter_context(prometheus(directory, config))
        time.sleep(SETTLED)
        now = time.time()
        chance = random.Random(15)
        for target in targets:
            target.fault_at = now + chance.uniform(0, SPREAD)
        arrived: dict[str, float] = {}
        seen = 0
        while time.time() < now + SPREAD + PATIENCE and len(arrived) < faults:
            for body in messages.bodies[seen:]:
                seen += 1
                arrived.setdefault(body["groupLabels"]["run"], time.time())
            time.sleep(0.02)
        for target in targets:
            kind = "collapse" if target.collapses else "weights"
            delays[kind].append(arrived.get(target.run, float("inf")) - target.fault_at)
    return delays


def main() -> None:
    """Print the delays as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=24)
    delays = measured(parser.parse_args().faults)
    of_all = sorted(value for values in delays.values() for value in values)
    said = {
        "unit": "s",
        "faults": len(of_all),
        "smallest": of_all[0],
        "median": statistics.median(of_all),
        "largest": of_all[-1],
        **{kind: [round(value, 1) for value in sorted(values)] for kind, values in delays.items()},
    }
    json.dump(said, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
