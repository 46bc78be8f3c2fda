"""The page of each scripted state as a browser shows it, beside what the daemon sends to it."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from ampwatch.host.daemon.server import Server
from ampwatch.host.daemon.site import Site
from ampwatch.host.daemon.web_config import WebConfig
from ampwatch.host.page.broadcast import Broadcast
from ampwatch.host.page.page import Feed
from ampwatch.report.words import scale
from tests.host.daemon.parts import OPEN, eventually

# The browser of the integration tests, which each module of tests has its own of.
from tests.integration.conftest import browser  # noqa: F401
from tests.states.table import NEVER_TRUE, TABLE
from tests.states.words import matches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from selenium.webdriver.chrome.webdriver import WebDriver

    from tests.states.score import Everything, Seen
    from tests.states.table import Row

pytestmark = pytest.mark.services

SHOWN = """
const text = (id) => document.getElementById(id).textContent;
return {level: text("run-level"), name: text("run-name"), all: document.body.innerText,
        since: text("run-since"), cause: text("run-cause"), where: text("run-where"),
        remedy: text("run-advice"), sentence: text("run-sentence"), figures: text("figures")};
"""


@contextmanager
def served(seen: Seen) -> Iterator[str]:
    """Serve the daemon of a state, whose clock stands where somebody looks; yield its address."""
    daemon = seen.played.daemon
    site = Site(daemon.fleet, {})
    # That of the site has the clock of the machine.
    site._broadcast = Broadcast(Feed(daemon.fleet, daemon.clock))
    server = Server("127.0.0.1", 0, site, WebConfig(), frozenset(), OPEN)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("state", TABLE)
def test_a_person_reads_what_is_so(
    everything: Everything,
    browser: WebDriver,  # noqa: F811
    state: str,
) -> None:
    """The word, the four lines and the scale of each run, and no sentence that is false."""
    seen = everything.seen[state]
    with served(seen) as address:
        for row in TABLE[state]:
            browser.get(f"{address}#run={row.run}&rank={_speaker(row)}")
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
            assert ("none" if row.scale is None else scale(row.scale)) in said["figures"]
            assert not matches(said["all"], (*NEVER_TRUE, *row.denies))


def _speaker(row: Row) -> int:
    return 0 if row.cause is None else row.cause[0]


def _name(browser: WebDriver) -> str:  # noqa: F811
    found = browser.execute_script("return document.getElementById('run-name').textContent")
    return str(found)
