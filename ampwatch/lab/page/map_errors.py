"""The map of a model by error budgets: modules down, a budget in each column, how exact a module was in each cell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ampwatch.host.page.rows import State
from ampwatch.lab.budget import right_bits
from ampwatch.report.words import number
from ampwatch.wire.records import MAX_BUDGETED, BudgetRecord

NONE = "none"


class _Grade(NamedTuple):
    """How many bits of a result are right."""

    bits: int  # the least that it takes
    letter: str  # what stands for it in a row
    word: str  # it in words
    meaning: str  # which formats reach it

    @property
    def key(self) -> str:
        return f"right{self.bits}"

    @property
    def sign(self) -> str:
        """What stands beside the name of a module; nothing where all is well."""
        return "" if self is GRADES[0] else f"{self.bits}+" if self.bits else "<2"


GRADES = (
    _Grade(16, "a", "16 or more", "as in float32"),
    _Grade(10, "b", "10 to 16", "as of float16, rounded once"),
    _Grade(7, "c", "7 to 10", "as of bfloat16, rounded once"),
    _Grade(4, "d", "4 to 7", "as of E4M3, rounded once"),
    _Grade(2, "e", "2 to 4", "as of E5M2 and of 4 bits, rounded once"),
    _Grade(0, "f", "fewer than 2", "next to nothing is right"),
)
"""Grades, the best first: what holds other modules shows the worst of them."""


def errors_of_map(
    budgets: Mapping[tuple[str, ...], Mapping[str, BudgetRecord]], modules: Sequence[str]
) -> State:
    """Return error budgets, the newest last, as a map is sent: rows of letters, and what these stand for."""
    known = set(modules)
    others = dict.fromkeys(
        name for budget in budgets.values() for name in budget if name not in known
    )
    names = [*modules, *others]
    of_each = list(budgets.values())
    words = {grade.key: f"{grade.word} bits are right" for grade in GRADES}
    return {
        "sentence": " ".join([_HEAD, *map(_sentence, of_each)]),
        "columns": _columns([next(iter(budget.values())) for budget in of_each]),
        "modules": names,
        "rows": ["".join(_letter(budget.get(name)) for budget in of_each) for name in names],
        "codes": [
            {"letter": ".", "reason": NONE, "grade": 0, "words": "not in this budget"},
            *(
                {"letter": g.letter, "reason": g.key, "grade": 2, "words": words[g.key]}
                for g in GRADES
            ),
        ],
        "legend": [
            *({"key": g.key, "sign": g.sign, "word": g.word, "meaning": g.meaning} for g in GRADES),
            {
                "key": NONE,
                "sign": "",
                "word": "not in it",
                "meaning": f"it was not called, returned nothing of floating point, or is not among the {MAX_BUDGETED} least exact ones",
            },
        ],
        "details": {
            name: [_detail(budget.get(name)) for budget in of_each]
            for name in names
            if any(name in budget for budget in of_each)
        },
    }


_HEAD = (
    "Error budgets that were asked for: how many bits of what a module returned were right, beside"
    " float64."
)


def _letter(record: BudgetRecord | None) -> str:
    if record is None or math.isnan(record.total):
        return "."
    bits = right_bits(record.total)
    return next(grade.letter for grade in GRADES if bits >= grade.bits)


def _columns(records: Sequence[BudgetRecord]) -> list[str]:
    """Return what budgets are of, in as few words as tell them apart."""
    models = {record.model for record in records}
    autocasts = [record.autocast or "no autocast" for record in records]
    if len(models) == 1:
        return autocasts
    return [f"{r.model} {autocast}" for r, autocast in zip(records, autocasts, strict=True)]


def _sentence(budget: Mapping[str, BudgetRecord]) -> str:
    first = next(iter(budget.values()))
    model = f"{first.model} in " if first.model else ""
    of = f"{model}autocast to {first.autocast}" if first.autocast else f"{model}no autocast"
    off = "" if math.isnan(first.error) else f": the {first.target} is off by {first.error:.3g}"
    return f"Of step {number(first.step)}, {of}{off}."


def _detail(record: BudgetRecord | None) -> str | None:
    if record is None or math.isnan(record.total):
        return None
    text = f"{right_bits(record.total):.1f} in {record.dtype}"
    if math.isnan(record.contribution):
        return text
    return (
        f"{text}; its own error adds {record.contribution:+.3g} to the error of the {record.target}"
    )
