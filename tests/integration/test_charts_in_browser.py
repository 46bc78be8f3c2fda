"""The charts of the page as users read them: by pointer, by keys, along steps and along time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from selenium.webdriver.chrome.webdriver import WebDriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from ampwatch.host.page.rows import COLUMNS
from tests.host.daemon.parts import Daemon, Place, eventually
from tests.integration.browsing import Page, Trainer, daemon_of_module, place_of_module  # noqa: F401 - fixtures

pytestmark = [pytest.mark.nightly, pytest.mark.services]

BESIDE = """
const [view, columns, rows, others, done] = arguments;
import("/static/charts.js").then(({ Charts }) => {
  // Elements that the page itself does not draw into.
  for (const chart of document.querySelectorAll("#charts .chart")) chart.replaceWith(chart.cloneNode(false));
  const charts = new Charts();
  charts.show("one", columns, rows, { columns: [] });
  if (view !== "alone") charts.compare("other run", columns, others);
  if (view === "marked") charts.mark(3);
  const settle = (n) => (n ? requestAnimationFrame(() => settle(n - 1)) : done(true));
  settle(12);
});
"""


@pytest.fixture
def page(browser: WebDriver, daemon: Daemon, place: Place, request: pytest.FixtureRequest) -> Iterator[Page]:  # fmt: skip
    """Forty steps of a run whose loss is its step, and whose scale halves once."""
    trainer = Trainer(place, request.node.name)
    for i in range(40):
        trainer.train(1, loss=float(i), loss_scale=2.0 ** (16 - (i >= 20)))
    page = Page(browser, daemon)
    page.choose(trainer.run)
    eventually(lambda: picture(page, "loss") and picture(page, "loss")["last"] == 39, "charts")
    yield page
    trainer.finish()


def picture(page: Page, name: str) -> Any:
    """The parts of what a chart shows that a test asks for."""
    return page.run(
        f"""const p = document.getElementById("chart-{name}").plot.picture;
        return p && {{ range: p.x.range, ticks: p.x.ticks.map(([, words]) => words), y: p.y.range, last: p.stops.at(-1)?.x,
            lines: p.layers.filter((l) => l.kind === "line").map((l) => ({{ colour: l.colour, dash: l.dash, points: l.points }})),
            rules: p.layers.filter((l) => l.kind === "rule").map((l) => l.x) }};"""
    )


def chart(page: Page, name: str) -> Any:
    return page.browser.find_element(By.ID, f"chart-{name}")


def read(page: Page, name: str) -> str:
    """What a screen reader says of the place of the cursor, which is what is to be seen there."""
    told = chart(page, name).get_attribute("aria-valuetext").replace("\u202f", " ")
    shown = page.text(f"#chart-{name} .tip").replace("\n", ", ")
    assert told == shown
    return told


def test_values_are_read_with_the_arrow_keys(page: Page) -> None:
    """A step at a time, to either end, and away with Escape; the tab key leads there."""
    loss = chart(page, "loss")
    assert loss.get_attribute("role") == "slider"
    assert loss.get_attribute("aria-label") == "Loss over the run"

    loss.send_keys(Keys.END)
    assert read(page, "loss") == "step 39, loss 39"
    loss.send_keys(Keys.ARROW_LEFT * 2)
    assert read(page, "loss") == "step 37, loss 37"
    loss.send_keys(Keys.HOME)
    assert read(page, "loss") == "step 0, loss 0"
    assert loss.get_attribute("aria-valuenow") == "0"
    assert loss.get_attribute("aria-valuemax") == "39"
    loss.send_keys(Keys.ESCAPE)
    assert page.text("#chart-loss .tip") == ""


def test_values_are_read_under_the_pointer(page: Page) -> None:
    """Those of the nearest step."""
    ActionChains(page.browser).move_to_element(chart(page, "scale")).perform()

    told = read(page, "scale")
    step = int(told.split()[1].rstrip(","))
    assert abs(step - 19) <= 2
    assert told.endswith("loss scale 65 536" if step < 20 else "loss scale 32 768")


def test_what_is_dragged_over_is_seen_alone_in_all_charts_until_a_double_click(page: Page) -> None:
    """Values have the height that they then need."""
    whole = picture(page, "loss")
    box = chart(page, "loss")
    ActionChains(page.browser).move_to_element_with_offset(box, -50, 0).click_and_hold().move_by_offset(100, 3).release().perform()  # fmt: skip

    eventually(lambda: picture(page, "time")["range"] != whole["range"], "the zoom in another")
    shown = picture(page, "loss")
    assert whole["range"][0] < shown["range"][0] < shown["range"][1] < whole["range"][1]
    assert shown["y"][1] - shown["y"][0] < whole["y"][1] - whole["y"][0]
    ActionChains(page.browser).double_click(chart(page, "scale")).perform()
    eventually(lambda: picture(page, "loss")["range"] == whole["range"], "the whole run")


def test_the_last_tenth_is_of_the_steps(page: Page) -> None:
    """And the whole run is a click away."""
    page.click("#span [value='0.1']")
    eventually(lambda: picture(page, "time")["range"] == [36, 40], "four steps")
    page.click("#span [value='1']")
    eventually(lambda: picture(page, "time")["range"] == [0, 40], "all steps")


def test_charts_go_along_the_time_of_the_clock(page: Page) -> None:
    """Of the place where somebody looks."""
    page.click("#axis [value='time']")

    eventually(lambda: picture(page, "loss")["range"][0] > 1e9, "an axis of time")
    shown = picture(page, "loss")
    assert abs(shown["range"][1] - time.time()) < 600
    assert all(":" in tick for tick in shown["ticks"])
    chart(page, "loss").send_keys(Keys.END)
    assert read(page, "loss") == "step 39, loss 39"
    page.click("#axis [value='step']")
    eventually(lambda: picture(page, "loss")["range"] == [0, 40], "steps again")


def made_up(steps: int, began: float, loss: float) -> dict[str, list[Any]]:
    """Rows of a run as the daemon sends them."""
    known = {"steps": 1, "scale_low": 8.0, "scale_high": 8.0, "scale": 8.0, "nonfinite_losses": 0, "seconds": 1.0, "longest": 1.0}  # fmt: skip
    return {
        str(i): [
            {**known, "last_step": i, "loss": loss + i, "ended": began + i + 1}.get(column, 0)
            for column in COLUMNS
        ]
        for i in range(steps)
    }


def beside(page: Page, view: str) -> None:
    rows, others = made_up(10, 1e9, 0.0), made_up(20, 2e9, 50.0)
    page.browser.execute_async_script(BESIDE, view, list(COLUMNS), rows, others)


def test_a_second_run_is_drawn_on_the_same_axes_and_named(page: Page) -> None:
    """Dashed and in a colour of its own; both are read at a place."""
    beside(page, "compared")

    shown = picture(page, "loss")
    first, second = shown["lines"]
    assert (second["dash"], second["colour"]) == ("6 3", "--second")
    assert [first["points"][-1], second["points"][-1]] == [[9, 9], [19, 69]]
    assert shown["range"] == [0, 20]
    assert shown["y"][0] < 0
    assert shown["y"][1] > 69
    assert page.text("#second") == "other run"
    chart(page, "loss").send_keys(Keys.HOME)
    assert read(page, "loss") == "step 0, loss 0, other run: loss 50"


def test_runs_of_different_days_are_compared_from_their_starts(page: Page) -> None:
    """The clock would put them far from each other."""
    page.click("#axis [value='time']")
    beside(page, "compared")
    page.click("#axis [value='step']")
    page.click("#axis [value='time']")

    eventually(lambda: picture(page, "loss")["ticks"][0] == "0:00 min", "time since the start")
    assert picture(page, "loss")["range"] == [0, 20]
    chart(page, "loss").send_keys(Keys.HOME)
    assert read(page, "loss") == "step 0, loss 0, other run: loss 50"


def test_a_step_is_marked_in_all_charts(page: Page) -> None:
    """By a line across each of them."""
    beside(page, "marked")

    assert [picture(page, name)["rules"] for name in ("scale", "skips", "loss", "time")] == [
        [3]
    ] * 4
