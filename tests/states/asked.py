"""What the dashboards show in each state: a real Prometheus that has all series, asked as Grafana asks it."""

from __future__ import annotations

import re
import subprocess
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.dashboards import asking, documents
from tests.host.daemon.parts import eventually
from tests.integration.prometheus import Prometheus, free_port
from tests.services import require
from tests.states.series import for_remote_write

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from tests.states.series import Scraped

BOARDS = ("overview", "run", "ranks", "layers")

TELLS = re.compile(
    r"run_state|run_health|root_info|rank_failure|underflow|loss_scale|ampwatch_finding|_to_floor"
    r"|parameter_nonfinite"
)
"""What a query reads that is compared here."""


@dataclass(frozen=True, slots=True)
class Shown:
    """One value of a panel.

    Attributes:
        board: Which dashboard.
        panel: Title of the panel.
        title: What the value is called: the column of a table, or the title of the panel.
        written: The query as the dashboard has it.
        labels: Labels of the series.
        value: The newest value.
        text: What the panel shows in its place, where it says so; else empty.
    """

    board: str
    panel: str
    title: str
    written: str
    labels: dict[str, str]
    value: float
    text: str


@contextmanager
def server_of(all_scraped: Iterable[Scraped], directory: Path) -> Iterator[Prometheus]:
    """Run a Prometheus that has the series of all scripts and scrapes nobody."""
    port = free_port()
    directory.mkdir()
    (directory / "prometheus.yml").write_text("")
    process = subprocess.Popen(
        [
            require("prometheus"),
            f"--config.file={directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={directory / 'data'}",
            # The time of a script is years ago.
            "--storage.tsdb.retention.time=100y",
            "--web.enable-remote-write-receiver",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=error",
        ],
        stderr=subprocess.DEVNULL,
    )
    running = Prometheus(port)
    try:
        eventually(running.ready, "Prometheus is ready")
        for scraped in filter(lambda each: each.series, all_scraped):
            _write(running, for_remote_write([scraped]))
        yield running
    finally:
        process.terminate()
        process.wait(20)


def _write(server: Prometheus, body: bytes) -> None:
    headers = {
        "Content-Encoding": "snappy",
        "Content-Type": "application/x-protobuf",
        "X-Prometheus-Remote-Write-Version": "0.1.0",
    }
    request = urllib.request.Request(f"{server.url}/api/v1/write", data=body, headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status in (200, 204)


def shown(server: Prometheus, instance: str, now: float) -> list[Shown]:
    """Return all that the panels show of what ``instance`` exports, with every run of it chosen."""
    return [each for board in BOARDS for each in _of_board(server, board, instance, now)]


def _of_board(server: Prometheus, board: str, instance: str, now: float) -> Iterator[Shown]:
    document = documents.load(documents.ROOT / "dashboards" / f"ampwatch-{board}.json")
    for panel in documents.drawn(document):
        for target in panel.get("targets") or ():
            if not TELLS.search(target.get("expr", "")):
                continue
            title = _title(panel, target)
            for series in asking.answer(
                server, {"instant": False, **target}, now, instance=instance
            ):
                if "values" in series:
                    time, value = series["values"][-1]
                    if time < now - 60:  # a line that ends before
                        continue
                else:
                    time, value = series["value"]
                labels = {k: v for k, v in series["metric"].items() if v}
                text = _text(panel, title, value)
                yield Shown(
                    board, panel["title"], title, target["expr"], labels, float(value), text
                )


def _title(panel: dict[str, Any], target: dict[str, Any]) -> str:
    """Return the name of the column in a table; elsewhere the panel's title."""
    for transformation in panel.get("transformations") or ():
        renamed = transformation.get("options", {}).get("renameByName", {})
        if found := renamed.get(f"Value #{target.get('refId')}"):
            return str(found)
    return str(panel["title"])


def _text(panel: dict[str, Any], title: str, value: str) -> str:
    """Return the word that a panel maps a value to."""
    config = panel.get("fieldConfig", {})
    mappings = list(config.get("defaults", {}).get("mappings") or ())
    for override in config.get("overrides") or ():
        if override.get("matcher", {}).get("options") == title:
            properties = override.get("properties") or ()
            mappings = [
                m for p in properties if p["id"] == "mappings" for m in p["value"]
            ] or mappings
    number = float(value)
    for mapping in mappings:
        if mapping["type"] == "value":
            for key, result in mapping["options"].items():
                try:
                    same = float(key) == number
                except ValueError:
                    same = False
                if same:
                    return str(result.get("text", ""))
    return ""
