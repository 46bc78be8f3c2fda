"""The elements of one step of two runs, one against the other."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from ampwatch.errors import DiffError
from ampwatch.lab.difference.allowed import ROUNDINGS, unit_of
from ampwatch.lab.tape.elements import DTYPES, Elements, ElementsFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ampwatch.lab.tape import Tape

MAX_COMPARED = 65_536
"""First elements of each tensor that are compared."""

_NAMES = {short: name for name, short in DTYPES.items()}


class ElementsDistance(NamedTuple):
    """How far one tensor is apart, element by element.

    Attributes:
        name: ``output/<module>`` or ``gradient/<module or parameter>``.
        compared: Elements that were compared.
        beyond: Share of them that are apart by more than ``ROUNDINGS`` units of the coarser format.
        largest: Largest distance.
        where: Index of that element.
        a: The element of the one.
        b: The element of the other.
    """

    name: str
    compared: int
    beyond: float
    largest: float
    where: tuple[int, ...]
    a: float
    b: float


def compare_elements(a: Tape, b: Tape) -> list[ElementsDistance]:
    """Hold the elements of the step that both runs kept against each other.

    Gradients are compared without the loss scale.

    Raises:
        DiffError: If one has kept none, or both have kept those of different steps.

    Cost: some 0.3 us an element.
    """
    steps = [tape.head.elements for tape in (a, b)]
    if -1 in steps or steps[0] != steps[1]:
        words = [f"of step {step}" if step >= 0 else "of none" for step in steps]
        msg = (
            f"expected runs that kept the elements of the same step, got {words[0]} in A and {words[1]} in B;"
            " record both with the same record_elements=STEP"
        )
        raise DiffError(msg)
    files = ElementsFile(a.elements_path()), ElementsFile(b.elements_path())
    scales = [_scale(tape) for tape in (a, b)]
    return list(_compared(*files, *scales))


def _scale(tape: Tape) -> float:
    outcome = tape.outcomes.get(tape.head.elements)
    scale = math.nan if outcome is None else outcome.scale
    return scale if scale > 0 and math.isfinite(scale) else 1.0


def _compared(
    a: ElementsFile, b: ElementsFile, scale_a: float, scale_b: float
) -> Iterator[ElementsDistance]:
    there = set(b.names)
    for name in a.names:
        if name not in there:
            continue
        mine, theirs = a.read(name, MAX_COMPARED), b.read(name, MAX_COMPARED)
        if mine.shape == theirs.shape and mine.values:
            is_scaled = name.startswith("gradient/")
            yield _distance(mine, theirs, (scale_a, scale_b) if is_scaled else (1.0, 1.0))


def _distance(a: Elements, b: Elements, scales: tuple[float, float]) -> ElementsDistance:
    unit = ROUNDINGS * max(unit_of(_NAMES[a.dtype]), unit_of(_NAMES[b.dtype]))
    beyond, largest, at = 0, -1.0, 0
    for place, (x, y) in enumerate(zip(a.values, b.values, strict=True)):
        mine, theirs = x / scales[0], y / scales[1]
        apart = abs(mine - theirs)
        if mine == theirs or (math.isnan(mine) and math.isnan(theirs)):
            apart = 0.0
        elif math.isnan(apart):
            apart = math.inf
        beyond += apart > unit * max(abs(mine), abs(theirs)) or math.isinf(apart)
        if apart > largest:
            largest, at = apart, place
    first, second = a.values[at] / scales[0], b.values[at] / scales[1]
    share = beyond / len(a.values)
    return ElementsDistance(
        a.name, len(a.values), share, largest, _index(at, a.shape), first, second
    )


def _index(place: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the index of an element by its place in row-major order."""
    found = []
    for size in reversed(shape):
        place, rest = divmod(place, size)
        found.append(rest)
    return tuple(reversed(found))
