"""The picture of cost against use: what a tool costs to the right, what it told of a planted overflow upwards.

It is SVG with colours of its own for light and dark pages, and text that every reader of pages can find.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from tools.cost.code import ROOT
from tools.cost.tables import BARE, QUESTIONS

if TYPE_CHECKING:
    from tools.cost.tables import Measured

PICTURE = ROOT / "docs" / "images" / "cost.svg"

WIDTH, HEIGHT = 860, 440
LEFT, RIGHT, TOP, BOTTOM = 96, 24, 46, 64
ROW = (HEIGHT - TOP - BOTTOM) / (len(QUESTIONS) + 1)
TICKS = (1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32)
STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #1f2328 }
  .axis, .tick { fill: #59636e } .grid { stroke: #d1d9e0; stroke-width: 1 }
  .range { stroke: #59636e; stroke-width: 1.5 } .dot { fill: #59636e }
  .own .range { stroke: #0969da } .own .dot { fill: #0969da } .own text { fill: #0969da; font-weight: 600 }
  .paper { fill: #ffffff }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc } .axis, .tick { fill: #9198a1 } .grid { stroke: #3d444d }
    .range { stroke: #9198a1 } .dot { fill: #9198a1 } .paper { fill: #0d1117 }
    .own .range { stroke: #4493f8 } .own .dot { fill: #4493f8 } .own text { fill: #4493f8 }
  }
"""


@dataclass(frozen=True)
class Point:
    """A tool in the picture.

    Attributes:
        name: Of the tool.
        ratios: What it costs on each training, as a ratio to bare steps.
        score: How many of the questions it answered right.
    """

    name: str
    ratios: tuple[float, ...]
    score: int

    @property
    def middle(self) -> float:
        """The geometric mean of the ratios."""
        return math.exp(sum(map(math.log, self.ratios)) / len(self.ratios))


def points(kept: dict[str, Measured]) -> list[Point]:
    """Return each tool that was asked and timed, the cheapest first."""
    it = kept["bench-peers"]
    found = [
        Point(
            name,
            tuple(max(r["variants"][name]["cpu_ratio"], 1.0) for r in it["results"]),
            sum(answer["right"] for answer in told["answers"].values()),
        )
        for name, told in it["told"].items()
        if name != BARE and it["results"]
    ]
    return sorted(found, key=lambda point: point.middle)


def drawn(kept: dict[str, Measured]) -> str:
    """Return the picture."""
    tools = points(kept)
    dearest = max((max(point.ratios) for point in tools), default=TICKS[1])
    top = next((tick for tick in TICKS if tick >= dearest), dearest)
    workloads = ", ".join(r["workload"] for r in kept["bench-peers"]["results"])
    axis = (
        "step against bare, CPU time; dot: mean, line: from the cheapest to the dearest of "
        f"{workloads}"
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(_summary(tools))}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>',
        f'<text x="{LEFT}" y="22">What it told of one planted overflow, against what it costs</text>',
        *_grid(top),
        f'<text class="axis" x="{WIDTH - RIGHT}" y="{HEIGHT - 12}" text-anchor="end">{axis}</text>',
    ]
    for score in range(len(QUESTIONS) + 1):
        parts += _row([point for point in tools if point.score == score], score, top)
    return "\n".join([*parts, "</svg>\n"])


def _summary(tools: list[Point]) -> str:
    each = (f"{t.name} {t.score} of {len(QUESTIONS)} at {t.middle:.2f}" for t in tools)
    return f"Questions answered right, at which cost: {'; '.join(each)}"


def _x(ratio: float, top: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * math.log(ratio) / math.log(top)


def _y(score: float) -> float:
    return HEIGHT - BOTTOM - ROW * (score + 0.5)


def _grid(top: float) -> list[str]:
    lines = []
    for tick in (tick for tick in TICKS if tick <= top):
        x = _x(tick, top)
        lines.append(
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        )
        lines.append(
            f'<text class="tick" x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">x {tick:g}</text>'
        )
    for score in range(len(QUESTIONS) + 1):
        words = f"{score} of {len(QUESTIONS)}" if score else "nothing"
        y = _y(score - 0.5)
        lines.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        lines.append(
            f'<text class="tick" x="{LEFT - 10}" y="{_y(score) + 4:.1f}" text-anchor="end">{words}</text>'
        )
    return lines


def _row(tools: list[Point], score: int, top: float) -> list[str]:
    """Return the tools of one score, one below the other, each with its name beside it."""
    parts = []
    pitch = min(15.0, (ROW - 4) / max(len(tools), 1))
    for place, tool in enumerate(tools):
        y = _y(score) + pitch * (place - (len(tools) - 1) / 2)
        low, dot, high = (_x(r, top) for r in (min(tool.ratios), tool.middle, max(tool.ratios)))
        on_left = high > WIDTH * 0.62
        x, anchor = (low - 8, "end") if on_left else (high + 8, "start")
        own = ' class="own"' if tool.name.startswith("ampwatch") else ""
        parts.append(
            f"<g{own}>"
            f'<line class="range" x1="{low:.1f}" x2="{high:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<circle class="dot" cx="{dot:.1f}" cy="{y:.1f}" r="4.5"/>'
            f'<text x="{x:.1f}" y="{y + 4:.1f}" text-anchor="{anchor}">{escape(tool.name)}</text></g>'
        )
    return parts
