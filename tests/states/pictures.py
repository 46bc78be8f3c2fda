"""Pictures of the page of each scripted state: taken, kept, compared.

``python -m tests.states.pictures [STATE...]`` takes them again and keeps them, and with no state named
those of the page in the docs as well; it wants Chromium.

A picture is what is on the screen without scrolling, at half its size, with fonts that do not depend
on the machine, at a time that stands still. What differs from one start to the next is not shown.
"""

from __future__ import annotations

import base64
import io
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageFont
from PIL.PngImagePlugin import PngInfo
from selenium import webdriver
from selenium.webdriver.chrome.webdriver import WebDriver

from tests.alerts.rules import ROOT
from tests.integration.browsing import FLAGS
from tests.services import require
from tests.states.played import Played
from tests.states.score import play
from tests.states.serving import address_of, served
from tests.states.table import TABLE

KEPT = ROOT / "tests" / "golden" / "pages"

BOXES = ROOT / "tests" / "golden" / "boxes.ttf"
"""A TrueType font in which every character is the same box, 0.5 by 0.56 of its size."""

SIZES = {"phone": (390, 844), "laptop": (1440, 900), "desktop": (1920, 1080)}
"""Width and height of each screen. Unit: CSS pixels."""

TALL = {"tall-phone": (390, 6800), "tall-laptop": (1440, 4300)}
"""Screens on which a page is seen from top to bottom."""

THEMES = ("light", "dark")

SMALLER = 2
"""Pixels of a screen in a row that are one of the picture."""

COLOURS = 128
"""Colours that a picture is kept with."""

EXACT_COLOURS = 32
"""How many of them are exactly the commonest ones of the picture."""

CELL = 4
"""Side of the cells whose mean colours are compared. Unit: pixels of the picture."""

MAX_DISTANCE = 20
"""How far apart the mean colours of a cell may be, in the channel that differs most, of 255.

A line of text that has moved by a pixel stays below it; a line of a chart that is not drawn does not.
"""

MAX_SHARE = 0.003
"""Share of the cells of a picture that may differ."""

WINDOW = 8
"""Side of a window that is looked at by itself. Unit: cells."""

MAX_IN_WINDOW = 6
"""Cells that may differ in any window: fewer than a word has, or a line as high as a window."""

ARRIVES_SECONDS = 10.0

FLAGS_FOR_PICTURES = (
    *FLAGS,
    "--hide-scrollbars",
    "--disable-lcd-text",
    "--force-color-profile=srgb",
)

FONTS_CONF = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>{fonts}</dir><cachedir>{fonts}</cachedir>
  <match target="pattern">
    <edit name="antialias"><bool>true</bool></edit>
    <edit name="hinting"><bool>false</bool></edit>
    <edit name="rgba"><const>none</const></edit>
  </match>
</fontconfig>
"""
"""The fonts of a machine, and how it wants them drawn, which decides how wide letters are."""

PINNED = """
{const clock = Date.now; const began = clock(); Date.now = () => 1.7e12 + 0 * (clock() - began);}
addEventListener("DOMContentLoaded", () => {
  const sheet = document.createElement("style");
  sheet.textContent = STYLE;
  document.head.append(sheet);
});
"""
"""Runs before the page: its clock stands still, and it gets the style of pictures."""

STILL = """
*, *::before, *::after { animation: none !important; transition: none !important; caret-color: transparent !important; }
"""

HIDDEN = """
/* The port, which release this is, and what watching has really cost. */
#metrics-address, #version, #figures > :nth-last-child(-n + 2) > * { visibility: hidden; }
"""

SETTLED = """
const [name, done] = arguments;
const frames = (n) => n ? requestAnimationFrame(() => frames(n - 1))
  : done(document.getElementById("run-name").textContent === name && document.fonts.status === "loaded");
document.fonts.ready.then(() => frames(3));
"""


class Shot(NamedTuple):
    """What a picture is of: the name of a state, that of a size, and the theme of the system."""

    state: str
    size: str
    theme: str

    @property
    def path(self) -> Path:
        """Where it is kept."""
        return KEPT / f"{self.state}-{self.size}-{self.theme}.png"


MORE_SHOTS = (
    Shot("storm", "tall-laptop", "light"),
    Shot("bf16", "tall-phone", "dark"),
    Shot("waiting_for_data", "tall-laptop", "dark"),
    Shot("waiting_for_data", "tall-phone", "light"),
)


UNFOLD = """
for (const fold of document.querySelectorAll(".fold")) fold.open = arguments[0] || fold.parentElement.id === "map";
"""
"""Unfolds all of the page, or what is unfolded at first."""

LIKE_OTHERS = ("restarted", "resumed", "broken_weight", "ended_unseen")
"""States whose pages have nothing that those of others have not: of these there are no pictures."""


def shots_of(state: str) -> list[Shot]:
    """Return what there are pictures of in a state."""
    if state in LIKE_OTHERS:
        return []
    shots = [Shot(state, size, theme) for size in SIZES for theme in THEMES]
    return shots + [shot for shot in MORE_SHOTS if shot.state == state]


@dataclass(frozen=True, slots=True)
class Difference:
    """What is not in two pictures alike.

    Attributes:
        words: How much differs, and where most of it is.
        cells: Whether each cell differs; shape (rows, columns).
    """

    words: str
    cells: np.ndarray[Any, np.dtype[np.bool_]]


class Camera:
    """Takes pictures of the page in one browser."""

    def __init__(self, browser: WebDriver, style: str | None = None) -> None:
        """Set up ``browser``; ``style`` takes the place of fonts and of what is hidden."""
        self.browser = browser
        # Or the page would take no style but its own.
        self._command("Page.setBypassCSP", enabled=True)
        if style is None:
            style = style_sheet() + HIDDEN
        source = PINNED.replace("STYLE", json.dumps(STILL + style))
        self._command("Page.addScriptToEvaluateOnNewDocument", source=source)
        self._command("Emulation.setTimezoneOverride", timezoneId="UTC")
        self.run = ""

    def open(self, address: str, run: str) -> None:
        """Show the page at ``address``, and wait until it shows ``run``."""
        self.browser.get("about:blank")
        self.browser.get(address)
        within = time.monotonic() + ARRIVES_SECONDS
        while not self.browser.execute_async_script(SETTLED, run):
            assert time.monotonic() < within, f"expected the page of {run}, got none in {address}"
            time.sleep(0.05)
        self.run = run

    def aim(self, shot: Shot) -> None:
        """Have the screen and the theme of ``shot``."""
        feature = {"name": "prefers-color-scheme", "value": shot.theme}
        self._command("Emulation.setEmulatedMedia", features=[feature])
        self.screen(*(SIZES | TALL)[shot.size])
        self.browser.execute_script(UNFOLD, shot.size in TALL)

    def screen(self, width: int, height: int) -> None:
        """Have a screen of this size. Unit: CSS pixels."""
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._command("Emulation.setDeviceMetricsOverride", **screen)

    def take(self) -> Image.Image:
        """Return what is on the screen."""
        self.browser.execute_async_script(SETTLED, self.run)
        return self.take_screen().reduce(SMALLER)

    def take_screen(self, **options: Any) -> Image.Image:
        """Return what is on the screen in its own size, or what ``options`` of the browser choose."""
        answer = self._command(
            "Page.captureScreenshot", format="png", optimizeForSpeed=True, **options
        )
        return Image.open(io.BytesIO(base64.b64decode(answer["data"]))).convert("RGB")

    def take_like(self, kept: Image.Image) -> tuple[Image.Image, Difference | None]:
        """Return what is on the screen as soon as it is like ``kept``, at the latest after a while.

        On a busy machine the last chart may be drawn later than the rest.
        """
        within = time.monotonic() + ARRIVES_SECONDS
        while True:
            taken = self.take()
            found = difference(kept, taken)
            if found is None or time.monotonic() > within:
                return taken, found
            time.sleep(0.3)

    def take_at_rest(self) -> Image.Image:
        """Return what is on the screen once it no longer changes."""
        before = None
        while (now := self.take()) != before:
            before = now
            time.sleep(0.3)
        return now

    def _command(self, name: str, **arguments: Any) -> Any:
        return self.browser.execute_cdp_cmd(name, arguments)


def style_sheet() -> str:
    """Return the CSS that makes the page use fonts that are the same on every machine, and no others.

    Letters, digits and punctuation are those of the font that comes inside Pillow. All else, of which every
    system has other shapes or none, is a box.
    """
    faces = "".join(
        f"@font-face {{ font-family: {name}; src: url(data:font/ttf;base64,"
        f"{base64.b64encode(font).decode()}); }}\n"
        for name, font in (("letters", letters()), ("boxes", BOXES.read_bytes()))
    )
    return (
        f"{faces}:root {{ --font: letters, boxes !important; --mono: letters, boxes !important; }}"
    )


def letters() -> bytes:
    """Return the TrueType font that comes with Pillow."""
    font = ImageFont.load_default(16)
    assert isinstance(font, ImageFont.FreeTypeFont), f"expected Pillow with FreeType, got {font!r}"
    return font.font_bytes


def sentence(shot: Shot, taken: Image.Image, found: Difference, place: Path) -> str:
    """Keep what was seen in place of the picture of ``shot`` in ``place``; return what to tell."""
    place.mkdir(parents=True, exist_ok=True)
    seen, where = place / shot.path.name, place / f"{shot.path.stem}-difference.png"
    taken.save(seen)
    marked(taken, found).save(where)
    return (
        f"expected the page as in {shot.path.relative_to(ROOT)}, but {found.words}; it is {seen}, "
        f"what differs is red in {where}; if it should look so: make pictures"
    )


def difference(kept: Image.Image, taken: Image.Image) -> Difference | None:
    """Return what differs between two pictures; ``None`` if it is next to nothing."""
    if kept.size != taken.size:
        words = f"it has {taken.size} pixels in place of {kept.size}"
        return Difference(words, np.ones((1, 1), dtype=bool))
    means = [np.asarray(_cells(picture), dtype=np.int16) for picture in (kept, taken)]
    cells = abs(means[0] - means[1]).max(axis=2) > MAX_DISTANCE
    share = float(cells.mean())
    most, (row, column) = _fullest_window(cells)
    if share <= MAX_SHARE and most <= MAX_IN_WINDOW:
        return None
    side = CELL * SMALLER
    words = (
        f"{share:.2%} of its cells have another colour, most of them ({most} of {WINDOW**2}) "
        f"right and down of x={column * side}, y={row * side}"
    )
    return Difference(words, cells)


def _cells(picture: Image.Image) -> Image.Image:
    return picture.convert("RGB").reduce(CELL)


def _fullest_window(cells: np.ndarray[Any, np.dtype[np.bool_]]) -> tuple[int, tuple[int, int]]:
    """Return how many cells differ in the window where most do, and its first row and column."""
    sums = np.pad(cells.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    rows, columns = (max(1, length - WINDOW + 1) for length in cells.shape)
    below = sums[-rows:][:, -columns:]
    here = below - sums[:rows, -columns:] - sums[-rows:, :columns] + sums[:rows, :columns]
    row, column = divmod(int(here.argmax()), columns)
    return int(here[row, column]), (row, column)


def marked(taken: Image.Image, found: Difference) -> Image.Image:
    """Return a picture, faint, with the cells that differ in red."""
    faint = Image.blend(taken, Image.new("RGB", taken.size, "white"), 0.6)
    mask = Image.fromarray(found.cells).resize(taken.size, Image.Resampling.NEAREST)
    return Image.composite(Image.new("RGB", taken.size, "#c00020"), faint, mask)


def kept(path: Path) -> Image.Image:
    """Return the picture that is kept at ``path``."""
    with Image.open(path) as picture:
        return picture.convert("RGB")


def keep(picture: Image.Image, path: Path, said: Mapping[str, str] | None = None) -> None:
    """Keep a picture, with few colours, and texts beside it in its file.

    Surfaces keep theirs exactly: a palette that is only spread well shifts the background, and one of
    the commonest colours alone loses the green of a single word.
    """
    colours, which, counts = np.unique(
        np.asarray(picture).reshape(-1, 3), axis=0, return_inverse=True, return_counts=True
    )
    commonest = colours[counts.argsort()[::-1][:EXACT_COLOURS]]
    spread = picture.quantize(COLOURS - EXACT_COLOURS, method=Image.Quantize.MAXCOVERAGE)
    others = np.array(spread.getpalette(), dtype=np.uint8).reshape(-1, 3)
    palette = np.concatenate([commonest, others])[:COLOURS]
    # Pillow would look for the nearest colour with six bits a channel.
    apart = colours[:, None].astype(int) - palette.astype(int)
    nearest = (apart**2).sum(axis=2).argmin(axis=1).astype(np.uint8)
    few = Image.fromarray(nearest[which].reshape(picture.height, picture.width), mode="P")
    few.putpalette(palette.tobytes())
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = PngInfo()
    for name, text in (said or {}).items():
        texts.add_itxt(name, text)
    few.save(path, optimize=True, pnginfo=texts)


def _pinned_fonts(place: Path) -> dict[str, str]:
    """Return the environment of a browser that draws letters in the same way on every machine."""
    place.mkdir(parents=True)
    # Not none at all: with none Chromium shows no text.
    (place / BOXES.name).write_bytes(BOXES.read_bytes())
    conf = place / "fonts.conf"
    conf.write_text(FONTS_CONF.format(fonts=place), encoding="utf-8")
    return {"FONTCONFIG_FILE": str(conf)}


@contextmanager
def opened(place: Path, environment: dict[str, str] | None = None) -> Iterator[WebDriver]:
    """Open a browser with its files in ``place``; ``environment`` takes the place of pinned fonts."""
    if environment is None:
        environment = _pinned_fonts(place / "fonts")
    options = webdriver.ChromeOptions()
    options.binary_location = require("chromium")
    for flag in (*FLAGS_FOR_PICTURES, f"--user-data-dir={place / 'profile'}"):
        options.add_argument(flag)
    service = webdriver.ChromeService(
        executable_path=require("chromedriver"), env=os.environ | environment
    )
    browser = webdriver.Chrome(options=options, service=service)
    try:
        yield browser
    finally:
        browser.quit()


@contextmanager
def shown(camera: Camera, state: str, played: Played) -> Iterator[None]:
    """Show the page of a state."""
    row = TABLE[state][0]
    with served(played.daemon) as address:
        camera.open(address_of(address, row), row.run)
        yield


def keep_all(plays: dict[str, Played], place: Path) -> None:
    """Take the pictures of the states again, and keep them."""
    with opened(place) as browser:
        camera = Camera(browser)
        for name, played in plays.items():
            with shown(camera, name, played):
                for shot in shots_of(name):
                    camera.aim(shot)
                    keep(camera.take_at_rest(), shot.path)


def main(names: list[str]) -> None:
    """Play states, and take their pictures; of all, those of the docs as well."""
    from tests.states.docs_pictures import draw  # noqa: PLC0415 - it needs what is above

    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        plays = play(place / "stage", names or list(TABLE))
        keep_all(plays, place / "browser")
        if not names:
            draw(plays, place / "browser of the docs")


if __name__ == "__main__":
    main(sys.argv[1:])
