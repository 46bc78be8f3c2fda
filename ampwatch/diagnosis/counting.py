"""Counts in sentences."""

from __future__ import annotations


def counted(count: float, noun: str) -> str:
    """Return a count with its noun: ``1 step``, ``2 steps``."""
    return f"{count:.0f} {noun}" + ("" if round(count) == 1 else "s")


def ordinal(number: int) -> str:
    """Return an ordinal number in figures: ``1st``, ``12th``, ``23rd``."""
    is_teen = 10 <= number % 100 <= 20
    return f"{number}{'th' if is_teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"
