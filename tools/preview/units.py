"""A number as Grafana writes it, by the unit of its field."""

from __future__ import annotations

import math
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Write = Callable[[float, int | None], str]

_SI = ("f", "p", "n", "µ", "m", "", "k", "M", "G", "T", "P", "E", "Z", "Y")
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "Zi", "Yi")
_SHORT = ("", " K", " Mil", " Bil", " Tri", " Quadr", " Quint", " Sext", " Sept")
_COUNT = ("", "K", "M", "B", "T")

_DURATIONS = (
    (1e-6, 1e-9, " ns"),
    (1e-3, 1e-6, " µs"),
    (1.0, 1e-3, " ms"),
    (60.0, 1.0, " s"),
    (3600.0, 60.0, " mins"),
    (86400.0, 3600.0, " hours"),
    (604800.0, 86400.0, " days"),
    (31536000.0, 604800.0, " weeks"),
    (math.inf, 31536000.0, " years"),
)


def written(value: float, unit: str, decimals: int | None = None) -> str:
    """Return a number with its unit.

    Args:
        value: What is to be read.
        unit: Grafana's name of the unit; none if empty.
        decimals: Digits after the point; as many as make about three that matter if ``None``.

    Raises:
        ValueError: If no dashboard here has used that unit so far.
    """
    write = _UNITS.get(unit)
    if write is None:
        msg = f"expected one of the units {', '.join(sorted(filter(None, _UNITS)))}, got {unit!r}; add it to tools/preview/units.py"
        raise ValueError(msg)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return write(value, decimals)


def fixed(value: float, decimals: int | None) -> str:
    """Return a number with so many decimals, or with as many as make about three digits that matter."""
    if decimals is None:
        decimals = _decimals(value)
    return f"{value:.{decimals}f}"


def _decimals(value: float) -> int:
    """Return the decimals of three digits that matter, none for a whole number."""
    if value == int(value):
        return 0
    return min(max(2 - math.floor(math.log10(abs(value))), 0), 20)


def _plain(symbol: str) -> Write:
    return lambda value, decimals: fixed(value, decimals) + symbol


def _scaled(factor: float, prefixes: Sequence[str], symbol: str, offset: int = 0) -> Write:
    def write(value: float, decimals: int | None) -> str:
        power = math.floor(math.log(abs(value), factor) + 1e-9) if value else 0
        power = min(max(power, -offset), len(prefixes) - 1 - offset)
        return fixed(value / factor**power, decimals) + prefixes[power + offset] + symbol

    return write


def _si(symbol: str) -> Write:
    return _scaled(1000.0, tuple(f" {prefix}" for prefix in _SI), symbol, offset=5)


def _binary(symbol: str) -> Write:
    return _scaled(1024.0, tuple(f" {prefix}" for prefix in _BINARY), symbol)


def _count(symbol: str) -> Write:
    return _scaled(1000.0, _COUNT, f" {symbol}")


def _duration(value: float, decimals: int | None) -> str:
    if value == 0:
        return "0 s"
    for below, one, symbol in _DURATIONS:
        if abs(value) < below:
            return fixed(value / one, decimals) + symbol
    raise AssertionError


def _yes_or_no(yes: str, no: str) -> Write:
    return lambda value, _: yes if value else no


def _moment(value: float, _: int | None) -> str:
    return f"{datetime.fromtimestamp(value / 1e3, timezone.utc):%Y-%m-%d %H:%M:%S}"


_UNITS: dict[str, Write] = {
    **dict.fromkeys(("", "none"), _plain("")),
    "short": _scaled(1000.0, _SHORT, ""),
    "sci": lambda value, decimals: f"{value:.{2 if decimals is None else decimals}e}",
    "percent": _plain("%"),
    "percentunit": lambda value, decimals: f"{fixed(100 * value, decimals)}%",
    "s": _duration,
    "bytes": _binary("B"),
    "Bps": _si("B/s"),
    "watt": _si("W"),
    "joule": _si("J"),
    "hertz": _si("Hz"),
    "flops": _si("FLOPS"),
    "celsius": _plain(" °C"),
    "dB": _plain(" dB"),
    "ops": _count("ops/s"),
    "cps": _count("c/s"),
    "dateTimeAsIso": _moment,
    "bool_yes_no": _yes_or_no("Yes", "No"),
}


def is_number(value: Any) -> bool:
    """Return whether a cell holds a number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
