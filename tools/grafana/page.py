"""A page in Chromium in which Grafana's own packages draw dashboards.

The packages come from npm, at the hashes of ``package-lock.json``, into ``.npm-grafana``; ``make
grafana-page`` does that. Nothing is fetched while the page is open but answers of a Prometheus.
"""

from __future__ import annotations

import base64
import shutil
import tempfile
import threading
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from selenium import webdriver

from ampwatch.errors import AmpwatchError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from selenium.webdriver.chrome.webdriver import WebDriver

HERE = Path(__file__).parent
PACKAGES = HERE.parents[1] / ".npm-grafana"

FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars")

SCALE = 0.75
"""Scale from the page to the picture: as much as a column of documentation shows, in half the bytes."""

SHADES = 32
"""Shades of each of the three colours: the difference is not visible, and PNG pays for each that
antialiasing makes."""

POSTERIZE = """
const values = Array.from({length: arguments[0]}, (_, i) => i / (arguments[0] - 1)).join(" ");
const shades = ["R", "G", "B"].map((c) => `<feFunc${c} type="discrete" tableValues="${values}"/>`);
document.body.insertAdjacentHTML("beforeend", `<svg width="0" height="0" style="position:absolute">
  <filter id="shades" color-interpolation-filters="sRGB"><feComponentTransfer>${shades.join("")}
  </feComponentTransfer></filter></svg>`);
document.body.style.filter = "url(#shades)";
return [document.body.offsetWidth, document.body.offsetHeight];
"""

DRAW = """
const [dashboard, setting, done] = arguments;
drawDashboard(dashboard, setting).then((report) => done({report}), (error) => done({error: error.stack}));
"""


class Setting(NamedTuple):
    """What a dashboard is drawn of.

    Attributes:
        url: Of Prometheus.
        start: Begin of the time that is drawn. Unit: Unix time.
        end: End of the time that is drawn. Unit: Unix time.
        scrape_seconds: Scrape interval of the data source. Unit: s.
        chosen: Values of the variables by their names; a variable without one is at All.
    """

    url: str
    start: float
    end: float
    scrape_seconds: float = 15.0
    chosen: Mapping[str, Sequence[str]] = {}


def page_is_current() -> bool:
    """Return whether Grafana's packages are installed, and the page was made of this ``panels.jsx``."""
    made_of = PACKAGES / "panels.jsx"
    script = (HERE / "panels.jsx").read_bytes()
    there = (PACKAGES / "site" / "index.html").exists() and made_of.exists()
    return there and made_of.read_bytes() == script


@contextmanager
def served() -> Iterator[str]:
    """Yield the address of the page, served on loopback.

    Raises:
        AmpwatchError: If Grafana's packages are not installed.
    """
    if not page_is_current():
        msg = f"expected Grafana's packages in {PACKAGES}, and the page made of today's panels.jsx; run: make grafana-page"
        raise AmpwatchError(msg)
    handler = partial(_Files, directory=str(PACKAGES / "site"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()


class _Files(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its own name
        """Print nothing for a request."""


@contextmanager
def chromium() -> Iterator[WebDriver]:
    """Yield a browser without a window.

    Raises:
        AmpwatchError: If Chromium or its driver is not installed.
    """
    programs = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if None in programs:
        msg = "expected the programs chromium and chromedriver on the PATH; on Debian: apt-get install chromium chromium-driver"
        raise AmpwatchError(msg)
    options = webdriver.ChromeOptions()
    options.binary_location = str(programs[0])
    with tempfile.TemporaryDirectory() as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        service = webdriver.ChromeService(executable_path=programs[1])
        driver = webdriver.Chrome(options=options, service=service)
        try:
            yield driver
        finally:
            driver.quit()


def drawn(
    browser: WebDriver, address: str, dashboard: Mapping[str, Any], setting: Setting
) -> dict[str, Any]:
    """Draw a dashboard, with collapsed rows opened.

    Args:
        browser: Chromium.
        address: Of the page.
        dashboard: As its file has it.
        setting: What it is drawn of.

    Returns:
        ``variables``, their values by name; ``queries``, with ``place``, ``query``, and how many
        ``series`` and ``numbers`` came back; ``panels``, with ``title``, ``type``, ``empty``,
        ``text``, the cells of the ``rows`` of a table, how many ``plots`` there are, and
        ``problems``: exceptions, and what Grafana does not know of units, colours, options of
        fields and transformations.

    Raises:
        AmpwatchError: If Prometheus does not answer, a query is wrong, or nothing could be drawn.
    """
    browser.get(address)
    browser.set_script_timeout(120)
    given = {
        "url": setting.url.rstrip("/"),
        "from": setting.start,
        "to": setting.end,
        "scrape": f"{setting.scrape_seconds:g}s",
        "chosen": {name: list(values) for name, values in setting.chosen.items()},
    }
    outcome = browser.execute_async_script(DRAW, dashboard, given)
    if "error" in outcome:
        msg = f"expected {dashboard['title']} to be drawn, got: {outcome['error']}"
        raise AmpwatchError(msg)
    report: dict[str, Any] = outcome["report"]
    return report


def picture(browser: WebDriver) -> bytes:
    """Return the whole page as PNG, ``SCALE`` as large, with ``SHADES`` of each colour."""
    width, height = browser.execute_script(POSTERIZE, SHADES)
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": SCALE}
    shot = browser.execute_cdp_cmd(
        "Page.captureScreenshot", {"format": "png", "captureBeyondViewport": True, "clip": clip}
    )
    return base64.b64decode(shot["data"])
