"""No panel stays empty: every query of every dashboard, asked of a real Prometheus."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from selenium.webdriver.common.by import By

from ampwatch.host.metrics.catalog import CATALOG
from tests.dashboards.queries import ROOT, shipped_dashboards, unanswered
from tests.host.daemon.parts import eventually
from tests.integration.prometheus import prometheus as run_prometheus
from tests.services import require
from tests.workshop.history import MINUTES, openmetrics
from tools.preview.grid import boxes
from tools.preview.intervals import TimeSpan
from tools.preview.pictures import opened
from tools.preview.prometheus import Prometheus as Client
from tools.preview.questions import panels
from tools.preview.sheet import sheet

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from selenium.webdriver.chrome.webdriver import WebDriver

    from tests.integration.prometheus import Prometheus

pytestmark = [pytest.mark.nightly, pytest.mark.services]

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


def test_every_query_of_every_dashboard_has_an_answer(prometheus: Prometheus) -> None:
    """Variables, panels and annotations, over a history in which each family has samples."""
    dashboards = shipped_dashboards()

    assert dashboards
    assert unanswered(prometheus, dashboards, scrape_seconds=SCRAPE_SECONDS) == []


def test_the_history_has_samples_of_every_family_of_the_catalog(prometheus: Prometheus) -> None:
    """Else a query could not be held against it."""
    there = Client(prometheus.url).label_values("__name__", "", TimeSpan(0, time.time()))

    names = {m.name + ("_bucket" if m.type == "histogram" else "") for m in CATALOG}
    assert names - set(there) == set()


def test_the_preview_shows_what_prometheus_answers(
    prometheus: Prometheus, browser: WebDriver, tmp_path: Path
) -> None:
    """Titles, numbers, words of a mapping, legends and empty panels can be read in the page."""
    now = time.time()
    page = tmp_path / "sample.html"
    span = TimeSpan(now - 60 * MINUTES, now, SCRAPE_SECONDS)
    by_uid = {d["uid"]: d for d in shipped_dashboards()}
    shown, folded = by_uid["ampwatch-run"], by_uid["ampwatch-overview"]
    html = sheet(shown, Client(prometheus.url), span, {"run": ["gpt"], "rank": ["0"]})
    page.write_text(html, encoding="utf-8")
    browser.get_log("browser")

    opened(browser, page)

    def text(selector: str) -> list[str]:
        found = browser.find_elements(By.CSS_SELECTOR, selector)
        return [" ".join(element.text.split()) for element in found]

    titles = [p["title"] for p in panels(shown)]
    assert sorted(text("h3")) == sorted(f"{t}i" for t in titles)
    assert text("h2") == [f"▾ {p['title']}" for p in shown["panels"] if p["type"] == "row"]
    assert text(".stat .value")[:2] == ["failing", "32768"]
    assert text(".table tbody tr")[0].startswith(
        "critical gpt scale_collapse optimizer 0 1 Read about it: ampwatch explain scale_collapse. 0"
    )
    assert text(".timeseries .legend tbody tr")[0] == "half gpt 625 ms 625 ms"
    assert len(list(boxes(folded, unfolded=True))) > len(list(boxes(folded, unfolded=False)))
    plots = browser.find_elements(By.CSS_SELECTOR, ".plot .main-svg")
    assert {plot.size["height"] > 80 for plot in plots} == {True}
    assert browser.get_log("browser") == []
