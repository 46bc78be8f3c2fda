"""Fixtures of the tests that look at the page: a browser per module, a daemon per test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.webdriver import WebDriver

from tests.host.daemon.parts import Daemon, Place
from tests.integration.browsing import FLAGS, Page, Trainer
from tests.services import require

SECTIONS = "map modules ranges precision whatif step-time tensor-cores gpus-of"
"""What of the page can be folded."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDriver]:
    options = webdriver.ChromeOptions()
    options.binary_location = require("chromium")
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=require("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    # Everything unfolded, as whoever looks closely has it; what is folded at first is a test of its own.
    unfold = f"try {{ localStorage['ampwatch-unfolded'] ??= '{SECTIONS}' }} catch {{}}"
    driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": unfold})
    yield driver
    driver.quit()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def daemon(place: Place) -> Iterator[Daemon]:
    with place.daemon() as daemon:
        yield daemon


@pytest.fixture
def trainer(place: Place) -> Iterator[Trainer]:
    trainer = Trainer(place)
    yield trainer
    trainer.finish()


@pytest.fixture
def page(browser: WebDriver, daemon: Daemon) -> Page:
    return Page(browser, daemon)
