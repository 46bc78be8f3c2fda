"""The files of the page, as far as they can be judged without a browser."""

from __future__ import annotations

import math
import re
from itertools import product
from typing import TYPE_CHECKING

import pytest

from ampwatch.host.daemon.assets import STATIC
from ampwatch.wire.records import StepPhase

if TYPE_CHECKING:
    from pathlib import Path

SCRIPTS = sorted(STATIC.glob("*.js"))
STYLE = (STATIC / "style.css").read_text()
AA = 4.5
"""Least contrast of text, WCAG 2.2, success criterion 1.4.3."""


def linear(colour: str) -> list[float]:
    """``#rrggbb`` as linear RGB, as WCAG 2.2 defines it."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]


def luminance(colour: str) -> float:
    """Relative luminance of ``#rrggbb`` as WCAG 2.2 defines it."""
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear(colour), strict=True))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def palette(theme: str) -> dict[str, str]:
    pairs = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", STYLE)
    return {name: (light, dark)[theme == "dark"] for name, light, dark in pairs}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    ("ground", "ink"),
    [
        *product(("page", "raised"), ("ink", "muted", "accent", "good", "warning", "critical")),
        # The words that matter most stand on a ground of their own.
        *product(("warning-wash",), ("ink", "warning")),
    ],
)
def test_text_is_legible_in_both_themes(theme: str, ink: str, ground: str) -> None:
    """WCAG AA on every ground that text stands on."""
    colours = palette(theme)
    assert contrast(colours[ink], colours[ground]) >= AA


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


MIN_APART = 0.07
"""Least distance of two colours of a strip that are seen as two, in OKLab, where black and white are 1
apart; 0.02 can just be told apart side by side."""

EYES = {
    "usual": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
"""What becomes of linear RGB in eyes that lack a cone: Machado, Oliveira and Fernandes 2009, severity 1."""

LMS = (
    (0.4122214708, 0.5363325363, 0.0514459929),
    (0.2119034982, 0.6806995451, 0.1073969566),
    (0.0883024619, 0.2817188376, 0.6299787005),
)
LAB = (
    (0.2104542553, 0.7936177850, -0.0040720468),
    (1.9779984951, -2.4285922050, 0.4505937099),
    (0.0259040371, 0.7827717662, -0.8086757660),
)
"""From linear RGB to OKLab: Ottosson 2020."""


def through(matrix: tuple[tuple[float, ...], ...], vector: list[float]) -> list[float]:
    return [sum(m * v for m, v in zip(row, vector, strict=True)) for row in matrix]


def seen(colour: str, eyes: str) -> list[float]:
    """``#rrggbb`` in OKLab as these eyes see it."""
    there = [min(max(c, 0.0), 1.0) for c in through(EYES[eyes], linear(colour))]
    return through(LAB, [v ** (1 / 3) for v in through(LMS, there)])


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("eyes", EYES)
def test_phases_can_be_told_apart_in_their_strip(theme: str, eyes: str) -> None:
    """By whoever looks, and whichever of them stand beside each other."""
    colours = {phase: palette(theme)[f"phase-{phase.label}"] for phase in StepPhase}
    near = [
        (one.label, other.label)
        for one in StepPhase
        for other in StepPhase
        if one < other
        and math.dist(seen(colours[one], eyes), seen(colours[other], eyes)) < MIN_APART
    ]

    assert len(set(colours.values())) == len(StepPhase)
    assert near == []


@pytest.mark.parametrize("name", ["index.html", "address.js"])
def test_where_a_run_is_not_shown_any_more_the_page_names_its_report(name: str) -> None:
    """On the page without a run, and where an address asks for one that is gone."""
    assert re.search(r"end(ed)?\b.*ampwatch report", (STATIC / name).read_text())
