"""Choosing on the page: runs, ranks, addresses, two runs side by side; real rings, headless Chromium."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from urllib.parse import quote

import pytest
from selenium.webdriver.chrome.webdriver import WebDriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from ampwatch.report.one_line import address
from ampwatch.wire.records import FindingRecord, Severity
from tests.host.daemon.parts import Place, eventually
from tests.integration.browsing import Page, Trainer
from tests.workshop.records import alarm, finding

pytestmark = [pytest.mark.nightly, pytest.mark.services]

ROWS = "[...document.querySelectorAll('#runs-list [role=option]')]"
SEEN = f"return {ROWS}.filter((row) => !row.hidden).map((row) => row.dataset.key)"
FOCUS = "return document.activeElement.dataset.key"
HASH = "return location.hash"
SCREEN = {"width": 1440, "height": 900, "deviceScaleFactor": 1, "mobile": False}
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
OVERFLOW = alarm("forward_overflow", "decoder.7", first_step=12, last_step=29, count=3)


@pytest.fixture(autouse=True)
def wide(browser: WebDriver) -> Iterator[None]:
    """A screen on which the list of runs has its place."""
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", SCREEN)
    yield
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@contextmanager
def runs(place: Place, *names: str) -> Iterator[Sequence[Trainer]]:
    """Runs of 30 steps, one after the other."""
    trainers = []
    for name in names:
        trainers.append(Trainer(place, name))
        trainers[-1].train(30)
        time.sleep(0.01)  # they have different starts
    yield trainers
    for trainer in trainers:
        trainer.finish()


@contextmanager
def job(place: Place, num_ranks: int, name: str = "gpt") -> Iterator[Sequence[Trainer]]:
    """A run of several ranks, of five steps each."""
    ranks = [Trainer(place, name, rank, num_ranks, slots=64) for rank in range(num_ranks)]
    for rank in ranks:
        rank.train(5)
    yield ranks
    for rank in ranks:
        rank.finish()


def option(page: Page, at: str, key: str) -> WebElement:
    return page.browser.find_element(By.CSS_SELECTOR, f"{at} [data-key='{key}']")


# The runs.


def test_runs_stand_worst_first_or_newest_first_and_the_page_remembers_which(
    place: Place, page: Page
) -> None:
    """Of equals the newest is first."""
    with runs(place, "one", "two", "three", "four", "five") as trainers:
        trainers[1].write(finding(severity=Severity.WARNING, last_step=29))
        worst_first = ["two", "five", "four", "three", "one"]
        eventually(lambda: page.run(SEEN) == worst_first, "the worst first")
        assert page.text("#runs-count") == "1 needs attention, 4 healthy"
        page.says("#run h1", "two · ▲ needs attention")

        page.click("#runs-tools [value=newest]")

        newest_first = ["five", "four", "three", "two", "one"]
        assert page.run(SEEN) == newest_first
        page.browser.refresh()
        eventually(lambda: page.run(SEEN) == newest_first, "the newest first")
        page.click("#runs-tools [value=worst]")
        assert page.run(SEEN) == worst_first


def test_a_run_is_found_by_parts_of_its_name_its_user_or_its_host(place: Place, page: Page) -> None:
    """In any order; and where there is none, that is said."""
    with runs(place, "vit-1", "vit-2", "bert-1", "bert-2", "unet-1"):
        eventually(lambda: len(page.run(SEEN)) == 5, "all runs")
        search = page.browser.find_element(By.ID, "runs-search")

        search.send_keys("2 VIT")
        assert page.run(SEEN) == ["vit-2"]
        assert page.text("#runs-count") == "1 of 5 runs"
        search.clear()
        search.send_keys("node")
        assert len(page.run(SEEN)) == 5
        search.send_keys("x")
        assert page.run(SEEN) == []
        assert page.text("#runs-count").startswith("None of 5 runs has this in its name")


def test_a_row_says_state_name_since_when_and_its_ranks(place: Place, page: Page) -> None:
    """Of one that is over, for how long it ran."""
    with runs(place, "calm"), job(place, 2):
        page.says("#runs [data-key='gpt'] .level", "✓ healthy")
        page.says("#runs [data-key='gpt'] .since", "2 ranks")
        began = page.run(
            "return new Date(Date.now()).toLocaleTimeString('en-GB').slice(0, 2) + ':'"
        )
        assert page.text("#runs [data-key='gpt'] .since").startswith(f"since {began}")
    page.says("#runs [data-key='gpt'] .since", "ran ")


def test_a_list_of_many_runs_scrolls_inside_itself(place: Place, page: Page) -> None:
    """It is no higher than the screen, however many there are, and goes to the one that is shown."""
    many = [Trainer(place, f"sweep-{i}", slots=64) for i in range(40)]
    for trainer in many:
        trainer.train(2)
    eventually(lambda: len(page.run(SEEN)) == 40, "all runs")

    room = "const { scrollHeight, clientHeight } = document.getElementById('runs-list');"
    assert page.run(f"{room} return scrollHeight > 2 * clientHeight")
    box = page.run("return document.getElementById('runs').getBoundingClientRect().toJSON()")
    assert box["height"] < SCREEN["height"]
    page.browser.get(f"{page.url}#run=sweep-0")
    page.says("#run h1", "sweep-0")
    row = page.run(
        "return document.querySelector('[aria-selected=true]').getBoundingClientRect().toJSON()"
    )
    assert box["top"] < row["top"] < row["bottom"] < box["bottom"]
    for trainer in many:
        trainer.finish()


def test_runs_are_walked_through_with_the_keyboard(place: Place, page: Page) -> None:
    """One stop of the tabulator, arrows inside, Enter chooses; and what is chosen can be gone back from."""
    with runs(place, "one", "two", "three"):
        eventually(lambda: len(page.run(SEEN)) == 3, "all runs")
        page.says("#run h1", "three")
        stops = f"return {ROWS}.filter((row) => row.tabIndex === 0).length"
        assert page.run(stops) == 1

        option(page, "#runs-list", "three").send_keys(Keys.ARROW_DOWN)
        assert page.run(FOCUS) == "two"
        page.browser.switch_to.active_element.send_keys(Keys.END)
        assert page.run(FOCUS) == "one"
        page.browser.switch_to.active_element.send_keys(Keys.ENTER)

        page.says("#run h1", "one")
        assert page.run(stops) == 1
        assert page.run(HASH) == "#run=one"
        page.browser.back()
        page.says("#run h1", "three")
        page.browser.forward()
        page.says("#run h1", "one")


def test_on_a_phone_the_runs_are_folded_until_they_are_wanted(
    place: Place, page: Page, browser: WebDriver
) -> None:
    """And fold again when one is chosen."""
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    with runs(place, "one", "two"):
        page.says("#runs-summary", "2 runs, showing two")
        row = option(page, "#runs-list", "one")
        assert not row.is_displayed()
        page.click("#runs-summary")
        row.click()
        page.says("#run h1", "one")
        assert not row.is_displayed()
        assert page.run("return document.activeElement.id") == "runs-summary"
        assert page.run("return document.documentElement.scrollWidth") <= PHONE["width"]


# The ranks.


def test_many_ranks_are_a_strip_in_which_the_different_ones_are_seen_and_named(
    place: Place, page: Page
) -> None:
    """A sign for each state, numbers in words, what the worst one says above."""
    with job(place, 40) as ranks:
        ranks[13].write(FindingRecord(replace(OVERFLOW, last_step=4, summary="exp made inf.")))
        page.says("#ranks-counts", "39 healthy, 1 failing (rank 13)")

        assert page.text("#ranks-worst") == "rank 13 is failing: exp made inf"
        assert option(page, "#ranks", "13").accessible_name == "rank 13: failing"
        assert page.text("#ranks [data-key='13']") == "✖"
        assert option(page, "#ranks", "12").text == "✓"
        assert page.run("return document.querySelectorAll('#ranks [tabindex=\"0\"]').length") == 1


def test_a_strip_is_walked_through_with_the_keyboard_as_it_stands(place: Place, page: Page) -> None:
    """Down is the cell below, whatever the width; Enter chooses."""
    with job(place, 40):
        page.says("#ranks-counts", "40 healthy")
        at = option(page, "#ranks", "3").rect
        below = min(
            (cell for cell in page.browser.find_elements(By.CSS_SELECTOR, "#ranks [role=option]")),
            key=lambda cell: (
                cell.rect["y"] <= at["y"],
                cell.rect["y"],
                abs(cell.rect["x"] - at["x"]),
            ),
        ).get_attribute("data-key")

        option(page, "#ranks", "3").send_keys(Keys.ARROW_DOWN)
        assert page.run(FOCUS) == below
        page.browser.switch_to.active_element.send_keys(Keys.ARROW_UP, Keys.ARROW_RIGHT)
        page.browser.switch_to.active_element.send_keys(Keys.ENTER)

        assert page.run(HASH) == "#run=gpt&rank=4"
        page.says("#ranks-beat", "rank 4, healthy: step 4")
        assert page.text("#ranks [aria-selected=true]") == "✓"
        assert page.run(FOCUS) == "4"


def test_news_of_many_ranks_touch_only_the_cells_that_change(place: Place, page: Page) -> None:
    """They come every second: 40 steps and one new state are one cell."""
    with job(place, 40) as ranks:
        page.says("#ranks-counts", "40 healthy")
        page.run(
            "window.touched = new Set(); new MutationObserver((all) => all.forEach((one) =>"
            " window.touched.add(one.target.closest?.('[data-key]')?.dataset.key ?? 'other')))"
            ".observe(document.getElementById('ranks'),"
            " {subtree: true, childList: true, attributes: true, characterData: true})"
        )
        for rank in ranks:
            rank.train(3)
        page.says("#figures", "7")
        ranks[7].write(finding(severity=Severity.WARNING, last_step=7))
        page.says("#ranks-counts", "1 needs attention (rank 7)")

        # The selected rank is the one that speaks, which is now another one.
        assert set(page.run("return [...window.touched]")) <= {"0", "7"}


# Addresses.


def test_an_address_leads_to_a_finding(place: Place, page: Page) -> None:
    """Its row is in sight, marked, and has the focus; the step since which it is there is marked."""
    with runs(place, "calm", "gpt") as trainers:
        gpt = trainers[1]
        for i in range(30):
            gpt.write(
                finding("headroom_low", f"layer.{i}", severity=Severity.WARNING, last_step=29)
            )
        gpt.write(FindingRecord(replace(OVERFLOW, severity=Severity.INFO)))
        page.choose("calm")

        page.browser.get(address(page.url, "gpt", 0, gpt.started_ns, finding=OVERFLOW.key, step=12))

        eventually(lambda: page.run(FOCUS) == OVERFLOW.key, "the focus on the finding")
        row = page.run("return document.activeElement.getBoundingClientRect().toJSON()")
        assert 0 <= row["top"] < row["bottom"] <= page.run("return innerHeight")
        assert page.run("return document.activeElement.getAttribute('aria-current')") == "true"
        assert page.run("return document.getElementById('step').value") == "12"
        gpt.train(1)
        gpt.write(FindingRecord(replace(OVERFLOW, severity=Severity.INFO, last_step=30, count=7)))
        marked = "return document.querySelector('#findings [aria-current]').textContent"
        eventually(lambda: "in 7 steps" in page.run(marked), "news of the finding")
        assert page.run(FOCUS) == OVERFLOW.key  # the row is another one since
        assert page.run(
            "return document.querySelector('#findings [aria-current]').closest('details').open"
        )


def test_each_finding_has_a_link_that_leads_back_to_it(place: Place, page: Page) -> None:
    """Into the location bar, with the start of the rank, for another run may have its name later."""
    with runs(place, "gpt") as (gpt,):
        gpt.write(FindingRecord(OVERFLOW))
        page.says("#findings", "forward_overflow")
        page.browser.execute_cdp_cmd(
            "Browser.grantPermissions",
            {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]},
        )

        page.click("#findings summary")
        page.click("#findings .permalink")

        where = address(page.url, "gpt", 0, gpt.started_ns, finding=OVERFLOW.key)
        assert sorted(page.run(HASH)[1:].split("&")) == sorted(where.partition("#")[2].split("&"))
        page.says("#findings .permalink", "copied")
        copied = page.browser.execute_async_script(
            "const [done] = arguments; navigator.clipboard.readText().then(done, done)"
        )
        assert copied == page.browser.current_url
        assert page.run("return document.querySelectorAll('#findings [aria-current]').length") == 1
        page.browser.get("about:blank")
        page.browser.get(copied)
        eventually(lambda: page.run(FOCUS) == OVERFLOW.key, "the finding again")


@pytest.mark.parametrize(
    ("fragment", "words"),
    [
        ("run=nobody", "If it has ended, see ampwatch report nobody."),
        ("run=gpt&started=1.000", "started at another time"),
        ("run=gpt&rank=1", "Rank 1 of gpt is not on this machine. Showing rank 0."),
        ("run=gpt&rank=7", "gpt has no rank 7. Showing rank 0."),
        ("run=gpt&rank=<b>", "gpt has no rank <b>. Showing rank 0."),
        ("run=gpt&finding=x@y", "Rank 0 has no finding x@y."),
        ("run=gpt&step=99", "Step 99 has not run yet: the newest is 29."),
        ("run=gpt&step=none", "“none” is not a step."),
        ("run=gpt&with=nobody", "There is no run nobody here to compare with."),
        ("run=gpt&with=gpt", "gpt has no other rank to compare with."),
        ("run=gpt&with=calm&withrank=3", "calm has no rank 3 here to compare with."),
        ("run=gpt&rank=0&with=gpt&withrank=0", "Rank 0 of gpt is shown already"),
    ],
)
def test_what_an_address_asks_for_and_is_not_there_is_said(
    place: Place, page: Page, fragment: str, words: str
) -> None:
    """Nothing else is shown silently in its place."""
    with runs(place, "calm"):
        gpt = Trainer(place, "gpt", world_size=2)
        gpt.train(30)
        page.choose("gpt")
        page.says("#run h1", "gpt")
        assert page.text("#amiss") == ""

        page.browser.get(f"{page.url}#{quote(fragment, safe='&=')}")

        page.says("#amiss", words)
        page.choose("calm")
        page.says("#run h1", "calm")
        assert page.text("#amiss") == ""
        gpt.finish()


def test_an_address_without_a_rank_leads_to_the_one_that_has_the_finding(
    place: Place, page: Page
) -> None:
    """The maker of an address need not know; with another rank the page says who has it."""
    with job(place, 3) as ranks:
        ranks[2].write(FindingRecord(replace(OVERFLOW, severity=Severity.INFO, last_step=4)))
        page.says("#ranks", "rank 2")
        page.browser.get(f"{page.url}#run=gpt&finding={OVERFLOW.key}")
        page.says("#findings [aria-current]", "forward_overflow")
        assert option(page, "#ranks", "2").get_attribute("aria-pressed") == "true"

        page.browser.get(f"{page.url}#run=gpt&rank=1&finding={OVERFLOW.key}")

        page.says("#amiss", f"Rank 1 has no finding {OVERFLOW.key}; rank 2 of this run has it.")


# Two of them.

STEPS = "#compare-figures tbody tr:nth-child(4)"

SPY = """
    const [done] = arguments;
    import("/static/charts.js").then(({ Charts }) => {
      const { compare } = Charts.prototype;
      Charts.prototype.compare = function (label, ...course) {
        window.compared = [label, Object.keys(course[1] ?? {}).length];
        return compare.call(this, label, ...course);
      };
      done();
    });
"""


def test_two_runs_stand_side_by_side(place: Place, page: Page) -> None:
    """Their figures, their findings, and both courses in the charts; until it is ended."""
    with runs(place, "calm", "gpt") as (calm, gpt):
        gpt.write(FindingRecord(OVERFLOW))
        calm.train(5)
        page.says("#run h1", "gpt · ✖ failing")
        page.browser.execute_async_script(SPY)

        page.run(
            "const choice = document.getElementById('compare-run'); choice.value = 'calm';"
            "choice.dispatchEvent(new Event('change'))"
        )

        assert page.run(HASH) == "#run=gpt&rank=0&with=calm"
        head = "Now gpt, rank 0 calm, rank 0"
        assert page.text("#compare-figures thead").split() == head.split()
        page.says(STEPS, "Step 29")
        assert "34" in page.text(STEPS)
        row = page.text("#compare-findings tbody tr")
        assert row.startswith("forward_overflow module decoder.7 ✖ critical since step 12")
        assert row.endswith("not found")
        assert "calm, rank 0: dashed line" in page.text("#compare .legend")
        eventually(lambda: page.run("return window.compared") == ["calm, rank 0", 35], "its course")

        page.click("#compare-end")

        assert page.run(HASH) == "#run=gpt&rank=0"
        assert not page.browser.find_element(By.ID, "compare-box").is_displayed()
        eventually(lambda: page.run("return window.compared") == [None, 0], "the end of it")
        page.browser.back()
        page.says("#compare .legend", "calm, rank 0")
