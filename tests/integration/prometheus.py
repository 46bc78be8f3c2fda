"""A real Prometheus, asked through its HTTP API."""

from __future__ import annotations

import json
import socket
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.host.daemon.parts import eventually
from tests.services import require


def free_port() -> int:
    """Return a port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


class Prometheus:
    """One that runs."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=30) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Answer an instant query: labels and value of each series."""
        address = f"{self.url}/api/v1/query?{urlencode({'query': expression})}"
        with urllib.request.urlopen(address, timeout=30) as answer:
            result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return result

    def rules_that_fail(self) -> dict[str, str]:
        """Return the errors of rules that cannot be evaluated, by name; a rule has to have been tried."""
        with urllib.request.urlopen(f"{self.url}/api/v1/rules", timeout=30) as answer:
            groups = json.load(answer)["data"]["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        assert "ok" in {rule["health"] for rule in rules}
        return {rule["name"]: rule["lastError"] for rule in rules if rule["health"] == "err"}

    def value(self, expression: str) -> float | None:
        """Answer a query that has one series, ``None`` if it has none."""
        result = self.query(expression)
        return float(result[0]["value"][1]) if result else None


@contextmanager
def prometheus(
    directory: Path, config: str, history: str = "", flags: Sequence[str] = ()
) -> Iterator[Prometheus]:
    """Run one with its data in ``directory / "data"``, that of a text in OpenMetrics to begin with."""
    file, port = directory / "prometheus.yml", free_port()
    file.write_text(config)
    if history:
        text = directory / "history.txt"
        text.write_text(history, encoding="utf-8")
        command = [require("promtool"), "tsdb", "create-blocks-from", "openmetrics", str(text)]
        subprocess.run([*command, str(directory / "data")], check=True, capture_output=True)
    process = subprocess.Popen(
        [
            require("prometheus"),
            f"--config.file={file}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=error",
            *flags,
        ],
        stderr=subprocess.DEVNULL,
    )
    running = Prometheus(port)
    try:
        eventually(running.ready, "Prometheus is ready")
        yield running
    finally:
        process.terminate()
        process.wait(20)
