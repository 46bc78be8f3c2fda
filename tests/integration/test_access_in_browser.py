"""The way into the page in a real browser: by the token once, by a cookie from then on."""

from __future__ import annotations

import pytest
from selenium.webdriver.chrome.webdriver import WebDriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from ampwatch.report.one_line import address
from ampwatch.wire.rendezvous.token import TOKEN_FILE
from tests.host.daemon.parts import Daemon, Place, eventually
from tests.integration.browsing import Page, Trainer

pytestmark = [pytest.mark.nightly, pytest.mark.services]


@pytest.fixture
def fresh(browser: WebDriver) -> WebDriver:
    """The browser, as one that was never here."""
    browser.execute_cdp_cmd("Network.clearBrowserCookies", {})
    return browser


def addresses(browser: WebDriver) -> list[str]:
    """What the browser would offer again: its history."""
    entries = browser.execute_cdp_cmd("Page.getNavigationHistory", {})["entries"]
    return [entry["url"] for entry in entries]


def test_the_printed_address_opens_a_live_page_and_is_not_kept(
    place: Place, daemon: Daemon, fresh: WebDriver
) -> None:
    """It leads to the rank that it names; later links need no token, and scripts see no cookie."""
    trainers = [Trainer(place, run) for run in ("gpt", "other")]
    printed = address(daemon.info.url, "gpt", 0, trainers[0].started_ns, daemon.token)
    for number, trainer in enumerate(trainers):
        trainer.train(30 + number)

    page = Page(fresh, daemon, printed)
    page.says("#run h1", "step 29")
    trainers[0].train(5)
    page.says("#run h1", "step 34")  # so the stream of events has come in as well

    assert fresh.current_url == printed.replace(f"?token={daemon.token}", "")
    assert not [url for url in addresses(fresh) if daemon.token in url]
    assert page.run("return document.cookie") == ""
    assert page.run("return document.referrer") == ""
    assert page.complaints() == []
    fresh.get("about:blank")
    fresh.get(address(daemon.info.url, "other", 0, trainers[1].started_ns))
    page.says("#run h1", "step 30")
    for trainer in trainers:
        trainer.finish()


def test_without_the_token_a_person_is_told_and_can_enter_it(
    place: Place, daemon: Daemon, fresh: WebDriver, trainer: Trainer
) -> None:
    """The file that has it is named, and nothing of the runs."""
    trainer.train(30)
    fresh.get(f"{daemon.info.url}#run=train")
    told = fresh.find_element(By.TAG_NAME, "body").text

    fresh.find_element(By.NAME, "token").send_keys("wrong", Keys.ENTER)
    eventually(lambda: "token=wrong" in fresh.current_url, "it is refused")
    assert fresh.find_element(By.NAME, "token").is_displayed()
    fresh.find_element(By.NAME, "token").send_keys(daemon.token, Keys.ENTER)
    # The run that was asked for is not forgotten over all this.
    page = f"{daemon.info.url}#run=train"
    eventually(lambda: fresh.current_url == page, f"{page} and not {fresh.current_url}", 10)
    eventually(lambda: "step 29" in fresh.find_element(By.TAG_NAME, "main").text, "the run")

    assert str(place.runtime / TOKEN_FILE) in told
    assert "ampwatch url" in told
    assert "train" not in told.replace(str(place.runtime), "")
    assert not [url for url in addresses(fresh) if daemon.token in url]


def test_an_open_page_says_when_it_needs_a_new_token(
    place: Place, fresh: WebDriver, trainer: Trainer
) -> None:
    """The secret was replaced: it is not the daemon that is gone."""
    trainer.train(30)
    with place.daemon() as first:
        page = Page(fresh, first)
        page.says("#run h1", "step 29")
    (place.runtime / TOKEN_FILE).unlink()
    with place.daemon("--port", str(first.info.port)):
        page.says("#gone", "token wanted")
        assert "`ampwatch url`" in page.text("#gone")
        assert "step 29" in page.text("#run h1")
        fresh.get("about:blank")
