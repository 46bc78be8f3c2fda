"""HTML and SVG from Python, escaped by construction: text is never markup unless it says so."""

from __future__ import annotations

from html import escape

VOID = frozenset({"meta", "br", "line", "rect", "path", "circle", "polyline"})
"""Elements without content."""


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


Child = str | int | None


def element(name: str, /, *children: Child, **attributes: str | float | None) -> Markup:
    """Return an element.

    Args:
        name: Its name.
        children: What is in it; plain text is escaped, ``None`` is left out.
        attributes: Underscores stand for hyphens; ``class_`` for ``class``. ``None`` is left out.
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_value(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in VOID and not children:
        return Markup(f"<{name}{given}/>")
    return Markup(f"<{name}{given}>{joined(*children)}</{name}>")


def joined(*children: Child) -> Markup:
    """Return the children one after the other."""
    return Markup("".join(_markup(child) for child in children if child is not None))


def _markup(child: str | int) -> str:
    return child if isinstance(child, Markup) else escape(str(child))


def _value(value: str | float) -> str:
    # Coordinates: a tenth of a pixel is more than anybody sees.
    return f"{value:.1f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
