"""Grafana's names of colours, in its dark theme."""

from __future__ import annotations

PALETTE = (
    "#73bf69",
    "#f2cc0c",
    "#8ab8ff",
    "#ff9830",
    "#f2495c",
    "#5794f2",
    "#b877d9",
    "#96d98d",
    "#fade2a",
    "#c0d8ff",
    "#ffb357",
    "#ff7383",
    "#3274d9",
    "#ca95e5",
    "#37872d",
    "#e0b400",
    "#1f60c4",
    "#fa6400",
    "#c4162a",
    "#8f3bb8",
    "#56a64b",
    "#ffcb7d",
    "#ffa6b0",
    "#deb6f2",
)
"""Colours of series, in their order."""

_SHADES = {
    "red": ("#c4162a", "#e02f44", "#f2495c", "#ff7383", "#ffa6b0"),
    "orange": ("#fa6400", "#ff780a", "#ff9830", "#ffb357", "#ffcb7d"),
    "yellow": ("#e0b400", "#f2cc0c", "#fade2a", "#ffee52", "#fff899"),
    "green": ("#37872d", "#56a64b", "#73bf69", "#96d98d", "#c8f2c2"),
    "blue": ("#1f60c4", "#3274d9", "#5794f2", "#8ab8ff", "#c0d8ff"),
    "purple": ("#8f3bb8", "#a352cc", "#b877d9", "#ca95e5", "#deb6f2"),
}
_TONES = ("dark-", "semi-dark-", "", "light-", "super-light-")

_NAMED = {
    **{
        tone + name: shade
        for name, s in _SHADES.items()
        for tone, shade in zip(_TONES, s, strict=True)
    },
    "text": "#ccccdc",
    "gray": "#8e8e99",
    "grey": "#8e8e99",
    "transparent": "transparent",
    "white": "#ffffff",
    "black": "#000000",
}


def colour(name: str) -> str:
    """Return a colour as CSS has it; what is not one of Grafana's names is taken as it is."""
    return _NAMED.get(name, name)


def see_through(css: str, opacity: float) -> str:
    """Return ``#rrggbb`` with an opacity from 0 to 1."""
    if not css.startswith("#"):
        return css
    red, green, blue = (int(css[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:g})"
