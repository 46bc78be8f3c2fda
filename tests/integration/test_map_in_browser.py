"""The map of the model as users see it: a real daemon, real rings, headless Chromium."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from selenium.webdriver.chrome.webdriver import WebDriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from ampwatch.numerics.units.ops import Fallback
from ampwatch.wire.records import Topic
from tests.host.daemon.parts import Daemon, Place, eventually
from tests.integration.browsing import Page, Trainer, daemon_of_module, place_of_module  # noqa: F401 - fixtures
from tests.workshop.records import (
    FACTS,
    census,
    finding,
    histogram,
    op_row,
    planned,
    ranges,
    sampling,
)

pytestmark = [pytest.mark.nightly, pytest.mark.services]

MODULES = (
    "stem",
    *(f"blocks.{i}.{part}" for i in range(3) for part in ("attn", "mlp")),
    "head",
)
CULPRIT = "blocks.1.mlp"
ROWS = (
    "return [...document.querySelectorAll('#map-tree li')].map((e) => e.getAttribute('aria-label'))"
)
PIXEL = """const canvas = document.getElementById('map-cells');
    const copy = document.createElement('canvas');
    [copy.width, copy.height] = [canvas.width, canvas.height];
    const context = copy.getContext('2d', { willReadFrequently: true });
    context.drawImage(canvas, 0, 0);
    const [column, row, share] = arguments;
    const wide = Math.min(22, canvas.clientWidth / 4);
    const at = [(column + 0.4) * wide, (row + share) * 18].map((px) => px * window.devicePixelRatio);
    return [...context.getImageData(...at, 1, 1).data]"""
LARGE = """const { firstUnfolded, rowsOf, treeOf } = await import('/static/map_tree.js');
    const { drawCells } = await import('/static/map_draw.js');
    const modules = ['embed'];
    for (let block = 0; block < 250; block += 1) {
      for (const part of ['ln', 'q', 'k', 'v', 'proj', 'up', 'act', 'down']) modules.push(`model.blocks.${block}.${part}`);
    }
    const columns = Array.from({ length: 96 }, (_, i) => [i, i]);
    const rows = modules.map((name) => (name === 'model.blocks.177.up' ? 'b' : 'a').repeat(96));
    const map = { modules, columns, rows };
    const places = new Map([['.', 0], ['a', 1], ['b', 2]]);
    const canvas = document.createElement('canvas');
    const tree = treeOf(map, places);
    const shown = rowsOf(tree, firstUnfolded(tree, 'model.blocks.177.up'));
    drawCells(canvas, shown.map(({ node }) => node), {
      codes: [{ reason: 'none' }, { reason: 'quiet', grade: 0 }, { reason: 'nonfinite', grade: 2 }],
      columns: 96, width: 800, rowHeight: 18, shift: 0, height: 738, mark: 40, breaks: [3], colour: () => 'rgb(1, 2, 3)',
    });
    arguments[0]({
      names: shown.map(({ node }) => node.key), worst: shown.map(({ node }) => node.worst),
      sizes: shown.map(({ node }) => node.size),
    });"""


class Mapped(Trainer):
    """A rank whose modules are measured."""

    def sample(self, *worse: str) -> None:
        """Train a few steps and sample the outputs of all modules; those of ``worse`` overflow."""
        self.train(10)
        where = {"step": self.step, "time_ns": time.time_ns(), "dtype": "float16"}
        for name in MODULES:
            bad = {"positive_infs": 700} if name in worse else {}
            self.write(ranges(name, Topic.ACTIVATION, histogram(-8, 100, 200, **bad), **where))
        self.write(ranges("head", Topic.GRADIENT, histogram(-30, 600, *[0] * 20, 400), **where))
        self.write(sampling(step=self.step))
        self.train(1)


@pytest.fixture
def mapped(place: Place, request: pytest.FixtureRequest) -> Iterator[Mapped]:
    trainer = Mapped(place, run=request.node.name)
    trainer.write(FACTS)
    yield trainer
    trainer.finish()


@pytest.fixture
def page(browser: WebDriver, daemon: Daemon, mapped: Mapped) -> Page:
    page = Page(browser, daemon)
    page.choose(mapped.run)
    page.run("document.getElementById('map').scrollIntoView()")
    return page


def rows(page: Page) -> list[str]:
    found: list[str] = page.run(ROWS)
    return found


def fail(mapped: Mapped) -> None:
    """Two samples in which all is well, two in which one module overflows, and a finding of it."""
    mapped.sample()
    mapped.sample()
    first = mapped.step
    mapped.sample(CULPRIT)
    mapped.sample(CULPRIT)
    where = {"first_step": first, "last_step": mapped.step, "count": 9, "phase": "forward"}
    mapped.write(finding("forward_overflow", CULPRIT, **where))


def test_the_culprit_stands_out_and_is_said_in_words(mapped: Mapped, page: Page) -> None:
    """Its way is unfolded, its row has a sign, and the list of troubles begins with it."""
    mapped.write(
        census(rows=(op_row("", "float32", module="stem", fallback=Fallback.DISABLED_REGION),))
    )
    fail(mapped)

    eventually(lambda: any("culprit" in row for row in rows(page)), "the culprit")
    assert f"{CULPRIT}: the culprit, non-finite" in rows(page)
    assert "stem: in float32" in rows(page)
    assert "head: underflow" in rows(page)
    worst = page.text("#map-worst li:first-child")
    assert worst.startswith("✖")
    assert f"{CULPRIT} non-finite since step" in " ".join(worst.split())
    assert page.text("#map-axis .culprit").startswith("▼ step")
    assert page.complaints() == []


def test_a_cell_is_drawn_as_the_legend_says(mapped: Mapped, page: Page) -> None:
    """Non-finite fills the cell, underflow its lower half, and what has no sample stays open."""
    fail(mapped)
    eventually(lambda: any("culprit" in row for row in rows(page)), "the culprit")
    place = {row.partition(":")[0]: i for i, row in enumerate(rows(page))}
    quiet = page.run(PIXEL, 0, place[CULPRIT], 0.5)

    assert page.run(PIXEL, 3, place[CULPRIT], 0.2) == page.run(PIXEL, 3, place[CULPRIT], 0.8)
    assert page.run(PIXEL, 3, place[CULPRIT], 0.5) != quiet
    assert page.run(PIXEL, 0, place["head"], 0.25) == quiet
    assert page.run(PIXEL, 0, place["head"], 0.75) != quiet
    assert page.complaints() == []


def test_the_map_works_with_the_keyboard(mapped: Mapped, page: Page) -> None:
    """Up and down go from row to row, left folds, right unfolds, Enter shows a module."""
    fail(mapped)
    eventually(lambda: len(rows(page)) == 12, "all rows")
    # A map that was asked for before the verdict was passed names no culprit yet.
    marked = "return document.querySelector('#map-tree [data-culprit=true]') !== null"
    eventually(lambda: page.run(marked), "the culprit")
    tree = page.browser.find_element(By.ID, "map-tree")

    def active() -> Any:
        return page.run(
            "return document.getElementById(document.getElementById('map-tree')"
            ".getAttribute('aria-activedescendant')).getAttribute('aria-label')"
        )

    tree.send_keys(Keys.HOME)
    assert active().startswith("stem")
    tree.send_keys(Keys.DOWN)
    assert active() == "blocks"
    tree.send_keys(Keys.LEFT)
    assert active() == "blocks: holds the culprit, 6 modules, folded, non-finite, 1 in trouble"
    assert len(rows(page)) == 3
    tree.send_keys(Keys.RIGHT, Keys.DOWN, Keys.DOWN)
    assert active() == "blocks.0.attn"
    tree.send_keys(Keys.LEFT)
    assert active() == "blocks.0"
    tree.send_keys(Keys.END, Keys.ENTER)
    page.says("#map-course-title", "head")
    page.says("#map-words", "underflow since step")
    page.click("#map-explore")
    page.says("#whatif-of", "gradient of head")
    assert page.complaints() == []


def test_a_module_shows_its_exponents_and_the_limits(mapped: Mapped, page: Page) -> None:
    """Choosing it in the list of troubles goes to its row as well."""
    fail(mapped)
    eventually(lambda: page.run("return document.querySelector('#map-worst button')"), "a list")
    page.click(f"#map-worst [data-key='{CULPRIT}']")

    page.says("#map-course-title", CULPRIT)
    newest = "return document.querySelector('#map-charts .chart')?.getAttribute('aria-valuemax')"
    eventually(lambda: page.run(newest) == "3", "a chart of four samples")
    chart = page.browser.find_element(By.CSS_SELECTOR, "#map-charts .chart")
    chart.send_keys(Keys.HOME)
    assert chart.get_attribute("aria-valuetext").startswith("step 9, 2⁻⁹ to 2")
    assert "smallest normal" in page.text("#map-charts")
    assert "Not measured so far." in page.text("#map-charts")
    selected = page.browser.find_elements(By.CSS_SELECTOR, "#map-tree [aria-selected='true']")
    assert [row.get_attribute("title") for row in selected] == [CULPRIT]
    page.click("#map-close")
    assert not page.browser.find_element(By.ID, "map-course").is_displayed()
    assert page.complaints() == []


def test_two_thousand_modules_are_forty_rows(page: Page) -> None:
    """The culprit has its row, the others are in groups of neighbours, and none is lost."""
    found = page.browser.execute_async_script(f"(async () => {{ {LARGE} }}).apply(null, arguments)")

    assert len(found["names"]) <= 60
    assert [
        name for name, worst in zip(found["names"], found["worst"], strict=True) if worst > 1
    ] == [
        "model.blocks",
        "model.blocks.176 …",
        "model.blocks.177",
        "model.blocks.177.up",
    ]
    assert max(found["sizes"]) == 2000


def test_nobody_asks_for_a_map_that_is_not_seen(mapped: Mapped, page: Page) -> None:
    """It is fetched when it comes into view, and a map that is as it was is not sent again."""
    fail(mapped)
    eventually(lambda: rows(page), "rows")
    asked = "return performance.getEntriesByType('resource').filter((e) => e.name.includes('/map.json')).length"
    page.run("document.getElementById('facts-box').scrollIntoView()")
    # A request that is on its way when the map is left is over when more news have come.
    counts = []
    for _ in range(4):
        mapped.sample()
        page.says("#figures", str(mapped.step))
        counts.append(page.run(asked))

    assert counts[1:] == [counts[1]] * 3
    assert page.complaints() == []


def row_of(page: Page, module: str) -> int:
    """Return which row of the map is that of a module in trouble."""
    return next(n for n, name in enumerate(rows(page)) if name.startswith(f"{module}: "))


def said_in_cells(page: Page, row: int, columns: int) -> list[str]:
    """Return what is said where a pointer is over the cells of a row, one after the other."""
    page.run("document.getElementById('map-cells').scrollIntoView({ block: 'center' })")
    says = []
    for column in range(columns):
        move = f"""const canvas = document.getElementById('map-cells');
            const box = canvas.getBoundingClientRect();
            canvas.dispatchEvent(new PointerEvent('pointermove', {{ clientX: box.left + (box.width * ({column} + 0.5)) / {columns}, clientY: box.top + ({row} + 0.5) * 18 }}));"""
        page.run(move)
        says.append(page.text("#map-cell"))
    return says


def test_a_plan_colours_the_map_by_the_cheapest_format(mapped: Mapped, page: Page) -> None:
    """Once one was asked for; each cell is drawn as the legend has it, and says its format and its dB."""
    mapped.sample()
    page.says("#map-sentence", "modules")
    shows = page.browser.find_element(By.ID, "map-shows")
    assert not shows.is_displayed()
    mapped.write(planned(CULPRIT))
    eventually(shows.is_displayed, "the choice of colours")

    page.browser.find_element(By.CSS_SELECTOR, "#map-shows [value=plan]").click()
    page.says("#map-about", "It rests on 8 measured iterations")
    assert page.text("#map-axis") == "forward\ngrad. of input\ngrad. of weight"
    assert page.text("#map-legend").splitlines()[:2] == [
        "4 bits nvfp4",
        "8 bits float8_e4m3fn, float8_e5m2 x float8_e4m3fn",
    ]
    row = row_of(page, CULPRIT)
    assert rows(page)[row] == f"{CULPRIT}: 8 bits"
    says = said_in_cells(page, row, 3)
    assert says == [
        f"{CULPRIT} · forward · nvfp4, 17.2 dB; not mxfp4: 14.1 dB (input 17.0, weight 17.2)",
        f"{CULPRIT} · grad. of input · float8_e5m2 x float8_e4m3fn, 26.1 dB; not mxfp8_e4m3: blocks were not measured",
        f"{CULPRIT} · grad. of weight · float8_e4m3fn, 28.8 dB; not nvfp4: 12.2% of grad_output become zero",
    ]

    # For those who have no pointer: chosen with the keyboard, a module says the same.
    page.run(f"document.getElementById('map-row-{row}').querySelector('.name').click()")
    page.says("#map-words", "forward: nvfp4, 17.2 dB; not mxfp4: 14.1 dB")
    assert len(page.text("#map-words").splitlines()) >= len(says)

    page.browser.find_element(By.CSS_SELECTOR, "#map-shows [value=trouble]").click()
    page.says("#map-legend", "Each column is one or more samples")
    assert not page.browser.find_element(By.ID, "map-about").is_displayed()
    assert page.complaints() == []
