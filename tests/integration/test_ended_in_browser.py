"""Runs that have ended, from the page to two of them compared; a real daemon, headless Chromium."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from selenium.webdriver.chrome.webdriver import WebDriver
from selenium.webdriver.common.by import By

from ampwatch.wire.blackbox import files
from tests.host.daemon.parts import Place
from tests.integration.browsing import Page
from tests.workshop.boxes import box

pytestmark = [pytest.mark.nightly, pytest.mark.services]

OUTSIDE = """return [...document.querySelectorAll("main *")]
  .filter((e) => e.getBoundingClientRect().right > innerWidth + 0.5).map((e) => e.outerHTML.slice(0, 80));"""


@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (390, "dark")])
def test_ended_runs_are_found_compared_and_opened(
    place: Place, browser: WebDriver, tmp_path: Path, width: int, theme: str
) -> None:
    """By links from the page with no run; nothing stands out at the side, and the console is silent."""
    for run in ("gpt", "bert"):
        made = box()
        made.identity = replace(made.identity, run=run, world_size=1)
        made.findings = made.findings[: 1 + (run == "gpt")]
        files.write(tmp_path / "reports", made, most=4)
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    features = [{"name": "prefers-color-scheme", "value": theme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    with place.daemon("--no-gpu", AMPWATCH_REPORT_DIR=str(tmp_path / "reports")) as daemon:
        page = Page(browser, daemon)
        # By the link of a log, which is older than that the run was shown.
        browser.get(f"{page.url}#run=gpt&rank=0&started=1.000")
        page.says("#amiss", "Run gpt is not shown")
        page.click("#amiss-ended")
        page.says(".ended tbody tr", "overflowed float16")
        outside = page.run(OUTSIDE)

        for choice in browser.find_elements(By.CSS_SELECTOR, ".ended input"):
            choice.click()
        page.click("form button")
        page.says(".compared .differs th", "≠ findings")
        page.says(".compared tbody:last-child", "not found")
        outside += page.run(OUTSIDE)

        page.click(".compared thead a")
        page.says("h1", "Run ")
        assert browser.title.startswith("ampwatch report: ")
        assert (
            page.run("return getComputedStyle(document.querySelector('main')).maxWidth") == "860px"
        )
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})

    assert outside == []
    assert page.complaints() == []
