"""A page as a picture, by headless Chromium."""

from __future__ import annotations

import base64
import shutil
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING

from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

from ampwatch.errors import AmpwatchError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from selenium.webdriver.chrome.webdriver import WebDriver

SCALE = 0.75
"""Scale from the page to the picture: as much as a column of documentation shows, in half the bytes."""

SHADES = 32
"""Shades of each of the three colours: nobody sees the difference, and PNG pays for each that
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

_FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars")


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
        for flag in (*_FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        service = webdriver.ChromeService(executable_path=programs[1])
        driver = webdriver.Chrome(options=options, service=service)
        try:
            yield driver
        finally:
            driver.quit()


def opened(browser: WebDriver, page: Path) -> None:
    """Open a page and wait until Plotly has drawn everything."""
    browser.get(page.resolve().as_uri())
    WebDriverWait(browser, 60).until(
        lambda b: b.execute_script("return document.body.dataset.drawn") == "yes"
    )


def picture(browser: WebDriver, page: Path) -> bytes:
    """Return the whole page as PNG, ``SCALE`` as large, with ``SHADES`` of each colour."""
    opened(browser, page)
    width, height = browser.execute_script(POSTERIZE, SHADES)
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": SCALE}
    shot = browser.execute_cdp_cmd(
        "Page.captureScreenshot", {"format": "png", "captureBeyondViewport": True, "clip": clip}
    )
    return base64.b64decode(shot["data"])
