"""Numbers and time spans as people read them, the same on the page, in the terminal and in reports.

Plain text only: no markup, no torch, no Prometheus.
"""

from __future__ import annotations

import math
import re

from ampwatch.numerics import written

NARROW_SPACE = "\u202f"
"""Groups digits. A narrow space that does not break, so that a number stays on one line."""

_DIGITS, _RAISED = "-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"
_SUPERSCRIPTS = str.maketrans(_DIGITS, _RAISED)
_LOWERED = str.maketrans(_RAISED, _DIGITS)
_POWER = re.compile(f"[{_RAISED}]+")


def number(value: float) -> str:
    """Write ``value`` with grouped digits; with four significant ones if it is not whole."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "-infinity" if value < 0 else "infinity"
    if value == int(value) and abs(value) < 1e12:
        return f"{int(value):,}".replace(",", NARROW_SPACE)
    return f"{value:.4g}"


def plain(text: str) -> str:
    """Return ``text`` of this module in ASCII, for a terminal in any locale."""
    lowered = _POWER.sub(lambda power: f"^{power[0].translate(_LOWERED)}", text)
    return lowered.replace(NARROW_SPACE, "")


def time_span(seconds: float) -> str:
    """Write ``seconds`` in the largest unit of which there are at least two."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{number(seconds // size)} {unit}"
    return f"{number(seconds // 1)} s" if seconds >= 1 else "less than 1 s"


step_time = written.step_time


def plural(count: int, noun: str) -> str:
    """Write ``count`` and the noun, in the plural unless it is one."""
    return f"{number(count)} {noun}" if count == 1 else f"{number(count)} {noun}s"


def percent(share: float) -> str:
    """Write ``share`` in percent, with two digits; 0 and 100 only if it is exactly that."""
    value = 100 * share
    if 0 < value < 0.0001:
        return "under 0.0001 %"
    if 99.9 < value < 100:
        return "over 99.9 %"
    digits = float(f"{value:.{2 if value < 10 else 3}g}")
    return f"{digits:.6f}".rstrip("0").rstrip(".") + " %"


def power(exponent: int, base: int = 2) -> str:
    """Write ``base`` to the power of ``exponent``, as in "2¹⁶"."""
    return f"{base}{str(exponent).translate(_SUPERSCRIPTS)}"


def power_of_two(value: float) -> str:
    """Write ``value`` as a power of two, as in "2¹⁶"; empty if it is none."""
    base, _, exponent = written.power_of_two(value).partition("^")
    return base + exponent.translate(_SUPERSCRIPTS)


def scale(value: float) -> str:
    """Write a loss scale as charts do: as a power of two, which it is unless it was set by hand."""
    return power_of_two(value) or number(value)


def quantity(value: float) -> str:
    """Write a measured number; what needs an exponent of ten has one of two as well, as charts do."""
    in_tens = number(value)
    if "e" not in in_tens or not math.isfinite(value):
        return in_tens
    power = power_of_two(value)
    nearest = power_of_two(2.0 ** round(math.log2(abs(value))))
    return power or f"{in_tens} (about {'-' * (value < 0)}{nearest})"


def memory(nbytes: int) -> str:
    """Write a number of bytes in MiB, with three digits."""
    return f"{float(f'{nbytes / 2**20:.3g}'):,.6g} MiB".replace(",", NARROW_SPACE)
