"""The page of each scripted state as a browser shows it, beside what the daemon sends to it."""

from __future__ import annotations

import pytest
from selenium.webdriver.chrome.webdriver import WebDriver

from ampwatch.report.words import scale
from tests.host.daemon.parts import eventually

# The browser of the integration tests, which each module of tests has its own of.
from tests.integration.conftest import browser  # noqa: F401
from tests.states.score import Everything
from tests.states.serving import address_of, served
from tests.states.table import NEVER_TRUE, TABLE
from tests.states.words import matches

pytestmark = [pytest.mark.nightly, pytest.mark.services]

SHOWN = """
const text = (id) => document.getElementById(id).textContent;
return {level: text("run-level"), name: text("run-name"), all: document.body.innerText,
        since: text("run-since"), cause: text("run-cause"), where: text("run-where"),
        remedy: text("run-advice"), sentence: text("run-sentence"), figures: text("figures")};
"""


@pytest.mark.parametrize("state", TABLE)
def test_a_person_reads_what_is_so(
    everything: Everything,
    browser: WebDriver,  # noqa: F811
    state: str,
) -> None:
    """The word, the four lines and the scale of each run, and no sentence that is false."""
    seen = everything.seen[state]
    with served(seen.played.daemon) as address:
        for row in TABLE[state]:
            browser.get(address_of(address, row))
            eventually(lambda: _name(browser) == row.run, f"the page of {row.run}")  # noqa: B023
            said = browser.execute_script(SHOWN)

            # A sign comes before the word, for those who do not see colours.
            assert said["level"].partition(" ")[2] == row.level
            told = seen.played.page["runs"][row.run]
            assert said["sentence"] == told["sentence"]
            lines = told["headline"]
            assert row.level + said["since"] == lines["state"]
            assert [said[n] for n in ("cause", "where", "remedy")] == [
                lines[n] for n in ("cause", "where", "remedy")
            ]
            if row.scale is None:
                assert "Loss scale" not in said["figures"]
            else:
                assert scale(row.scale) in said["figures"]
            assert not matches(said["all"], (*NEVER_TRUE, *row.denies))


def _name(browser: WebDriver) -> str:  # noqa: F811
    found = browser.execute_script("return document.getElementById('run-name').textContent")
    return str(found)
