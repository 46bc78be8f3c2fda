"""The report as a page, in a real browser: it fits, it is whole, and it runs nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver.chrome.webdriver import WebDriver

from ampwatch.report.html_report import render_html
from ampwatch.wire.records import Topic
from tests.workshop.boxes import box, measured

pytestmark = pytest.mark.nightly

EVIL = "<img src=x onerror=document.title='gotcha'>"
LONG = "model.decoder.layers.17.feed_forward.experts.3.down_projection.linear"

VISIBLE = """
return [...document.querySelectorAll(arguments[0])]
  .filter((e) => getComputedStyle(e).display !== "none").length;
"""
OUTSIDE = """
return [...document.querySelectorAll("main *")]
  .filter((e) => !e.closest(".scroll") && e.getBoundingClientRect().right > innerWidth + 0.5)
  .map((e) => e.outerHTML.slice(0, 80));
"""


@pytest.fixture
def page(tmp_path: Path, browser: WebDriver) -> Iterator[WebDriver]:
    made = box()
    finding = made.findings[0]
    finding.where, finding.summary = LONG, EVIL
    made.findings[1].caused_by = finding.key
    made.ranges = [measured(0, LONG, Topic.ACTIVATION)]
    made.facts = {EVIL: EVIL}
    (tmp_path / "report.html").write_text(render_html([made]), encoding="utf-8")
    browser.get_log("browser")
    browser.get((tmp_path / "report.html").as_uri())
    yield browser
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def as_wide_as(browser: WebDriver, width: int) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


@pytest.mark.parametrize("width", [1400, 390])
def test_it_fits_a_screen_and_a_telephone(page: WebDriver, width: int) -> None:
    """Nothing stands out at the side; each picture is there once, with letters of full size."""
    as_wide_as(page, width)
    page.execute_script("document.querySelectorAll('details').forEach((d) => (d.open = true))")

    assert page.execute_script(OUTSIDE) == []
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    assert page.execute_script(VISIBLE, "figure") == page.execute_script(VISIBLE, "figure svg") == 2
    shown = "wide" if width > 1000 else "narrow"
    across = page.execute_script(f"return document.querySelector('svg.{shown}').clientWidth")
    assert across >= 0.85 * {"wide": 760, "narrow": 350}[shown]


def test_it_runs_and_loads_nothing(page: WebDriver) -> None:
    """Whatever a run says of itself; the console is silent."""
    assert page.title == "ampwatch report: gpt"
    assert page.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert EVIL in page.execute_script("return document.body.innerText")
    assert page.get_log("browser") == []
