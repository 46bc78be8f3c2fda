"""The strip of phases as users read it: what a step's time goes to, over the run, with the skips on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from selenium.webdriver.chrome.webdriver import WebDriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from ampwatch.wire.records import SkipClass
from tests.host.daemon.parts import Daemon, Place, eventually
from tests.integration.browsing import Page, Trainer, daemon_of_module, place_of_module  # noqa: F401 - fixtures
from tests.report.test_step_times import spent

pytestmark = [pytest.mark.nightly, pytest.mark.services]

WAITS = spent(data=0.15, forward=0.05, backward=0.05)
WORKS = spent(data=0.05, forward=0.1, backward=0.1)


@pytest.fixture
def trainer(place: Place, request: pytest.FixtureRequest) -> Iterator[Trainer]:
    trainer = Trainer(place, request.node.name)
    yield trainer
    trainer.finish()


@pytest.fixture
def page(browser: WebDriver, daemon: Daemon, trainer: Trainer) -> Page:
    """Forty steps of a run, of which those from 20 on wait for data, and step 30 is skipped."""
    trainer.train(20, phases=WORKS)
    trainer.train(10, phases=WAITS)
    trainer.train(1, phases=WAITS, skip_class=SkipClass.UNPROVOKED)
    trainer.train(9, phases=WAITS)
    page = Page(browser, daemon)
    page.choose(trainer.run)
    eventually(lambda: (strip(page) or {}).get("end") == 40, "the strip")
    return page


def strip(page: Page) -> Any:
    """The strip as it is drawn: the bars of each phase by its colour, marks, and where it ends."""
    return page.run(
        """const p = document.getElementById("chart-phases").plot.picture;
        const of = (kind) => p.layers.filter((l) => l.kind === kind);
        return p && { end: of("bars")[0]?.bars.at(-1)[1], bars: Object.fromEntries(of("bars").map((l) => [l.colour, l.bars])),
            marks: of("marks").map((l) => [l.sign, l.points.map(([x]) => x)]), rules: of("rule").map((l) => l.x) };"""
    )


def heights(page: Page, phase: str) -> dict[int, tuple[float, float]]:
    """Bottom and top of a phase by the step at which a bar begins, in hundredths."""
    bars = strip(page)["bars"][f"--phase-{phase}"]
    return {round(first): (round(100 * low), round(100 * high)) for first, _, low, high in bars}


def read(page: Page) -> list[str]:
    """What a screen reader says at the cursor."""
    told: str = page.browser.find_element(By.ID, "chart-phases").get_attribute("aria-valuetext")
    return told.replace("\u202f", " ").split(", ")


def test_phases_are_stacked_in_their_order(page: Page) -> None:
    """Up to the whole, each on those before it, as they were in each step; skipped ones are marked."""
    assert set(strip(page)["bars"]) == {"--phase-data", "--phase-forward", "--phase-backward"}
    assert heights(page, "data") == {i: (0, 20 if i < 20 else 60) for i in range(40)}
    assert heights(page, "forward")[0] == (20, 60)
    assert heights(page, "backward") == {i: (60 if i < 20 else 80, 100) for i in range(40)}
    assert strip(page)["marks"] == [["triangle", [30]]]


def test_a_step_is_read_with_the_arrow_keys(page: Page) -> None:
    """Each phase with its time and share, and that it was skipped."""
    chart = page.browser.find_element(By.ID, "chart-phases")
    assert chart.get_attribute("aria-label") == "Where the time of a step goes over the run"

    chart.send_keys(Keys.END)
    assert read(page) == ["step 39", "250 ms a step", "waiting for data 150 ms", "60 %", "forward 50 ms", "20 %", "backward 50 ms", "20 %"]  # fmt: skip
    chart.send_keys(Keys.HOME)
    assert read(page)[2:4] == ["waiting for data 50 ms", "20 %"]
    for _ in range(3):
        chart.send_keys(Keys.PAGE_DOWN)
    assert read(page)[0] == "step 30"
    assert read(page)[-1] == "skipped: 1 unprovoked"


def test_its_key_has_words_times_and_shares(page: Page) -> None:
    """Of the newest steps, and by whose clock; each beside the colour it has in the strip."""
    key = page.text("#phases-key").splitlines()
    assert key == [
        "waiting for data 133 ms 53.3 %",
        "forward 58.3 ms 23.3 %",
        "backward 58.3 ms 23.3 %",
    ]
    assert (
        page.text("#phases-sentence")
        == "250 ms a step, by the host's clock, mean of 24 of the newest 40 steps"
    )
    swatch, bar = page.run(
        """return [document.querySelector("#phases-key [data-phase=data] .swatch"), document.querySelector('#chart-phases [fill="var(--phase-data)"]')]
            .map((one, i) => getComputedStyle(one)[i ? "fill" : "backgroundColor"]);"""
    )
    assert swatch == bar
    assert page.complaints() == []
