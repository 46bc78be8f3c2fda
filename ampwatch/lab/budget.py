"""The error budget of a model: how far each op and each module is from the exact result, and why.

Plain numbers only: a training makes a budget, and a terminal, a program or another process reads it.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from typing import Any

import msgspec

from ampwatch.numerics.written import without_nonfinite
from ampwatch.wire.records import MAX_BUDGETED, BudgetRecord

MAX_BITS = 53.0
"""Bits of float64, which stands for the exact result: nothing can be seen to be closer."""

LINES = 10
"""Ops, and modules, that a table shows."""

LONGEST_NAME = 44
"""Characters of a module's name in a table. The middle of a longer one is left out."""


def right_bits(error: float) -> float:
    """Return how many bits are right of what is off by a relative error; 0 for a NaN."""
    if math.isnan(error) or error >= 1.0:
        return 0.0
    return MAX_BITS if error < 2.0**-MAX_BITS else -math.log2(error)


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """The error of one op of a module, or of what a module returns, over all its calls in one batch.

    Errors are relative, as L2 norms over all elements. A number that is not finite is infinite, and
    one that is not known is ``None``.

    Attributes:
        module: Qualified name of the module; empty for the root.
        op: Name of the ATen op; empty where the row is of the module.
        phase: ``forward`` or ``backward``.
        dtype: Dtype of what it returned.
        calls: Calls in this batch.
        total: How far its result is from the exact one: what has come in, and what it has added.
        born: What it has added itself: its result beside that in float64 of the very same inputs.
        propagated: What has come in with its inputs.
        amplification: ``propagated`` over the largest relative error among its inputs, of the call
            in which that is largest; of a module ``total`` over that. ``None`` for exact inputs.
        contribution: What originates here adds that much to the error of the target, to first order.
            In the unit of the target, with its sign.
        weight: How much it matters: the larger one of the size of the contribution and of what it
            would be if each rounding had a sign of its own. Rows are ordered by it.
    """

    module: str
    op: str
    phase: str
    dtype: str
    calls: int
    total: float | None
    born: float | None
    propagated: float | None
    amplification: float | None
    contribution: float | None
    weight: float | None

    @property
    def bits(self) -> float:
        """Bits of the result that are right: 24 at most where it is float32, 11 float16, 8 bfloat16."""
        return 0.0 if self.total is None else right_bits(self.total)


@dataclass(frozen=True, slots=True)
class ErrorBudget:
    """Where the error of one batch originates, where it is amplified, and what it does to the loss.

    Attributes:
        model: Qualified name of the model among the watched ones; empty if it is the only one.
        step: Iteration whose batch it is.
        formats: Dtypes of autocast, none without it.
        target: What contributions add up to: the error of the ``loss``, or where the model returns
            none, the L2 norm of the error of its ``output``.
        value: The loss as trained, or the norm of the output.
        exact: The same in float64.
        error: The error of the target: of the loss with its sign, of the output its norm.
        explained: Sum of all contributions.
        rows: The ops, those that matter most first.
        modules: The modules in the order in which they return.
        notes: In sentences, what was not measured, or otherwise than it is trained.
        why_not: Why there is no budget, and what to do; empty if there is one.
    """

    model: str = ""
    step: int = -1
    formats: tuple[str, ...] = ()
    target: str = "loss"
    value: float | None = None
    exact: float | None = None
    error: float | None = None
    explained: float | None = None
    rows: tuple[ErrorRow, ...] = ()
    modules: tuple[ErrorRow, ...] = ()
    notes: tuple[str, ...] = ()
    why_not: str = ""

    def table(self, lines: int = LINES) -> str:
        """Return the budget for a terminal, in ASCII.

        Args:
            lines: Ops of forward, ops of backward and modules that are shown at most.
        """
        if self.why_not:
            return f"No error budget: {self.why_not}\n"
        text = [*_head(self), ""]
        for phase in ("forward", "backward"):
            rows = [row for row in self.rows if row.phase == phase]
            if rows:
                title = f"Errors of ops in {phase}, the largest effect first"
                text += [*_lines(f"{title} ({_shown(rows, lines)}):", rows[:lines]), ""]
        worst = sorted(self.modules, key=lambda row: -_known(row.total))
        if worst:
            title = f"Modules, the least exact first ({_shown(worst, lines)}):"
            text += [*_lines(title, worst[:lines]), ""]
        text += [f"Note: {note}." for note in self.notes]
        return "\n".join(text).encode("ascii", "replace").decode().rstrip("\n") + "\n"

    __str__ = table

    def as_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can hold: what is not finite is a word, ``"infinity"`` or ``"NaN"``."""
        content: dict[str, Any] = without_nonfinite(asdict(self))
        for rows, listed in ((self.rows, "rows"), (self.modules, "modules")):
            for row, made in zip(rows, content[listed], strict=True):
                made["bits"] = row.bits
        return content


def to_json(budget: ErrorBudget) -> str:
    """Return a budget as JSON, for programs and for another process."""
    return json.dumps(budget.as_dict(), indent=1) + "\n"


def records_of(budget: ErrorBudget) -> list[BudgetRecord]:
    """Return what a budget says of modules, for the daemon; nothing where there is none.

    Of more modules than ``MAX_BUDGETED`` the least exact ones, in the order in which they return.
    """
    worst = sorted(budget.modules, key=lambda row: -_known(row.total))[:MAX_BUDGETED]
    sent = {row.module for row in worst}
    modules = [row for row in budget.modules if row.module in sent]
    return [
        BudgetRecord(
            step=max(budget.step, 0),
            place=place,
            model=budget.model,
            module=row.module,
            dtype=row.dtype,
            autocast=", ".join(budget.formats),
            total=math.nan if row.total is None else row.total,
            contribution=math.nan if row.contribution is None else row.contribution,
            target=budget.target,
            error=math.nan if budget.error is None else budget.error,
        )
        for place, row in enumerate(modules)
    ]


def from_dict(content: object) -> ErrorBudget:
    """Return the budget that ``as_dict`` has made plain.

    Raises:
        ValueError: If it is none.
    """
    names = {field.name for field in fields(ErrorBudget)}
    # These words are printed on a terminal, where escape sequences act.
    # Of what else there is, as of another release, nothing is read.
    known = {k: content[k] for k in names & content.keys()} if isinstance(content, dict) else {}
    if known.keys() != names or not _is_printable(known):
        msg = f"expected an error budget of printable words, got {content!r:.80}"
        raise ValueError(msg)
    try:
        # Not strict: what is not finite is a word.
        return msgspec.convert(known, ErrorBudget, strict=False)
    except msgspec.ValidationError as error:
        msg = f"expected an error budget, got another object: {error}"
        raise ValueError(msg) from None


def _is_printable(value: object) -> bool:
    todo = [value]
    for each in todo:  # no recursion: it may be nested deeply
        if isinstance(each, (dict, list)):
            todo += each.values() if isinstance(each, dict) else each
    return all(each.isprintable() for each in todo if isinstance(each, str))


def _head(budget: ErrorBudget) -> list[str]:
    of = f" of {budget.model}" if budget.model else ""
    formats = f"autocast to {', '.join(budget.formats)}" if budget.formats else "without autocast"
    lines = [f"Error budget{of} for the batch of step {budget.step}, {formats}."]
    value, exact = (_written(x, digits=9) for x in (budget.value, budget.exact))
    error = _written(budget.error)
    if budget.target == "loss":
        lines.append(f"The loss is {value}; in float64 it is {exact}: an error of {error}.")
    else:
        lines.append(f"The error of the output has the norm {error}; the output has {exact}.")
    lines.append(f"The errors of ops (column `adds`) add up to {_written(budget.explained)} of it.")
    return lines


_HEADS = ("module", "op", "dtype", "right bits", "total", "own", "amplified", "adds")


def _lines(title: str, rows: list[ErrorRow]) -> list[str]:
    cells = [_HEADS, *(_cells(row) for row in rows)]
    # A column that says nothing here, as the op of a module, is left out.
    used = [i for i in range(len(_HEADS)) if any(line[i] not in ("", "-") for line in cells[1:])]
    widths = {i: max(len(line[i]) for line in cells) for i in used}
    text = [title]
    for line in cells:
        padded = [line[i].ljust(widths[i]) if i < 3 else line[i].rjust(widths[i]) for i in used]
        text.append("  " + "  ".join(padded).rstrip())
    return text


def _cells(row: ErrorRow) -> tuple[str, ...]:
    grown, added = row.amplification, row.contribution
    return (
        _cut(row.module or "(root)"),
        row.op,
        row.dtype,
        f"{row.bits:.1f}",
        _written(row.total),
        _written(row.born),
        "-" if grown is None else f"x{grown:.3g}",
        "-" if added is None else ("" if added < 0 else "+") + _written(added),
    )


def _shown(rows: list[ErrorRow], lines: int) -> str:
    return f"{min(lines, len(rows))} of {len(rows)}"


def _cut(name: str) -> str:
    if len(name) <= LONGEST_NAME:
        return name
    half = (LONGEST_NAME - 2) // 2
    return f"{name[:half]}..{name[-half:]}"


def _written(value: float | None, digits: int = 3) -> str:
    if value is None:
        return "-"
    if math.isnan(value):
        return "NaN"
    return (
        f"{value:.{digits}g}" if math.isfinite(value) else "infinity" if value > 0 else "-infinity"
    )


def _known(value: float | None) -> float:
    return -1.0 if value is None else math.inf if math.isnan(value) else value
