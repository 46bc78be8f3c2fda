"""What the cells of the map of a model stand for: kinds, grades, letters and their words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from ampwatch.diagnosis.gradients.gradient_range import LOST_OF_ONE, LOST_SHARE
from ampwatch.diagnosis.rounding.update_precision import UNCHANGED_SHARE
from ampwatch.host.fleet.module_map import EXPECTED, MAP_REASONS, NOTABLE, QUIET, byte_of
from ampwatch.host.fleet.trouble import NOTABLE_CLOSE, NOTABLE_MISSED, QUIET_HEADROOM, REASONS
from ampwatch.report.words import percent

if TYPE_CHECKING:
    from collections.abc import Iterator

HEADROOM_BITS = math.log2(QUIET_HEADROOM)


class CellReason(NamedTuple):
    """A kind of trouble, as it stands in the legend.

    Attributes:
        key: One of ``MAP_REASONS``, or another name for what is no trouble.
        sign: What stands for it beside a name, so that nothing is reported by colour alone.
        word: The trouble in a word or two, as the table of modules has it.
        meaning: The trouble in half a sentence.
        severity: How bad it is where it stands in a table, as findings have it; empty for what is no trouble.
    """

    key: str
    sign: str
    word: str
    meaning: str
    severity: str = ""


LEGEND = (
    CellReason(
        "nonfinite",
        "✖",
        "non-finite",
        "outputs, weights or buffers with NaN or infinities",
        "critical",
    ),
    CellReason(
        "nonfinite_gradient",
        "✕",
        "non-finite gradient",
        "gradients with NaN or infinities",
        "critical",
    ),
    CellReason(
        "lost",
        "▼",
        "underflow",
        "a part of the gradient is flushed to zero by its format",
        "warning",
    ),
    CellReason(
        "activation_headroom",
        "▲",
        "near overflow",
        "the output is near the limit of its format",
        "warning",
    ),
    CellReason("unchanged", "≡", "updates lost", "steps do not change most of the weights", "info"),
    CellReason(
        "follows",
        "↳",
        "follows",
        "non-finite since the step of the culprit, in a module that is the root of no finding",
    ),
    CellReason(
        "expected",
        "◇",
        "scale sought",
        "gradients overflowed while the scaler searched for its scale",
    ),
    CellReason("quiet", "", "nothing notable", "measured, none of the above"),
    CellReason("none", "", "no sample", "not measured in these steps"),
)
"""Kinds of cells, the worst first."""

TROUBLES = {
    reason.key: {"sign": reason.sign, "word": reason.word, "level": reason.severity}
    for reason in LEGEND
    if reason.key in REASONS
}
"""What the table of modules says of each reason for trouble."""

BY_KEY = {reason.key: reason for reason in LEGEND}


class Code(NamedTuple):
    """What one letter in the map stands for.

    Attributes:
        letter: The letter.
        reason: Key of the reason in ``LEGEND``.
        grade: How bad it is within that reason, from 0 to 2.
        words: The amount in words.
    """

    letter: str
    reason: str
    grade: int
    words: str


def bits(severity: float) -> str:
    """Write the headroom that is left, given how much of what is quiet is used up, from 0 to 1."""
    return f"{HEADROOM_BITS * (1.0 - severity):.2g} bits"


_OF_ELEMENTS = (
    (0.0, f"under {percent(LOST_SHARE)} of the elements"),
    (LOST_SHARE, f"{percent(LOST_SHARE)} of the elements or more"),
    (LOST_OF_ONE, f"{percent(LOST_OF_ONE)} of the elements or more"),
)

_GRADES: dict[str, tuple[tuple[float, str], ...]] = {
    "unchanged": (
        (NOTABLE_MISSED, f"over {percent(NOTABLE_MISSED)} of the weights stay as they are"),
        (UNCHANGED_SHARE, f"{percent(UNCHANGED_SHARE)} of the weights or more stay as they are"),
    ),
    "activation_headroom": (
        (NOTABLE_CLOSE, f"under {bits(NOTABLE_CLOSE)} of headroom"),
        (1.0 - 1.0 / HEADROOM_BITS, "1 bit of headroom or less"),
    ),
    "lost": (
        (0.0, f"under {percent(LOST_SHARE)} of the gradient"),
        (LOST_SHARE, f"{percent(LOST_SHARE)} of the gradient or more"),
        (LOST_OF_ONE, f"{percent(LOST_OF_ONE)} of the gradient or more"),
    ),
    "nonfinite_gradient": _OF_ELEMENTS,
    "nonfinite": _OF_ELEMENTS,
}
"""Grades of each reason, the mildest reason first: from which amount on, and what that is in words."""


def _codes() -> Iterator[Code]:
    yield Code(".", "none", 0, BY_KEY["none"].word)
    yield Code("-", "quiet", 0, BY_KEY["quiet"].word)
    yield Code("o", "expected", 0, BY_KEY["expected"].meaning)
    yield Code("~", "follows", 0, BY_KEY["follows"].meaning)
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    for reason, grades in _GRADES.items():
        for grade, (_, words) in enumerate(grades):
            yield Code(next(letters), reason, grade, f"{BY_KEY[reason].word}: {words}")


CODES = tuple(_codes())
"""What letters stand for, the worst last. A cell of several is the worst of them."""

LETTERS = "".join(code.letter for code in CODES).encode()


def _table(reason: str) -> bytes:
    """Return the place among ``CODES`` of each byte of a reason."""
    table = bytearray(256)
    table[QUIET], table[EXPECTED] = 1, 2
    places = [place for place, code in enumerate(CODES) if code.reason == reason]
    for place_, (amount, _) in zip(places, _GRADES[reason], strict=True):
        first = byte_of(reason, amount) if amount else NOTABLE
        table[first:] = bytes([place_]) * (256 - first)
    return bytes(table)


TABLES = tuple(map(_table, MAP_REASONS))

NONFINITE = bytes(p for p, code in enumerate(CODES) if code.reason.startswith("nonfinite"))
FOLLOWING = next(place for place, code in enumerate(CODES) if code.reason == "follows")
FOLLOWS = bytes.maketrans(NONFINITE, bytes([FOLLOWING] * len(NONFINITE)))
"""Places among ``CODES`` of what is non-finite, and of a cell that only follows, and the one for the other."""
FIRST_NOTABLE = next(place for place, code in enumerate(CODES) if code.reason in MAP_REASONS)
