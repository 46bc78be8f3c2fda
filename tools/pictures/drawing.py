"""The pictures of number formats, as SVG with colours of its own for light and dark pages.

Every limit comes from a row of ``ampwatch.numerics.formats``; nothing is typed by hand.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from ampwatch.numerics.formats import FORMATS
from ampwatch.report.pictures import linear, points_of, zones
from ampwatch.report.words import power
from ampwatch.wire.records import Topic
from tools.cost.code import ROOT
from tools.pictures.training import INTERVAL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from ampwatch.numerics.formats import FloatFormat
    from tools.pictures.training import Measured

IMAGES = ROOT / "docs" / "images"
WIDTH = 860
LEFT, RIGHT = 110, 24
STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #1f2328 }
  .name { font-weight: 600 } .said { fill: #59636e } .on { fill: #ffffff; font-weight: 600 }
  .paper { fill: #ffffff } .grid { stroke: #d1d9e0 } .edge { stroke: #b3261e; stroke-dasharray: 4 3 }
  .sign { fill: #59636e } .exponent { fill: #1f5fbf } .mantissa { fill: #12756b } .cell { stroke: #ffffff }
  .normal { fill: #1f5fbf } .subnormal { fill: #b8791c } .flushed { fill: #6b7280 } .overflow { fill: #b3261e }
  .ground.normal { fill: #1f5fbf0d } .ground.subnormal { fill: #b8791c26 }
  .ground.flushed { fill: #6b728026 } .ground.overflow { fill: #b3261e1f }
  .line { fill: none; stroke: #1f5fbf; stroke-width: 2 } .dot { fill: #1f5fbf }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc } .said { fill: #9198a1 } .on { fill: #0d1117 }
    .paper { fill: #0d1117 } .grid { stroke: #3d444d } .edge { stroke: #ff8a80 }
    .sign { fill: #9198a1 } .exponent { fill: #86b4f5 } .mantissa { fill: #5fd0c0 } .cell { stroke: #0d1117 }
    .normal { fill: #86b4f5 } .subnormal { fill: #f0b45a } .flushed { fill: #a0a7b3 } .overflow { fill: #ff8a80 }
    .ground.normal { fill: #86b4f51a } .ground.subnormal { fill: #f0b45a26 }
    .ground.flushed { fill: #a0a7b326 } .ground.overflow { fill: #ff8a8026 }
    .line { stroke: #86b4f5 } .dot { fill: #86b4f5 }
  }
"""

OF_PAGE = (
    "float32",
    "tf32",
    "bfloat16",
    "float16",
    "float8_e5m2",
    "float8_e4m3fn",
    "mxfp6_e3m2",
    "mxfp4",
)
"""The formats of the page, from many bits to few."""

OF_BLOCKS = ("mxfp4", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp8_e4m3", "mxfp8_e5m2")
"""The formats whose limits stand in the picture of blocks."""

BESIDE = {
    "below_block": "beside the largest of its block of 32",
    "below_tensor": "beside the largest of the tensor: one scale for all",
}
"""What the elements of the picture of blocks are held against."""

NAMED = {"float8_e5m2": "FP8 E5M2", "float8_e4m3fn": "FP8 E4M3", "mxfp6_e3m2": "FP6 E3M2", "mxfp4": "FP4 E2M1", "tf32": "TF32"}  # fmt: skip
"""What the pictures call a format, where that is not its name: elements of block formats have names of their own."""


def name_of(fmt: FloatFormat) -> str:
    """Return what the pictures call a format."""
    return NAMED.get(fmt.name, fmt.name)


def svg(height: float, said: str, parts: Iterable[str]) -> str:
    """Return a picture; ``said`` is what a screen reader says of it."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img">',
            f"<title>{escape(said)}</title>",
            f"<style>{STYLE}</style>",
            f'<rect class="paper" width="{WIDTH}" height="{height:.0f}"/>',
            *parts,
            "</svg>\n",
        ]
    )


def text(words: str, x: float, y: float, kind: str = "", anchor: str = "start") -> str:
    """Return a piece of text."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def box(kind: str, x: float, y: float, width: float, height: float, said: str = "") -> str:
    """Return a rectangle, with what it says when it is pointed at."""
    title = f"<title>{escape(said)}</title>" if said else ""
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}">{title}</rect>'


def bits() -> str:
    """Return the picture of the bits of each format."""
    cell, pitch, top = 20.0, 40.0, 44.0
    parts = [
        text("sign", LEFT, 24, "said"),
        box("exponent", LEFT + 60, 14, 12, 12),
        text("exponent: how large", LEFT + 78, 24, "said"),
        box("mantissa", LEFT + 220, 14, 12, 12),
        text("mantissa: how exact", LEFT + 238, 24, "said"),
        box("sign", LEFT - 18, 14, 12, 12),
    ]
    for row, fmt in enumerate(FORMATS[name] for name in OF_PAGE):
        y = top + pitch * row
        parts.append(text(name_of(fmt), LEFT - 10, y + 17, "name", "end"))
        x = float(LEFT)
        for kind, count in (
            ("sign", fmt.sign_bits),
            ("exponent", fmt.exponent_bits),
            ("mantissa", fmt.mantissa_bits),
        ):
            for _ in range(count):
                parts.append(box(f"{kind} cell", x, y, cell, 26))
                x += cell
        of = (
            f"{fmt.bits} bits"
            if fmt.stored_bits == fmt.bits
            else f"{fmt.bits} bits, in {fmt.stored_bits}"
        )
        parts.append(text(of, x + 10, y + 17, "said"))
    said = "; ".join(
        f"{name_of(fmt)}: {fmt.exponent_bits} bits of exponent, {fmt.mantissa_bits} of mantissa"
        for fmt in (FORMATS[name] for name in OF_PAGE)
    )
    return svg(top + pitch * len(OF_PAGE), said, parts)


def ranges() -> str:
    """Return the picture of the ranges of all formats on one axis of powers of two."""
    low, high, pitch, top = -150, 132, 34.0, 40.0
    across = linear(low, high, LEFT, WIDTH - RIGHT)
    foot = top + pitch * len(OF_PAGE)
    parts = []
    for exponent in range(-140, 141, 20):
        if low < exponent < high:
            x = across(exponent)
            parts.append(
                f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top - 6:.1f}" y2="{foot:.1f}"/>'
            )
            parts.append(text(power(exponent), x, foot + 18, "said", "middle"))
    said = []
    for row, fmt in enumerate(FORMATS[name] for name in OF_PAGE):
        y = top + pitch * row
        smallest, normal, largest = (
            math.log2(v) for v in (fmt.min_subnormal, fmt.min_normal, fmt.max)
        )
        parts.append(text(name_of(fmt), LEFT - 10, y + 15, "name", "end"))
        parts.append(
            box(
                "subnormal",
                across(smallest),
                y,
                across(normal) - across(smallest),
                20,
                "subnormal: fewer digits",
            )
        )
        parts.append(
            box("normal", across(normal), y, across(largest) - across(normal), 20, "all digits")
        )
        words = f"{number(fmt.min_subnormal)} to {number(fmt.max)}"
        said.append(f"{name_of(fmt)} from {words}")
        is_wide = across(largest) - across(normal) > 150
        x = (across(normal) + across(largest)) / 2 if is_wide else across(largest) + 8
        parts.append(
            text(words, x, y + 15, "on" if is_wide else "said", "middle" if is_wide else "start")
        )
    parts += [
        box("normal", LEFT, 10, 12, 12), text("all digits", LEFT + 18, 20, "said"),
        box("subnormal", LEFT + 100, 10, 12, 12), text("subnormal: the smaller, the fewer digits", LEFT + 118, 20, "said"),
    ]  # fmt: skip
    return svg(foot + 30, "; ".join(said), parts)


def number(value: float) -> str:
    """Write a limit as people do: plain where it is short, else with a power of ten."""
    if 0.01 <= value < 1e6:
        return f"{value:g}" if value != int(value) else str(int(value))
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    return f"{mantissa}·{power(int(exponent), 10)}"


def gradients(kept: Measured, scale: int = 0) -> str:
    """Return the picture of the gradients of a real training against the limits of float16.

    Args:
        kept: What was measured.
        scale: Exponent of the loss scale that they are multiplied by.
    """
    counts = {int(e) + scale: n for e, n in kept["exponents"].items()}
    whole = sum(counts.values())
    low, high, top, foot = -52, 20, 44.0, 230.0
    across = linear(low, high, LEFT, WIDTH - RIGHT)
    up = linear(0, 100_000, foot, top + 14)
    parts, flushed = [], 0
    parts_of = zones(FORMATS["float16"], Topic.GRADIENT)
    for zone in parts_of:
        left, right = across(max(zone.left, low)), across(min(zone.right, high))
        parts.append(box(f"ground {zone.sort}", left, top, right - left, foot - top))
        parts.append(text(zone.name, (left + right) / 2, top - 8, "said", "middle"))
        if zone.left > low:
            parts.append(
                f'<line class="edge" x1="{left:.1f}" x2="{left:.1f}" y1="{top:.1f}" y2="{foot:.1f}"/>'
            )
    for exponent, count in sorted(counts.items()):
        sort = next(zone.sort for zone in parts_of if zone.left <= exponent - 0.5 < zone.right)
        flushed += count if sort == "flushed" else 0
        if exponent > low:
            x = across(exponent - 1)
            said = f"{power(exponent - 1)} to {power(exponent)}: {count} gradients"
            parts.append(
                box(sort, x + 0.5, up(count), across(exponent) - x - 1, foot - up(count), said)
            )
    parts += [text(power(e), across(e), foot + 18, "said", "middle") for e in range(-50, high, 10)]
    what = "as they are" if not scale else f"multiplied by a loss scale of {power(scale)}"
    said = f"Gradients of a training, {what}: {flushed / whole:.1%} of them become zero in float16"
    parts.append(text(f"{flushed / whole:.1%} become zero", across(low) + 8, top + 22, "name"))
    return svg(foot + 30, said, parts)


def loss_scale(kept: Measured) -> str:
    """Return the picture of the course of a loss scale: doubled after a while, halved where a step was skipped."""
    scales: list[int] = kept["scales"]
    top, foot = 34.0, 190.0
    across = linear(0, len(scales), LEFT, WIDTH - RIGHT)
    lowest, highest = min(scales) - 1, max(scales) + 1
    up = linear(lowest, highest, foot, top)
    parts = [
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{up(e):.1f}" y2="{up(e):.1f}"/>'
        for e in range(lowest, highest + 1)
    ]
    parts += [
        text(power(e), LEFT - 10, up(e) + 4, "said", "end") for e in range(lowest, highest + 1)
    ]
    parts += [
        text(str(step), across(step), foot + 18, "said", "middle")
        for step in range(0, len(scales) + 1, 100)
    ]
    line: list[tuple[float, float]] = [(across(0), up(scales[0]))]
    skipped = []
    for step, (before, now) in enumerate(pairwise(scales), start=1):
        if now != before:
            line += [(across(step), up(before)), (across(step), up(now))]
        if now < before:
            skipped.append(step)
            parts.append(
                f'<circle class="overflow" cx="{across(step):.1f}" cy="{up(before):.1f}" r="4"/>'
            )
    line.append((across(len(scales)), up(scales[-1])))
    parts.append(f'<polyline class="line" points="{points_of(line)}"/>')
    parts.append(f'<circle class="overflow" cx="{LEFT + 6}" cy="16" r="4"/>')
    parts.append(
        text("an overflow: the step is skipped, the scale is halved", LEFT + 18, 20, "said")
    )
    said = f"A loss scale over {len(scales)} steps: doubled after {INTERVAL} good steps, halved {len(skipped)} times"
    return svg(foot + 30, said, parts)


def flushed_from(fmt: FloatFormat) -> int:
    """Return how many binades below the largest of its block an element becomes zero: at the end of them, or below."""
    return math.floor(math.log2(fmt.max)) - math.floor(math.log2(fmt.flush_at))


def blocks(kept: Measured) -> str:
    """Return the picture of a gradient beside the largest of its block, and beside the largest of all."""
    low, high, row, top = -40, 2, 190.0, 84.0
    across = linear(low, high, LEFT, WIDTH - RIGHT)
    marks = [(fmt.name, flushed_from(fmt)) for fmt in map(FORMATS.__getitem__, OF_BLOCKS)]
    parts, told = [], []
    for number, (key, title) in enumerate(BESIDE.items()):
        counts = {int(d): n for d, n in kept[key].items()}
        whole = sum(counts.values())
        head = top + number * (row + 72)
        foot = head + row - 40
        up = linear(0, 0.3, foot, head)
        parts.append(text(title, LEFT, head - 58, "name"))
        for distance, count in counts.items():
            if -distance > low:
                share = count / whole
                said = f"{power(-distance - 1)} to {power(-distance)} of it: {share:.1%}"
                left, right = across(-distance - 1), across(-distance)
                parts.append(
                    box("normal", left + 0.5, up(share), right - left - 1, foot - up(share), said)
                )
        for place, (name, distance) in enumerate(marks):
            share = sum(n for d, n in counts.items() if d >= distance) / whole
            x, y = across(-distance), head - 36 + 15 * (place % 3)
            parts.append(
                f'<line class="edge" x1="{x:.1f}" x2="{x:.1f}" y1="{y + 3:.1f}" y2="{foot:.1f}"/>'
            )
            parts.append(text(f"{name}: {share:.1%}", x - 4, y, "said", "end"))
            told.append(f"{name} {share:.1%}")
        parts += [
            text(power(e), across(e), foot + 18, "said", "middle") for e in range(low, high, 8)
        ]
    half = len(marks)
    said = (
        "Elements of a gradient that become zero: with a scale for each block of 32 "
        f"{', '.join(told[:half])}; with one scale for all {', '.join(told[half:])}"
    )
    return svg(top + 2 * (row + 72) - 86, said, parts)


def spacing() -> str:
    """Return the picture of all numbers that formats of few bits have between 0 and 8."""
    names = ("float8_e4m3fn", "mxfp6_e3m2", "mxfp4")
    top, pitch, end = 30.0, 52.0, 8.0
    across = linear(0, end, LEFT, WIDTH - RIGHT)
    parts = []
    foot = top + pitch * len(names)
    for tick in range(int(end) + 1):
        x = across(tick)
        parts.append(
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top - 8:.1f}" y2="{foot - 10:.1f}"/>'
        )
        parts.append(text(str(tick), x, foot + 8, "said", "middle"))
    told = []
    for row, fmt in enumerate(FORMATS[name] for name in names):
        y = top + pitch * row + 10
        values = [value for value in numbers(fmt) if value <= end]
        parts.append(text(name_of(fmt), LEFT - 10, y + 4, "name", "end"))
        parts += [
            f'<circle class="dot" cx="{across(v):.2f}" cy="{y:.1f}" r="{3 if len(values) < 40 else 2}"/>'
            for v in values
        ]
        told.append(f"{name_of(fmt)} has {len(values)}")
    return svg(foot + 20, f"Numbers from 0 to {end:g}: {', '.join(told)}", parts)


def numbers(fmt: FloatFormat) -> list[float]:
    """Return the finite numbers of a format that are not negative, ascending."""
    values = [0.0]
    for pattern in range(1, fmt.max_pattern + 1):
        exponent, fraction = divmod(pattern, 1 << fmt.mantissa_bits)
        significand = fraction + ((1 << fmt.mantissa_bits) if exponent else 0)
        values.append(math.ldexp(significand, max(exponent, 1) - fmt.bias - fmt.mantissa_bits))
    return values


SCALE = 16
"""Exponent of the loss scale in the second picture of gradients: that with which a GradScaler begins."""

PICTURES: dict[str, Callable[[Measured], str]] = {
    "float16-bits.svg": lambda _kept: bits(),
    "float16-ranges.svg": lambda _kept: ranges(),
    "float16-gradients.svg": gradients,
    "float16-gradients-scaled.svg": lambda kept: gradients(kept, SCALE),
    "float16-course.svg": loss_scale,
    "blocks-gradient.svg": blocks,
    "float16-spacing.svg": lambda _kept: spacing(),
}
"""The pictures, by the names of their files."""


def files(kept: Measured) -> dict[Path, str]:
    """Return the text of each picture, by its file."""
    return {IMAGES / name: drawn(kept) for name, drawn in PICTURES.items()}
