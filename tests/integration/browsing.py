"""Helpers of the tests of the page: headless Chromium, a rank that trains, the page in it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver.chrome.webdriver import WebDriver
from selenium.webdriver.common.by import By

from ampwatch.wire.records import Record
from ampwatch.wire.ring import RingWriter
from tests.host.daemon.parts import Daemon, Place, eventually
from tests.workshop.records import end, identity, optimizer, step

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="module", name="place")
def place_of_module(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """One for all tests of a module, since a daemon takes longer to start than most of them."""
    return Place(tmp_path_factory.mktemp("place"))


@pytest.fixture(scope="module", name="daemon")
def daemon_of_module(place: Place) -> Iterator[Daemon]:
    with place.daemon() as daemon:
        yield daemon


class Trainer:
    """A rank that trains: writes what a training process would, into a real ring."""

    def __init__(
        self,
        place: Place,
        run: str = "train",
        rank: int = 0,
        world_size: int = 1,
        slots: int = 4096,
    ) -> None:
        who = identity(run=run, rank=rank, world_size=world_size, started_ns=time.time_ns())
        self.run = run
        self.started_ns = who.started_ns
        self.writer = RingWriter.create([place.rings], who, slots=slots)
        self.step = -1

    def train(self, steps: int, **changes: Any) -> None:
        for _ in range(steps):
            self.step += 1
            now = {"time_ns": time.time_ns(), "duration_s": 0.25}
            self.write(step(self.step, growth_tracker=self.step + 1, **now, **changes))
        self.write(optimizer(0, total_steps=self.step + 1))

    def write(self, record: Record) -> None:
        self.writer.put(record)

    def finish(self) -> None:
        self.writer.close(end(time_ns=time.time_ns()), keep=False)


class Page:
    """The page in a browser."""

    def __init__(self, browser: WebDriver, daemon: Daemon, address: str = "") -> None:
        self.browser = browser
        self.url = f"http://{daemon.info.host}:{daemon.info.port}/"
        browser.get_log("browser")
        browser.get(address or daemon.address)

    def choose(self, run: str) -> None:
        """Show ``run`` as soon as there is news of it."""
        button = f"document.querySelector('#runs [data-key=\"{run}\"]')"
        eventually(lambda: self.run(f"return {button} !== null"), f"the run {run}")
        self.run(f"{button}.click()")  # there are no buttons to see with one run only

    def text(self, selector: str) -> str:
        return self.browser.find_element(By.CSS_SELECTOR, selector).text.replace("\u202f", " ")

    def says(self, selector: str, words: str) -> None:
        """Wait until ``words`` can be read at ``selector``, which may be nowhere yet."""

        def is_read() -> bool:
            try:
                return words in self.text(selector)
            except (NoSuchElementException, StaleElementReferenceException):
                return False  # rows are made anew with their news

        eventually(is_read, f"{words!r} at {selector}")

    def click(self, selector: str) -> None:
        self.browser.find_element(By.CSS_SELECTOR, selector).click()

    def run(self, script: str, *arguments: Any) -> Any:
        return self.browser.execute_script(script, *arguments)

    def complaints(self) -> list[str]:
        """Messages of the browser's console since the page was opened."""
        return [entry["message"] for entry in self.browser.get_log("browser")]
