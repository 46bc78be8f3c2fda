"""No panel stays empty: every dashboard, drawn by Grafana's packages from answers of a real Prometheus."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from selenium.webdriver.chrome.webdriver import WebDriver

from ampwatch.host.metrics.catalog import CATALOG
from tests.dashboards import asking, documents
from tests.host.daemon.parts import eventually
from tests.integration.prometheus import Prometheus
from tests.integration.prometheus import prometheus as run_prometheus
from tests.services import require
from tests.workshop.history import MINUTES, openmetrics
from tools.grafana.page import Setting, drawn, page_is_current, served

pytestmark = [pytest.mark.nightly, pytest.mark.services]

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "dashboards").glob("ampwatch-*.json"))

CONFIG = """
global:
  evaluation_interval: 1s
rule_files: ['{rules}']
"""

RANKS = 2
SCRAPE_SECONDS = 60.0
"""Of the made-up history."""

ALWAYS = {
    "alert": "AmpwatchStandIn",
    "expr": "ampwatch_run_info",
    "labels": {"severity": "critical"},
}


def impatient_rules() -> dict[str, Any]:
    """Return the shipped rules, none of which waits, and one that always fires."""
    groups: list[Any] = [{"name": "stand-in", "rules": [ALWAYS]}]
    for file in sorted((ROOT / "dashboards" / "alerts").glob("*.rules.yml")):
        groups += yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]
    for rule in (rule for group in groups for rule in group["rules"]):
        rule.pop("for", None)
        rule.pop("keep_firing_for", None)
    return {"groups": [{"name": g["name"], "rules": g["rules"]} for g in groups]}


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Has seen everything that can be exported, and an alert fires."""
    require("prometheus")
    directory, now = tmp_path_factory.mktemp("prometheus"), time.time()
    rules = directory / "impatient.rules.yml"
    rules.write_text(yaml.safe_dump(impatient_rules()), encoding="utf-8")
    config, history = CONFIG.format(rules=rules), openmetrics(RANKS, now)
    with run_prometheus(directory, config, history) as server:
        eventually(lambda: server.query("ALERTS"), "an alert", 30)
        yield server


@pytest.fixture(scope="module")
def page() -> Iterator[str]:
    """Address of the page in which Grafana's packages draw."""
    if not page_is_current():
        pytest.skip("the packages of Grafana's frontend are not installed; run: make grafana-page")
    with served() as address:
        yield address


class Drawing:
    """Draws dashboards over the last hour of a Prometheus.

    Args:
        prometheus: The Prometheus.
        browser: Chromium.
        page: Address of the page.
    """

    def __init__(self, prometheus: Prometheus, browser: WebDriver, page: str) -> None:
        self._prometheus, self._browser, self._page = prometheus, browser, page

    def __call__(self, dashboard: dict[str, Any], **chosen: str) -> dict[str, Any]:
        """Return the report on a dashboard; what is not chosen is All."""
        now = time.time()
        # An alert that has begun to fire a moment ago is seen at the next point, a minute later.
        span = now - 60 * MINUTES, now + 60
        choice = {name: [value] for name, value in chosen.items()}
        setting = Setting(self._prometheus.url, *span, SCRAPE_SECONDS, choice)
        self._browser.get_log("browser")
        report = drawn(self._browser, self._page, dashboard, setting)
        assert self._browser.get_log("browser") == []
        return report


@pytest.fixture(scope="module")
def draw(prometheus: Prometheus, browser: WebDriver, page: str) -> Drawing:
    return Drawing(prometheus, browser, page)


def loaded(file: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return document


def by_title(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {panel["title"]: panel for panel in report["panels"]}


def cells(panel: dict[str, Any]) -> list[list[str]]:
    """Return the rows of a table, without its head."""
    return [row for row in panel["rows"] if row]


def test_the_history_has_samples_of_every_family_of_the_catalog(prometheus: Prometheus) -> None:
    """Else a query could not be held against it."""
    there = asking.get(prometheus, "label/__name__/values")

    names = {m.name + ("_bucket" if m.type == "histogram" else "") for m in CATALOG}
    assert names - set(there) == set()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_query_is_answered_and_every_panel_is_drawn(draw: Drawing, file: Path) -> None:
    """With all variables at All: the history has everything, so that no panel may stay empty.

    Grafana knows every unit, colour, transformation and option of a field that the panels name.
    """
    dashboard = loaded(file)
    panels = list(documents.drawn(dashboard))

    report = draw(dashboard)

    assert [name for name, values in report["variables"].items() if not values] == []
    assert [q for q in report["queries"] if not q["series"] or not q["numbers"]] == []
    assert sorted(p["title"] for p in report["panels"]) == sorted(p["title"] for p in panels)
    assert {p["title"]: p["problems"] for p in report["panels"] if p["problems"]} == {}
    shown = by_title(report)
    for panel in panels:
        title, found = panel["title"], shown[panel["title"]]
        nothing = panel["fieldConfig"]["defaults"].get("noValue", "No data")
        text = found["text"].removeprefix(title).strip()
        assert not found["empty"], title
        assert not {nothing, "No data"} & set(text.splitlines()), title
        assert cells(found) if panel["type"] == "table" else text, title
        assert panel["type"] in {"table", "stat"} or found["plots"], title


def test_what_grafana_would_not_know_is_reported(draw: Drawing) -> None:
    """Each of the mistakes that Grafana itself draws without a word."""
    dashboard = loaded(ROOT / "dashboards" / "ampwatch-layers.json")
    table = next(panel for panel in documents.drawn(dashboard) if panel["type"] == "table")
    defaults = table["fieldConfig"]["defaults"]
    defaults |= {"unit": "furlongs", "color": {"mode": "fixed", "fixedColor": "no-colour"}}
    table["transformations"].append({"id": "mergee", "options": {}})
    table["fieldConfig"]["overrides"][0]["properties"].append({"id": "unitt", "value": "s"})

    report = draw(dashboard)

    assert by_title(report)[table["title"]]["problems"] == [
        "colour no-colour",
        "unit furlongs",
        "transformation mergee",
        "field option unitt",
    ]
    assert [p["title"] for p in report["panels"] if p["problems"]] == [table["title"]]


def test_what_is_read_is_what_prometheus_answers(prometheus: Prometheus, draw: Drawing) -> None:
    """Numbers asked of Prometheus and written by hand, beside the text in the page."""
    of = '{run="gpt",rank="0"}'

    def number(expression: str) -> float:
        value = prometheus.value(expression)
        assert value is not None, expression
        return value

    def rate(family: str) -> str:
        return f"rate({family}{of}[4m])"

    scale = number(f"ampwatch_loss_scale{of}")
    lost = "ampwatch_gradient_underflow_elements_total", "ampwatch_gradient_elements_total"
    share = number(f"{rate(lost[0])} / {rate(lost[1])}")
    amax = f"max(ampwatch_scaled_gradient_amax_max{of})"
    headroom = number(f"log2(max(ampwatch_autocast_dtype_max{of}) / {amax})")
    half = number(f"histogram_quantile(0.5, {rate('ampwatch_step_duration_seconds_bucket')})")
    (facts,) = prometheus.query(f"ampwatch_run_info{of}")

    shown = by_title(draw(loaded(ROOT / "dashboards" / "ampwatch-run.json"), run="gpt", rank="0"))

    def stat(title: str) -> str:
        return str(shown[title]["text"].removeprefix(title).strip())

    assert stat("State") == "failing"
    assert stat("Loss scale") == f"{scale:g}" == "32768"
    assert stat("Gradients lost") == f"{100 * share:.0f}%" == "1%"
    assert stat("Headroom, in doublings") == f"{headroom:.1f}"
    assert f"half gpt\n{1000 * half:.0f} ms" in shown["Time of a step"]["text"]
    assert cells(shown["What broke, and what to do first"])[0][:5] == [
        "critical",
        "gpt",
        "scale_collapse",
        "optimizer 0",
        "1",
    ]
    assert cells(shown["Facts"])[0][:3] == [
        "gpt",
        facts["metric"]["autocast_dtype"],
        facts["metric"]["scaler"],
    ]
    assert shown["Which rank made the others end?"]["text"].endswith("No rank has failed")
