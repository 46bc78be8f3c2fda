"""An error budget that a training was asked for, module by module."""

from __future__ import annotations

from msgspec import Struct

from ampwatch.wire.records.fields import Count

BY_PLAN = "plan"
"""What stands for the formats of a precision plan, where the name of a format may stand."""

MAX_BUDGETED = 512
"""Modules of a budget that the daemon gets, the least exact ones: a ring keeps some thousand records."""


class BudgetRecord(Struct, frozen=True):
    """How far what one module has returned is from the exact result, in one batch.

    Attributes:
        step: Iteration whose batch it is.
        place: Place of the module in the budget, from 0. Of a module at 0 a new budget begins.
        model: Qualified name of the model among the watched ones; empty if it is the only one.
        module: Qualified name of the module; empty for the root.
        dtype: Dtype of what it has returned.
        autocast: Dtypes of autocast, with commas between them; empty without it.
        layers_in: What products of layers were computed in: the name of a format, or ``plan``; empty for as
            they are trained.
        total: Relative error of what it has returned, as an L2 norm; NaN where it is not known.
        contribution: What is born in the module and its parts adds that much to the error of the target, to
            first order; NaN where it is not known.
        target: ``loss``, or ``output`` where the model does not return its loss.
        error: Error of the target; NaN where it is not known.
    """

    step: Count
    place: Count
    model: str
    module: str
    dtype: str
    autocast: str
    layers_in: str
    total: float
    contribution: float
    target: str
    error: float
