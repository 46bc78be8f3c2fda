"""axe-core finds nothing to complain of on the page of any state, in both themes, large and small."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.chrome.webdriver import WebDriver

from tests.host.daemon.parts import eventually

# The browser of the integration tests, which each module of tests has its own of.
from tests.integration.conftest import browser  # noqa: F401
from tests.states.played import Played
from tests.states.serving import address_of, served
from tests.states.table import TABLE

pytestmark = [pytest.mark.nightly, pytest.mark.services]

PACKAGE = "axe_playwright_python"
"""It brings axe-core; nothing else of it is used, and Playwright is not installed."""

UNFOLD = "for (const each of document.querySelectorAll('main details')) each.open = true;"

RUN = """
const [options, done] = arguments;
axe.run(document, {resultTypes: ["violations"], ...options}).then((result) => done(
  result.violations.flatMap((rule) => rule.nodes.map(
    (node) => `${rule.id}: ${node.target.join(" ")}: ${node.any.concat(node.all, node.none).map((c) => c.message).join("; ")}`))),
  (error) => done([String(error)]));
"""

CONTRAST = {"runOnly": ["color-contrast"]}
"""The rules for which a theme matters."""

SEEN = "return document.getElementById('run-name').textContent"
CHOSEN = """return document.getElementById('map-course').offsetHeight > 0
    && document.getElementById('map-course-title').textContent !== ''"""
COMPARED = "return document.querySelectorAll('#compare-figures tbody tr').length > 0"
CHOOSE = "document.querySelector('#map-worst button').click()"


def _source() -> str:
    spec = find_spec(PACKAGE)
    assert spec is not None, f"expected {PACKAGE} to be installed, it is not; run: make setup"
    assert spec.origin is not None
    return (Path(spec.origin).parent / "axe.min.js").read_text(encoding="utf-8")


def _show(
    browser: WebDriver,  # noqa: F811
    address: str,
    run: str,
) -> None:
    browser.get("about:blank")
    _screen(browser, 1440, 900, "light")
    browser.get(address)
    eventually(lambda: browser.execute_script(SEEN) == run, f"the page of {run}")
    browser.execute_script(_source())


def _screen(
    browser: WebDriver,  # noqa: F811
    width: int,
    height: int,
    theme: str,
) -> None:
    screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    features = [{"name": "prefers-color-scheme", "value": theme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def _complaints(
    browser: WebDriver,  # noqa: F811
    options: dict[str, Any],
) -> list[str]:
    found: list[str] = browser.execute_async_script(RUN, options)
    return found


def _in_both_themes(browser: WebDriver) -> dict[str, list[str]]:  # noqa: F811
    """Return the complaints about what is shown: all folds open, large and as on a phone."""
    browser.execute_script(UNFOLD)
    found = {"light": _complaints(browser, {})}
    _screen(browser, 1440, 900, "dark")
    found["dark"] = _complaints(browser, CONTRAST)
    _screen(browser, 390, 844, "dark")
    found["phone, dark"] = _complaints(browser, {})
    return found


CLEAN: dict[str, list[str]] = {"light": [], "dark": [], "phone, dark": []}


@pytest.mark.parametrize("state", TABLE)
def test_a_state_is_clean(
    browser: WebDriver,  # noqa: F811
    plays: dict[str, Played],
    state: str,
) -> None:
    """With everything unfolded."""
    row = TABLE[state][0]
    with served(plays[state].daemon) as address:
        _show(browser, address_of(address, row), row.run)

        assert _in_both_themes(browser) == CLEAN


def test_the_map_with_a_module_chosen_is_clean(
    browser: WebDriver,  # noqa: F811
    plays: dict[str, Played],
) -> None:
    """Its tree, its legend, the list of what is in trouble, the exponents of one module."""
    row = TABLE["storm"][0]
    with served(plays["storm"].daemon) as address:
        _show(browser, address_of(address, row), row.run)
        browser.execute_script("document.getElementById('map').scrollIntoView()")
        eventually(
            lambda: browser.execute_script("return !!document.querySelector('#map-worst button')"),
            "the modules in trouble",
        )
        browser.execute_script(CHOOSE)
        eventually(lambda: browser.execute_script(CHOSEN), "the exponents of a module")

        assert _in_both_themes(browser) == CLEAN


def test_two_runs_side_by_side_are_clean(
    browser: WebDriver,  # noqa: F811
    plays: dict[str, Played],
) -> None:
    """With the list of runs beside them."""
    first, second = TABLE["two_runs_of_one_name"]
    with served(plays["two_runs_of_one_name"].daemon) as address:
        _show(browser, f"{address}#run={first.run}&rank=0&with={second.run}", first.run)
        eventually(lambda: browser.execute_script(COMPARED), "two runs side by side")

        assert _in_both_themes(browser) == CLEAN
