"""The pictures of the page in the docs, of scripted states, with the fonts of the machine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

from tests.alerts.rules import ROOT
from tests.host.daemon.parts import eventually
from tests.states.pictures import Camera, Shot, keep, opened, shown
from tests.states.played import Played

IMAGES = ROOT / "docs" / "images"

MARGIN = 8
"""Around what is shown of a page. Unit: CSS pixels."""


class Part(NamedTuple):
    """A part of a page that the docs show.

    Attributes:
        file: Name of the picture.
        state: State whose page it is of.
        first: Selector of what it begins with; the whole screen without one.
        last: Selector of what it ends with.
        click: Selector of what is chosen before.
    """

    file: str
    state: str
    first: str = ""
    last: str = ""
    click: str = ""


PARTS = (
    Part("page-collapsed.png", "storm"),
    Part("page-map.png", "storm", "#map", "#map", "#map-worst button"),
    Part("page-ranges.png", "healthy", "section:has(#heatmap)", "#whatif"),
    Part("page-whatif.png", "storm", "#whatif", "#whatif"),
    Part("page-precision.png", "saw_tooth", "#precision", "#precision"),
)

STYLE = """
#figures > :last-child { display: none; }
#figures > :nth-last-child(2) { grid-column: span 3; }
"""
"""What watching costs is not shown: it is real, and the length of a step is that of the script."""

BOX = """
const [first, last] = [...arguments].map((at) => document.querySelector(at).getBoundingClientRect());
return [first.left, first.top + scrollY, first.right - first.left, last.bottom - first.top];
"""


def draw(plays: dict[str, Played], place: Path) -> None:
    """Draw the pictures of the page in the docs."""
    with opened(place, {}) as browser:
        camera = Camera(browser, STYLE)
        for part in PARTS:
            with shown(camera, part.state, plays[part.state]):
                _draw(camera, part)


def _draw(camera: Camera, part: Part) -> None:
    # All of it is on the screen, so that all of it is drawn.
    size = "tall-laptop" if part.first else "laptop"
    camera.aim(Shot(part.state, size, "light"))
    camera.take_at_rest()
    if part.click:
        find = f"return !!document.querySelector({part.click!r})"
        eventually(lambda: camera.browser.execute_script(find), part.click)
        camera.browser.execute_script(f"document.querySelector({part.click!r}).click()")
        time.sleep(0.5)
        camera.take_at_rest()
    options: dict[str, Any] = {}
    if part.first:
        left, top, width, height = camera.browser.execute_script(BOX, part.first, part.last)
        options["clip"] = {
            "x": left - MARGIN,
            "y": top - MARGIN,
            "width": width + 2 * MARGIN,
            "height": height + 2 * MARGIN,
            "scale": 1,
        }
    keep(camera.take_screen(**options), IMAGES / part.file)
