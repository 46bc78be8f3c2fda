"""Panels that are text: stat, table; and legends."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from tools.preview.colours import see_through
from tools.preview.frames import NUMBER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tools.preview.fields import FieldLook
    from tools.preview.frames import Frame

NARROWEST_COLUMN = 150
"""Width that Grafana leaves to a column of a table at least. Unit: pixels."""


class Value(NamedTuple):
    """Value of a stat.

    Attributes:
        look: How it is shown.
        value: What is shown.
        history: All values, for the line behind it.
    """

    look: FieldLook
    value: Any
    history: Sequence[Any]


def stat(values: Sequence[Value], options: Mapping[str, Any], width: float, height: float) -> str:
    """Return a tile for each value."""
    upright = options.get("orientation", "auto") != "vertical" and width > height
    count = len(values)
    wide, high = (width / count, height) if upright else (width, height / count)
    mode = options.get("textMode", "auto")
    named = mode in ("value_and_name", "name") or (mode == "auto" and count > 1)
    longest = max(len(look.text(value)) for look, value, _ in values)
    room = high - (18 if named else 0)
    size = max(12.0, min(0.55 * room, 1.55 * (wide - 24) / max(longest, 1), 56.0))
    tiles = []
    for look, value, history in values:
        css = look.colour(value)
        text = look.text(value)
        filled = options.get("colorMode", "value").startswith("background")
        style = f"background:{css};color:#fff" if filled else f"color:{css}"
        name = f'<div class="name">{escape(look.name)}</div>' if named else ""
        number = (
            ""
            if mode == "name"
            else f'<div class="value" style="font-size:{size:.0f}px">{escape(text)}</div>'
        )
        line = (
            _sparkline(history, css, look.options.get("min"))
            if options.get("graphMode") == "area"
            else ""
        )
        tiles.append(f'<div class="tile" style="{style}">{line}{name}{number}</div>')
    way = "row" if upright else "column"
    return f'<div class="tiles" style="flex-direction:{way}">{"".join(tiles)}</div>'


def _sparkline(history: Sequence[Any], css: str, least: float | None) -> str:
    there = [(i, v) for i, v in enumerate(history) if isinstance(v, float) and v - v == 0]
    if len(there) < 2:
        return ""
    low = min(v for _, v in there) if least is None else least
    high = max(v for _, v in there)
    points = " ".join(
        f"{100 * i / (len(history) - 1):.2f},{38 - 36 * (v - low) / ((high - low) or 1):.2f}"
        for i, v in there
    )
    return (
        '<svg class="spark" viewBox="0 0 100 40" preserveAspectRatio="none">'
        f'<polygon points="{100 * there[0][0] / (len(history) - 1):.2f},40 {points} 100,40" fill="{see_through(css, 0.2)}"/>'
        f'<polyline points="{points}" fill="none" stroke="{css}" stroke-width="1.2" vector-effect="non-scaling-stroke"/></svg>'
    )


def table(
    frame: Frame, looks: Sequence[FieldLook], options: Mapping[str, Any], width: float
) -> str:
    """Return a table, sorted as the panel wants it, with the widths that Grafana gives it."""
    columns = list(zip(looks, frame.fields, strict=True))
    order: Sequence[int] = range(len(frame))
    for by in reversed(options.get("sortBy") or []):
        for look, column in columns:
            if look.name == by["displayName"]:
                values = [column.values[row] for row in order]
                again = sorted_rows(values, descending=bool(by.get("desc")))
                order = [order[i] for i in again]
    given = [look.custom.get("width") for look in looks]
    free = width - sum(wide for wide in given if wide)
    share = max(NARROWEST_COLUMN, free / (given.count(None) or 1))
    widths = [share if wide is None else wide for wide in given]
    aligned = ["right" if column.kind == NUMBER else "left" for column in frame.fields]
    head = "".join(
        f'<th style="text-align:{align}">{escape(look.name)}</th>'
        for look, align in zip(looks, aligned, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            _cell(look, column.values[row], align)
            for (look, column), align in zip(columns, aligned, strict=True)
        )
        + "</tr>"
        for row in order
    )
    grid = "".join(f'<col style="width:{wide:.0f}px">' for wide in widths)
    return (
        f'<table style="width:{sum(widths):.0f}px"><colgroup>{grid}</colgroup>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def sorted_rows(values: Sequence[Any], *, descending: bool) -> list[int]:
    """Return the rows in the order of their values, those without one last."""
    there = [i for i, v in enumerate(values) if v is not None and v == v]  # noqa: PLR0124 - NaN
    there.sort(key=lambda i: values[i], reverse=descending)
    return there + sorted(set(range(len(values))) - set(there))


def _cell(look: FieldLook, value: Any, aligned: str) -> str:
    cell = look.custom.get("cellOptions", {})
    kind = cell.get("type", "auto")
    style = f"text-align:{aligned}"
    if kind == "color-text":
        style += f";color:{look.colour(value)}"
    text = escape(look.text(value))
    if look.options.get("links") and value is not None:
        text = f'<span class="link">{text}</span>'
    wrapped = ' class="wrapped"' if cell.get("wrapText") else ""
    return f'<td{wrapped} style="{style}"><div>{text}</div></td>'


def nothing(words: str) -> str:
    """Return what stands in a panel without data."""
    return f'<div class="nothing">{escape(words)}</div>'


class Entry(NamedTuple):
    """Entry of a legend.

    Attributes:
        name: Of the series, or of the state.
        colour: As CSS has it.
        cells: Its calculations, written.
    """

    name: str
    colour: str
    cells: Sequence[str]


def legend(entries: Sequence[Entry], heads: Sequence[str]) -> str:
    """Return a legend: a table if there are calculations, headed by ``heads``, else a list."""
    named = [(f'<i style="background:{e.colour}"></i>{escape(e.name)}', e.cells) for e in entries]
    if not heads:
        return f'<div class="legend">{"".join(f"<span>{name}</span>" for name, _ in named)}</div>'
    rows = "".join(
        f"<tr><td>{name}</td>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
        for name, cells in named
    )
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    return f'<div class="legend"><table><thead><tr><th>Name</th>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
