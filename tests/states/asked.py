"""What the dashboards show in each state: a real Prometheus that has all series, asked as Grafana asks it."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.dashboards import asking, documents
from tests.integration.prometheus import Prometheus, prometheus
from tests.states.series import Scraped, for_remote_write

BOARDS = ("overview", "run", "ranks", "layers")

TELLS = re.compile(
    r"run_state|run_health|root_info|rank_failure|underflow|loss_scale|ampwatch_finding|_to_floor"
    r"|parameter_nonfinite"
)
"""What a query reads that is compared here."""

CLAIMS: dict[str, str] = {
    r"No such run is known": "ampwatch_run_info",
    r"(No|This) run (is|was) (not )?watched": "ampwatch_run_info",
    r"No GradScaler|No run here has a GradScaler": "ampwatch_loss_scale",
    r"No watched rank is": "ampwatch_gpu_process_info",
    r"No GPU is read": "ampwatch_gpu_up",
    r"No sample within an hour": "increase(ampwatch_gradient_elements_total[1h]) > 0",
    r"No gradient was sampled": "increase(ampwatch_gradient_elements_total[10m]) > 0",
    r"No gradient other than zero": "max_over_time(ampwatch_scaled_gradient_amax_max[10m]) > 0",
    r"No rank has ended|No iteration was": "ampwatch_steps_total > 0",
    r"No step has ended|No step in this": "rate(ampwatch_step_duration_seconds_count[5m]) > 0",
    r"No finite loss was seen": "ampwatch_loss < Inf > -Inf",
    r"No optimizer (has|step)|No step in 10": "increase(ampwatch_optimizer_steps_total[10m]) > 0",
    r"No loss was seen": "ampwatch_loss",
    r"No ampwatch target": "ampwatch_build_info",
    r"Nothing was sampled|Nothing is sampled": "ampwatch_samples_total > 0",
    r"The parameters were not looked at": "ampwatch_parameter_nonfinite_elements",
    r"Not looked at": "ampwatch_parameter_nonfinite_elements",
    r"No rank has failed": 'ampwatch_run_state{state="failed"} == 1',
    r"Nothing was found": "ampwatch_finding_last_seen_timestamp_seconds",
    r"Nothing is wrong now": "ampwatch_root_info",
}
"""Words of panels without an answer, and a query without an answer where they are true."""


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
    directory.mkdir()
    # The time of a script is years ago.
    flags = ("--storage.tsdb.retention.time=100y", "--web.enable-remote-write-receiver")
    with prometheus(directory, "", flags=flags) as running:
        for scraped in filter(lambda each: each.series, all_scraped):
            _write(running, for_remote_write([scraped]))
        yield running


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


def untrue(server: Prometheus, instance: str, run: str, now: float) -> list[str]:
    """Return what is not so of a chosen run: words of panels without an answer, and bands over each other."""
    found: list[str] = []
    for document in map(documents.load, documents.FILES):
        for panel in documents.drawn(document):
            said = panel["fieldConfig"]["defaults"]["noValue"]
            claim = next((query for words, query in CLAIMS.items() if re.match(words, said)), None)
            if claim is None or ", or " in said:
                continue
            if any(
                asking.answer(server, target, now, instance=instance, run=run)
                for target in panel["targets"]
            ):
                continue
            # What has been there for less than an interval of the dashboard is on no chart yet.
            early, late = (
                [
                    one["metric"]
                    for one in asking.get(server, "query", query=claim, time=at)["result"]
                    if one["metric"].get("instance") == instance
                    and one["metric"].get("run", run) == run
                ]
                for at in (now - 60, now)
            )
            if early and late:
                place = f"{document['title']}: {panel['title']}"
                found.append(f"{place}: says {said!r} beside {late}")
        bands = [
            series["metric"]["run"]
            for annotation in document["annotations"]["list"]
            if annotation.get("expr") and annotation["enable"]
            for series in asking.answer(
                server, {"expr": annotation["expr"], "instant": True}, now, run=run
            )
        ]
        if bands not in ([], [run]):
            found.append(f"{document['title']}: bands of {bands} on the charts of {run}")
    return found


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
