"""Ranges on the page as users see them: a real daemon, real rings, headless Chromium."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from selenium.webdriver.chrome.webdriver import WebDriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from ampwatch.numerics.exponents import ExponentHistogram
from ampwatch.numerics.formats import FORMATS
from ampwatch.numerics.whatif import cast, scale_window
from ampwatch.report.words import percent, power_of_two
from ampwatch.wire.records import ALL_MODULES, Topic
from tests.host.daemon.parts import Daemon, Place, eventually
from tests.integration.browsing import Page, Trainer, daemon_of_module, place_of_module  # noqa: F401 - fixtures
from tests.workshop.records import FACTS, finding, histogram, ranges, sampling

pytestmark = [pytest.mark.nightly, pytest.mark.services]

FLOAT16 = FORMATS["float16"]
PLAIN = histogram(-46, *(2**i for i in range(1, 21)), *(2**i for i in range(19, 0, -2)), zeros=9000)
"""Gradients without the loss scale, a wide heap of them."""

CHART = "const c = document.getElementById('chart-exponents');"
DRAWN = f"{CHART} return c.plot.picture?.layers.length > 0"
LINES = f"""{CHART} return (c.plot.picture?.layers ?? []).filter((l) => l.kind === 'line')"""
FRAMES = """const done = arguments[0]; let left = 30;
    const next = () => (left-- ? requestAnimationFrame(next) : done()); next()"""
NAMES = "return [...document.querySelectorAll('#modules tbody th')].map((e) => e.textContent)"


class Sampled(Trainer):
    """A rank whose tensors are measured."""

    def sample(
        self,
        scale_exponent: int | None = 16,
        plain: ExponentHistogram = PLAIN,
        modules: Mapping[str, ExponentHistogram] | None = None,
        steps: int = 10,
        **flush: Any,
    ) -> None:
        """Train a few steps, without a scaler if there is no exponent, and sample the last one.

        ``flush`` is what the record says of zeros that were values.
        """
        shift = scale_exponent or 0
        self.train(steps, loss_scale=math.nan if scale_exponent is None else 2.0**shift)
        where = {"step": self.step, "time_ns": time.time_ns(), "loss_scale": 2.0**shift, **flush}
        for name, gradients in {**(modules or {}), ALL_MODULES: plain}.items():
            self.write(ranges(name, Topic.GRADIENT, gradients.shifted(shift), **where))
        self.write(sampling(step=self.step, interval=steps))


@pytest.fixture
def sampled(place: Place, request: pytest.FixtureRequest) -> Iterator[Sampled]:
    trainer = Sampled(place, run=request.node.name)
    trainer.write(FACTS)
    yield trainer
    trainer.finish()


@pytest.fixture
def page(browser: WebDriver, daemon: Daemon, sampled: Sampled) -> Page:
    page = Page(browser, daemon)
    page.choose(sampled.run)
    # Charts are drawn one a frame, and one without data is hidden as it is: what there was of the run
    # before is no chart of this one.
    page.browser.execute_async_script(FRAMES)
    page.run(f"{CHART} c.plot.picture = null")
    return page


def dial(page: Page) -> Any:
    return page.browser.find_element(By.ID, "whatif-scale")


def test_before_a_sample_the_page_says_why_there_is_nothing(sampled: Sampled, page: Page) -> None:
    """Under light nothing is ever measured: no empty chart, no empty table."""
    sampled.train(20)

    page.says("#ranges-sentence", 'Nothing was measured yet: level="standard"')
    for panel in ("#exponents-box", "#whatif", "#modules"):
        assert not page.browser.find_element(By.CSS_SELECTOR, panel).is_displayed()
    assert page.complaints() == []


def test_the_limits_move_with_the_scale_until_the_data_are_asked_to(
    sampled: Sampled, page: Page
) -> None:
    """Unscaled: the lines are stairs. Times the scale: the lines are flat, the data are stairs."""
    for exponent in (16, 12, 8):
        sampled.sample(exponent)
    edge = f"{LINES}.map((l) => l.points.map(([, y]) => y))"
    foot = f"""{CHART} const rows = c.plot.picture?.layers.find((l) => l.kind === 'heat').rows;
        return (rows?.[0].shades ?? []).map((_, i) => rows.find((row) => row.shades[i] !== null).from)"""

    eventually(lambda: page.run(DRAWN) and len(page.run(foot)) == 3, "three columns")
    top = math.log2(FLOAT16.overflow_from)
    limits = (top, top, -14, -14, -25, -25)  # each line with a halo under it
    for line, limit in zip(page.run(edge), limits, strict=True):
        assert line == pytest.approx([limit - 16, limit - 12, limit - 8, limit - 8])
    assert page.run(foot) == [-47, -47, -47]  # the lower end of bin -46

    page.click("#scaled input[value='yes']")
    eventually(lambda: page.run(foot) == [-31, -35, -39], "data that move")
    for line, limit in zip(page.run(edge), limits, strict=True):
        assert line == pytest.approx([limit] * 4)
    assert page.complaints() == []


def test_zeros_nan_and_infinities_are_rows_of_the_heatmap(sampled: Sampled, page: Page) -> None:
    """Empty rows stand where there are none, so that nobody has to guess."""
    sampled.sample(plain=histogram(-30, 10, zeros=10))
    sampled.sample(plain=histogram(-30, 10, nans=60, positive_infs=20, negative_infs=10))
    rows = f"""{CHART} return Object.fromEntries((c.plot.picture?.layers ?? [])
        .filter((l) => l.kind === 'heat').flatMap((l) => l.rows).filter((row) => row.name)
        .map((row) => [row.name, row.shades]))"""

    eventually(lambda: any((page.run(rows) or {}).get("NaN", ())), "both samples")
    shown = page.run(rows)
    assert shown["zero"] == [pytest.approx(1 + math.log10(0.5) / 6), None]
    assert shown["NaN"] == [None, pytest.approx(1 + math.log10(0.6) / 6)]
    assert shown["inf"] == [None, pytest.approx(1 + math.log10(0.3) / 6)]
    assert {"zero", "inf", "NaN"} <= set(page.text("#chart-exponents").split())


def test_a_sample_lasts_until_the_next_one_and_the_limits_until_now(
    sampled: Sampled, page: Page
) -> None:
    """However dense the first samples were; the newest lasts as long as the one before it."""
    for steps in (10, 10, 1000):
        sampled.sample(steps=steps)
    sampled.train(500, loss_scale=2.0**16)
    cells = f"{CHART} return c.plot.picture.layers.find((l) => l.kind === 'heat').edges"
    lines = f"{LINES}.map((l) => l.points.map(([x]) => x))"

    eventually(lambda: page.run(DRAWN) and page.run(cells)[-1] == 1520, "a run of 1520 steps")
    assert page.run(cells) == [9, 19, 1019, 1520]
    assert page.run(lines) == [[9, 19, 1019, 1520]] * 6

    sampled.train(1500, loss_scale=2.0**16)
    eventually(lambda: page.run(lines) == [[9, 19, 1019, 3020]] * 6, "limits up to now")
    assert page.run(cells) == [9, 19, 1019, 2019]


def test_modules_are_sorted_by_trouble_and_by_any_column_on_request(
    sampled: Sampled, page: Page
) -> None:
    """By pointer and keyboard; and what is not known comes last, whichever way."""
    modules = {
        "fine": histogram(-20, 5),
        "lost": histogram(-50, 5),
        "broken": histogram(-30, 5, nans=1),
        "layer.10": histogram(-21, 5),
        "layer.9": histogram(-22, 5),
    }
    sampled.sample(modules=modules)
    sampled.write(ranges("relu", Topic.ACTIVATION, histogram(0, 4), dtype="float16"))
    page.says("#modules-count", "6")

    assert page.run(NAMES) == ["broken", "lost", "fine", "layer.9", "layer.10", "relu"]
    assert "✖ non-finite" in page.text("#modules tbody tr:nth-child(1)")
    assert "▼ underflow" in page.text("#modules tbody tr:nth-child(2)")

    amax = page.browser.find_element(By.CSS_SELECTOR, "[data-column='gradient_amax'] button")
    amax.send_keys(Keys.ENTER)
    by_amax = ["fine", "layer.10", "layer.9", "broken", "lost"]
    assert page.run(NAMES) == [*by_amax, "relu"]
    sort = "return document.querySelector(\"[data-column='gradient_amax']\").ariaSort"
    assert page.run(sort) == "descending"
    amax.click()
    assert page.run(NAMES) == [*reversed(by_amax), "relu"]
    assert page.run(sort) == "ascending"
    page.click("[data-column='name'] button")
    assert page.run(NAMES) == ["broken", "fine", "layer.9", "layer.10", "lost", "relu"]
    steps = "return [...document.querySelectorAll('#modules tbody td:last-child')].map((e) => e.textContent)"
    assert page.run(steps) == ["9"] * 5 + ["0"]
    assert page.text("#modules th:last-child") == "Step"


def test_an_older_number_has_its_step_and_the_culprit_a_row(sampled: Sampled, page: Page) -> None:
    """Nobody takes an output of before an overflow for one of after it, and what overflowed is there to be seen."""
    sampled.write(ranges("fc", Topic.ACTIVATION, histogram(0, 4), step=4, dtype="float16"))
    sampled.sample(modules={"fc": histogram(-20, 5, nans=1)})
    sampled.write(finding("forward_overflow", "attention", last_step=9))
    page.says("#modules-count", "2")
    page.says("#modules tbody tr:nth-child(1)", "attention")

    assert "➤ culprit" in page.text("#modules tbody tr:nth-child(1)")
    steps = (
        "return [...document.querySelectorAll('#modules tbody small')].map((e) => e.textContent)"
    )
    assert page.run(steps) == ["step 4", "step 4"]


def test_the_filter_finds_modules_by_any_part_of_the_name(sampled: Sampled, page: Page) -> None:
    """The page says how many of how many."""
    names = [f"blocks.{i}.{part}" for i in range(12) for part in ("attn", "mlp")]
    sampled.sample(modules=dict.fromkeys(names, histogram(-20, 5)))
    page.says("#modules-count", "24")

    page.browser.find_element(By.ID, "modules-filter").send_keys("1.MLP")

    page.says("#modules-count", "2 of 24")
    assert page.run(NAMES) == ["blocks.1.mlp", "blocks.11.mlp"]


def test_a_module_can_be_taken_to_the_what_if_panel_and_back(sampled: Sampled, page: Page) -> None:
    """By its name, which is a button; the choice outlives the next sample."""
    modules = {"fc": histogram(-44, 5), "": histogram(-20, 5)}
    sampled.sample(modules=modules)
    page.says("#whatif-of", "all gradients, step 9")

    page.browser.find_element(By.CSS_SELECTOR, "#modules [data-key='fc']").send_keys(Keys.ENTER)
    page.says("#whatif-of", "gradient of fc, step 9")
    page.says("#whatif-outcome", "100 % of the non-zero elements would be flushed to zero")
    pressed = "return document.activeElement.ariaPressed"
    assert page.run(pressed) == "true"
    sampled.sample(modules=modules)
    page.says("#whatif-of", "gradient of fc, step 19")

    page.click("#whatif-all")
    page.says("#whatif-of", "all gradients, step 19")
    page.click("#modules [data-key='']")
    page.says("#whatif-of", "gradient of (root module)")


def test_dragging_the_scale_tells_what_would_be_lost(sampled: Sampled, page: Page) -> None:
    """In the numbers of ampwatch.numerics.whatif, at every place of the dial."""
    sampled.sample(16)
    at_first = f"In float16 at scale 2¹⁶, {percent(cast(PLAIN, FLOAT16, 16).underflow_share)} of"
    page.says("#whatif-outcome", at_first)
    window = scale_window(PLAIN, FLOAT16)
    page.says("#whatif-window", "keep both ends")
    assert page.text("#whatif-notes").startswith(
        f"{power_of_two(2.0**window.low)} to {power_of_two(2.0**window.high)}"
        " flush at most 0.1 % of the non-zero elements to zero, and nothing overflows."
    )

    dial(page).send_keys(Keys.ARROW_LEFT * 6)
    lost = percent(cast(PLAIN, FLOAT16, 10).underflow_share)
    page.says("#whatif-outcome", f"at scale 2¹⁰, {lost} of the non-zero elements")
    assert "2¹⁰ = 1 024" in page.text("#whatif-value")
    assert "now 2¹⁶" in page.text("#whatif-mark")

    ActionChains(page.browser).drag_and_drop_by_offset(dial(page), 300, 0).perform()
    exponent = int(dial(page).get_property("value"))
    assert exponent != 10
    flushed = cast(PLAIN, FLOAT16, exponent).underflow_share
    overflow = cast(PLAIN, FLOAT16, exponent).overflow_share
    page.says("#whatif-fates", f"flushed to zero {percent(flushed)}")
    page.says("#whatif-fates", f"overflow {percent(overflow)}")

    page.click("#whatif-now")
    page.says("#whatif-value", "65 536")
    page.says("#whatif-outcome", at_first)


@pytest.mark.parametrize(
    ("plain", "flushed", "words"),
    [
        (histogram(0, zeros=90), -1, "Nothing but zeros was ever measured"),
        (histogram(0, zeros=90), 0, "no scale would change anything"),
        (histogram(0, nans=40), 0, "Nothing finite was measured."),
    ],
)
def test_zeros_are_explained_as_far_as_that_is_known(
    plain: ExponentHistogram, flushed: int, words: str, sampled: Sampled, page: Page
) -> None:
    """A model that never learnt is told from one whose gradients ended by themselves."""
    sampled.sample(16, plain=plain, flushed=flushed)

    page.says("#whatif-outcome", words)


def test_without_a_scaler_there_is_no_loss_scale_to_go_back_to(
    sampled: Sampled, page: Page
) -> None:
    """A scale can be tried anyway."""
    sampled.sample(None, plain=histogram(-9, *[1] * 10))

    page.says("#whatif-value", "none")
    page.says(
        "#whatif-outcome", "In float16 without a loss scale, nothing would be flushed to zero"
    )
    page.says("#whatif-fates", "normal 100 %")
    assert not page.browser.find_element(By.ID, "whatif-mark").is_displayed()
    dial(page).send_keys(Keys.ARROW_RIGHT)
    page.says("#whatif-value", "2¹ = 2")
    assert "2⁰" not in page.text("#whatif .dial")
    page.click("#whatif-now")
    page.says("#whatif-value", "none")
