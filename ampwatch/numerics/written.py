"""Loss scales, times of steps, counts and names as they are read: digits where digits are read at a glance.

ASCII only, for logs and terminals.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Any

MAX_IN_DIGITS = 1e6
"""Scale from which on nobody counts the digits: a power of two is written as one from there on."""


def power_of_two(value: float) -> str:
    """Write ``value`` as a power of two, as in "2^-44"; empty if it is none."""
    if not 0 < value < math.inf:
        return ""
    mantissa, exponent = math.frexp(value)
    return f"2^{exponent - 1}" if mantissa == 0.5 else ""


def is_in_digits(scale: float) -> bool:
    """Whether the digits of a scale are read at a glance: those of 65536 are, those of 2^-44 are not."""
    return 1 <= scale < MAX_IN_DIGITS or not power_of_two(scale)


def scale_text(scale: float) -> str:
    """Write a loss scale for a sentence: "65536", "2^-44", and what is no power of two as "0.75"."""
    return _digits(scale) if is_in_digits(scale) else power_of_two(scale)


def scale_argument(scale: float) -> str:
    """Write a loss scale as ``scaler.update`` takes it.

    It has to be a float: an integer is taken for a tensor there, and raises.
    """
    if not is_in_digits(scale):
        return power_of_two(scale).replace("2^", "2.0**")
    digits = _digits(scale)
    return f"{digits}.0" if digits.isdigit() else digits


def step_time(seconds: float) -> str:
    """Write the duration of a step or of a part of it, in milliseconds below one second."""
    # From 0.9995 on three digits of milliseconds would be "1e+03".
    return f"{seconds * 1000:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"


def _digits(scale: float) -> str:
    is_whole = 1 <= scale < MAX_IN_DIGITS and scale == int(scale)
    return str(int(scale)) if is_whole else f"{scale:.6g}"


def counted(count: float, noun: str) -> str:
    """Return a count with its noun: ``1 step``, ``2 steps``."""
    return f"{count:.0f} {noun}" + ("" if round(count) == 1 else "s")


def ordinal(number: int) -> str:
    """Return an ordinal number in figures: ``1st``, ``12th``, ``23rd``."""
    is_teen = 10 <= number % 100 <= 20
    return f"{number}{'th' if is_teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def without_nonfinite(value: Any) -> Any:
    """Return a value for JSON, which has no numbers that are not finite: they become words."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "infinity" if value > 0 else "-infinity"
    if isinstance(value, dict):
        return {name: without_nonfinite(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nonfinite(part) for part in value]
    return value


class Labelled(IntEnum):
    """An enumeration whose members have names for users."""

    @property
    def label(self) -> str:
        """The member as a Prometheus label value, and as findings and users read it."""
        return self.name.lower()
