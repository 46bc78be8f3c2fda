"""The page as a user sees it: a real daemon, real rings, headless Chromium."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from selenium.webdriver.chrome.webdriver import WebDriver
from selenium.webdriver.common.by import By

from ampwatch.report.one_line import address
from ampwatch.wire.records import FactsRecord, FindingRecord, Measure, SkipClass, Tried
from tests.host.daemon.parts import Place, eventually
from tests.integration.browsing import Page, Trainer
from tests.workshop.fleets import PRECISION, RANGES
from tests.workshop.records import FACTS, ON_DEVICE, finding

pytestmark = [pytest.mark.nightly, pytest.mark.services]


def test_without_a_run_the_page_says_so_and_what_to_do(page: Page) -> None:
    """A new user reads "no runs yet" and the line to add."""
    page.says("main", "no runs yet")

    assert "watch = ampwatch.monitor(model, scaler)" in page.text("main")
    assert page.complaints() == []


def test_a_finding_appears_with_its_advice_and_its_symptom_below(
    trainer: Trainer, page: Page
) -> None:
    """Severity in words, where, since when, what to change; and names are text, never markup."""
    hostile = "model.<img src=x onerror=window.broken=1>"
    trainer.train(30)
    page.says("#no-findings", "No findings")

    root = finding("forward_overflow", hostile, first_step=27, last_step=29, count=3).finding
    root.summary, root.kind_advice = f"{hostile}: mm overflowed.", "Keep this layer in float32."
    symptom = finding("scale_collapse", root=False, caused_by=root.key, last_step=29)
    trainer.write(symptom)
    trainer.write(FindingRecord(root))

    page.says("#run h1", "✖ failing, since step 27")
    page.says("#run-cause", hostile)
    page.says("#run-advice", "Keep this layer in float32.")
    row = "#findings > details"
    assert page.run(f"return document.querySelectorAll('{row}').length") == 1
    line = page.text(f"{row} > summary")
    assert "✖ critical" in line
    assert "since step 27" in line
    assert "explains 1 more" in line
    assert "Keep this layer" not in page.text("#findings")
    page.click(f"{row} > summary")
    assert "Keep this layer in float32." in page.text(row)
    page.click(f"{row} details > summary")
    assert "explained by forward_overflow (module model.<img" in page.text(f"{row} details")
    assert page.run("return document.querySelectorAll('main img').length") == 0
    assert page.run("return window.broken") is None


def test_a_remedy_that_was_tried_is_marked_by_more_than_a_colour(
    trainer: Trainer, page: Page, tmp_path: Path
) -> None:
    """In the headline and at the finding, there with the change of the line."""
    file = tmp_path / "model.py"
    file.write_text("import torch\nx = self.decoder(x)\n")
    trainer.train(30)
    tried = (Tried(Measure.MODULE_IN_FLOAT32, "decoder", 27, cures=True),)
    trainer.write(
        finding("forward_overflow", "decoder", source=f"{file}:2", last_step=29, tried=tried)
    )

    page.says("#run-advice", "Run module decoder in float32 (tried on the batch of step 27")
    assert page.text("#run-tried") == "✓ tried"
    page.click("#findings summary")
    assert page.text("#findings .tried") == "✓ tried"
    assert f"The change, in {file}:2:\n- x = self.decoder(x)\n+ with" in page.text(".change")


def test_an_empty_section_says_what_would_stand_in_it(trainer: Trainer, page: Page) -> None:
    """Until it does."""
    would = "return [...document.querySelectorAll('.would')].map((p) => p.checkVisibility())"
    trainer.train(30)
    page.says("#run h1", "at step 29")
    assert page.run(would) == [True, True, True, True, True]
    assert "Each finding is one line here" in page.text("#no-findings")

    trainer.write(FACTS)
    for record in (*RANGES, *PRECISION):
        trainer.write(record)
    trainer.train(2, phases=ON_DEVICE)

    eventually(lambda: page.run(would) == [False, False, False, False, True], "all but GPUs")


SIZES = [(1440, 900), (768, 1024), (390, 844)]


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_figures_are_those_that_are_known_and_nothing_is_cut_at_any_width(
    trainer: Trainer, page: Page, width: int, height: int
) -> None:
    """Neither a long name nor a storm makes the page wider than the screen."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    cut = (
        "return [...document.querySelectorAll('#headline *, #figures *, #findings *')].filter("
        "(part) => part.scrollWidth > part.clientWidth + 1 && part.clientWidth"
        " && getComputedStyle(part).display !== 'inline').map((part) => part.className || part.id)"
    )
    titles = (
        "return [...document.querySelectorAll('#figures dt')].map((title) => title.textContent)"
    )
    storm = {"skip_class": SkipClass.STORM, "loss_scale": 2.0**-44, "total_backoffs": 60}
    trainer.train(30, **storm)
    trainer.write(finding("forward_overflow", ".".join(["layers"] * 40), last_step=29))
    page.says("#run h1", "failing")
    page.says("#figures", "2⁻⁴⁴")
    page.click("#findings summary")

    assert page.run(titles) == [
        "Loss scale",
        "Skipped",
        "Loss",
        "Step",
        "Step time",
        "Cost of ampwatch",
    ]
    assert page.run(cut) == []
    assert page.run("return document.documentElement.scrollWidth <= window.innerWidth")
    page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_what_somebody_unfolds_is_unfolded_next_time(trainer: Trainer, page: Page) -> None:
    """At first the map alone; a rank alone has no card for its heartbeat."""
    trainer.train(30)
    page.says("#run h1", "at step 29")
    open_ = "return [...document.querySelectorAll('.fold[open]')].map((f) => f.parentElement.id)"
    page.run("localStorage.setItem('ampwatch-unfolded', 'map')")
    page.browser.refresh()
    page.says("#run h1", "at step 29")
    assert page.run(open_) == ["map"]
    assert not page.run("return document.getElementById('ranks-box').checkVisibility()")

    page.click("#precision summary")
    kept = "return localStorage.getItem('ampwatch-unfolded')"
    eventually(lambda: page.run(kept) == "map precision", "what was unfolded is kept")
    page.browser.refresh()
    page.says("#run h1", "at step 29")

    assert page.run(open_) == ["map", "precision"]
    page.run("localStorage.removeItem('ampwatch-unfolded')")


def test_a_finding_leads_to_the_page_about_its_kind(trainer: Trainer, page: Page) -> None:
    """On the daemon that shows it, in the theme that was chosen, with nothing refused or missing."""
    trainer.train(30)
    trainer.write(finding("forward_overflow", "decoder", first_step=27))
    page.says("#findings", "forward_overflow")
    page.click("#findings summary")
    page.says("#findings", "More about forward_overflow")
    page.click("#theme")
    chosen = page.run("return document.documentElement.dataset.theme")

    page.click("#findings a")

    page.says("h1", "forward_overflow: an op turns finite inputs into infinity")
    assert page.browser.current_url.endswith("/explain/forward_overflow")
    assert page.run("return document.documentElement.dataset.theme") == chosen
    wide = page.run("return document.documentElement.scrollWidth <= window.innerWidth")
    assert wide
    assert page.browser.get_log("browser") == []
    page.click("header a")
    page.says("#findings", "forward_overflow")


def test_skips_are_marked_by_class_and_a_scale_below_one_is_named(
    trainer: Trainer, page: Page
) -> None:
    """The loss scale is drawn on a log axis, each class of skip by a symbol of its own."""
    trainer.train(30)
    for i in range(20):
        trainer.train(
            1,
            loss_scale=65536.0 / 2 ** (i + 1),
            skip_class=SkipClass.STORM,
            consecutive_skips=i + 1,
        )

    chart = "const c = document.getElementById('chart-scale');"
    marked = f"""{chart} return c.plot.picture?.layers.find((l) => l.sign === 'cross')
        ?.points.map(([x]) => x)"""
    eventually(lambda: page.run(marked) == list(range(30, 50)), "marks of the storm")
    drawn = page.run(f"{chart} return c.querySelector('[data-sign=cross]').getAttribute('d')")
    assert drawn.count("M") == 20
    assert page.text("#chart-scale").count("2") > 3  # powers of two
    assert "reduces the loss" in page.text("#chart-scale")
    signs = f"{chart} return [...c.querySelectorAll('[data-sign]')].map((e) => e.dataset.sign)"
    assert len(set(page.run(signs))) == 4


def test_the_charts_say_from_where_on_they_hold(trainer: Trainer, page: Page) -> None:
    """A daemon that came late has not read the first steps, and the page does not pretend."""
    trainer.step = 4999
    trainer.train(30)

    page.says("#charts-title", "History from step 5 000")


def test_the_ranks_of_a_run_beat_side_by_side_and_can_be_chosen(place: Place, page: Page) -> None:
    """By pointer or keyboard; and what is behind or elsewhere is said."""
    ranks = [Trainer(place, rank=rank, world_size=4) for rank in (0, 1)]
    ranks[0].train(40)
    ranks[1].train(30)
    page.says("#ranks", "step 29")

    assert "10 behind" in page.text("#ranks [data-key='1']")
    assert "2 of 4 ranks are not on this machine" in page.text("#ranks-title")
    page.says("#figures", "39")
    page.browser.find_element(By.CSS_SELECTOR, "#ranks [data-key='1']").send_keys("\n")
    page.says("#figures", "29")
    for rank in ranks:
        rank.finish()


def test_an_address_from_a_log_leads_to_its_own_run_of_two_of_one_name(
    place: Place, page: Page
) -> None:
    """The daemon numbers the one that started later, which its log cannot know."""
    first = Trainer(place, "gpt")
    time.sleep(0.01)  # an address tells starts apart by the millisecond
    second = Trainer(place, "gpt")
    first.train(30)
    second.train(50)
    eventually(
        lambda: page.run("return document.querySelectorAll('#runs [data-key]').length == 2"), "both"
    )

    for trainer, words in ((second, "step 49"), (first, "step 29"), (second, "step 49")):
        page.browser.get(address(page.url, "gpt", 0, trainer.started_ns))
        page.says("#run h1", words)
    page.browser.get(address(page.url, "gpt", 0, 1))
    page.says("#run h1", "step 29")
    page.choose("gpt~2")
    page.says("#run h1", "step 49")
    for trainer in (first, second):
        trainer.finish()


def test_when_the_daemon_is_gone_the_page_says_so_and_comes_back_with_it(
    place: Place, browser: WebDriver, trainer: Trainer
) -> None:
    """The last data stay on the page; nobody has to reload it."""
    trainer.train(30)
    with place.daemon() as first:
        page = Page(browser, first)
        page.says("#connection", "live")
        page.says("#run h1", "step 29")

    page.says("#gone", "daemon gone: last news")
    assert "start training, or run `ampwatch daemon`" in page.text("#gone")
    assert "step 29" in page.text("#run h1")
    trainer.train(5)
    with place.daemon("--port", str(first.info.port)):
        page.says("#connection", "live")
        page.says("#run h1", "step 34")
        assert page.text("#gone") == ""
        browser.get("about:blank")


def test_the_page_follows_the_theme_of_the_system_until_the_user_chooses(page: Page) -> None:
    """The page remembers the choice."""
    ground = "return getComputedStyle(document.body).backgroundColor"
    grounds = {}
    for theme in ("light", "dark"):
        media = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
        page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        grounds[theme] = page.run(ground)
    assert grounds["light"] != grounds["dark"]

    page.says("#theme", "system")
    page.click("#theme")
    assert page.run(ground) == grounds["light"]
    page.browser.refresh()
    page.says("#theme", "light")
    assert page.run(ground) == grounds["light"]


def test_facts_and_unreadable_rings_are_reported(
    place: Place, trainer: Trainer, page: Page
) -> None:
    """Facts of the run, and reasons why something is not shown."""
    trainer.write(FactsRecord({"growth_interval": "2000", "torch": "2.13.0"}))
    trainer.train(3)
    (place.rings / "broken.ring").write_bytes(b"this is no ring at all" * 400)

    page.says("#problems-box", "broken.ring")
    page.click("#facts-box summary")
    page.says("#facts", "2000")


def test_the_browser_merges_what_python_takes_apart(trainer: Trainer, page: Page) -> None:
    """The page's own merge of full and patches is the full state, hostile names included."""
    states = [
        {"runs": {"a": {"step": 1, "series": {"0": [0, None], "1": [1, 2]}}}, "gone": {}},
        {"runs": {"a": {"step": 2, "series": {"0": [1, 2]}}, "__proto__": {"step": 3}}},
        {"runs": {}, "constructor": {"x": "NaN"}},
    ]
    patches = [
        states[0],
        {
            "runs": {
                "a": {"step": 2, "series": {"0": [1, 2], "1": None}},
                "__proto__": {"step": 3},
            },
            "gone": None,
        },
        {"runs": {"a": None, "__proto__": None}, "constructor": {"x": "NaN"}},
    ]
    script = """
        const [texts, done] = arguments;
        import("/static/state.js").then(({ merge }) => {
          let state = null;
          done(texts.map((text) => JSON.stringify(state = merge(state, JSON.parse(text)))));
        });
    """

    merged = page.browser.execute_async_script(script, [json.dumps(p) for p in patches])

    assert [json.loads(text) for text in merged] == states
