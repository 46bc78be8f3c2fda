"""The files of the page, as far as they can be judged without a browser."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from ampwatch.host.daemon.assets import STATIC

if TYPE_CHECKING:
    from pathlib import Path

SCRIPTS = sorted(STATIC.glob("*.js"))
STYLE = (STATIC / "style.css").read_text()
AA = 4.5
"""Least contrast of text, WCAG 2.2, success criterion 1.4.3."""


def luminance(colour: str) -> float:
    """Relative luminance of ``#rrggbb`` as WCAG 2.2 defines it."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def palette(theme: str) -> dict[str, str]:
    pairs = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", STYLE)
    return {name: (light, dark)[theme == "dark"] for name, light, dark in pairs}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("ink", ["ink", "muted", "accent", "good", "warning", "critical"])
@pytest.mark.parametrize("ground", ["page", "raised"])
def test_text_is_legible_in_both_themes(theme: str, ink: str, ground: str) -> None:
    """WCAG AA on every ground that text stands on."""
    colours = palette(theme)

    assert contrast(colours[ink], colours[ground]) >= AA


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("ink", ["ink", "warning"])
def test_notices_are_legible_in_both_themes(theme: str, ink: str) -> None:
    """The words that matter most stand on a ground of their own."""
    colours = palette(theme)

    assert contrast(colours[ink], colours["warning-wash"]) >= AA


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_data_never_becomes_markup(script: Path) -> None:
    """Module names are what users call them: text, never HTML."""
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function"

    assert not re.findall(forbidden, script.read_text())


@pytest.mark.parametrize("file", sorted(STATIC.iterdir()), ids=lambda path: path.name)
def test_the_page_asks_for_nothing_from_elsewhere(file: Path) -> None:
    """It works on a machine without a network; the one address is the name of a file format."""
    addresses = set(re.findall(r"https?://[^\s'\"]+", file.read_text()))

    assert addresses <= {"http://www.w3.org/2000/svg"}
