"""What the laboratory offers to a program: ``ampwatch.lab.error_budget`` and ``ampwatch.lab.plan``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ampwatch.errors import CLOSED, SettingsError, StateError
from ampwatch.lab.budget import ErrorBudget
from ampwatch.lab.precision import planner
from ampwatch.lab.precision.planner import LIMIT_DB, MAX_FLUSHED
from ampwatch.lab.training.budgets import checked
from ampwatch.lab.training.part import Lab
from ampwatch.training.kernels.dtypes import unknown_formats
from ampwatch.wire.ring.requests import NO_LAB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch
    from torch import nn

    from ampwatch.lab.precision.plan import Plan
    from ampwatch.training.monitor import Monitor

NOT_READ = (
    "nothing is measured at this level, or on this device; at level standard or deep it is, where values"
    " can be read from the device: ampwatch.monitor(model, level='standard', lab=True)"
)


def error_budget(
    watch: Monitor,
    model: nn.Module | None = None,
    *,
    loss: Callable[[Any], Any] | None = None,
    dtype: torch.dtype | None = None,
) -> ErrorBudget:
    """Return how far each op and module is from the exact result, and where error appears and grows.

    Call it in the training loop between two iterations. docs/lab.md explains the numbers.

    Args:
        watch: The monitor, made with ``lab=True``.
        model: Which of several watched models; the one that was called last if not given.
        loss: ``f(output)`` that returns the loss, where the model does not return it itself.
        dtype: What the batch would be with autocast to this dtype; as it was trained if not given.

    Returns:
        The budget. Where there is none, its ``why_not`` says why, and what to do.

    Raises:
        StateError: If the monitor is closed.
        SettingsError: If the model is not watched, ``loss`` cannot be called, or ``dtype`` is not
            float16 or bfloat16.

    Cost:
        Five to fifteen steps, and some seven times the memory of the activations of a batch.
    """
    lab = _part(watch)
    if lab is None:
        return ErrorBudget(why_not=_why_none(watch))
    if watch.closed:
        raise StateError(CLOSED)
    if not (model is None or any(model is one for one in watch.models)):
        msg = f"expected `model` to be a watched one, got another {type(model).__name__}"
        raise SettingsError(msg)
    return lab.budgets.of(checked(model, loss, dtype))


def plan(
    watch: Monitor,
    *,
    limit: float = LIMIT_DB,
    max_flushed: float = MAX_FLUSHED,
    gpu: str | None = None,
    formats: Iterable[str] | None = None,
) -> Plan:
    """Return for each product of each layer the cheapest format whose loss stays under a limit.

    It rests on what was measured so far, and changes nothing. If the training leaves the newest plan, that
    is a finding, ``plan_left``. It can be called after ``close()``. docs/lab.md explains the numbers.

    Args:
        watch: The monitor, made with ``lab=True``.
        limit: Least signal-to-quantisation-noise ratio of a product. Unit: dB.
        max_flushed: Largest share of elements of an operand that may become zero.
        gpu: Name of a GPU, for its formats and peaks.
        formats: Names of the formats to choose from; those that libraries train with if not given.

    Returns:
        The plan: ``table()``, ``as_dict()``. Where there is none, its
        ``why_not`` says why, and what to do.

    Raises:
        SettingsError: If an argument makes no sense.

    Cost:
        Some 10 ms for a layer and phase.
    """
    made = planner.plan_of(watch.box(), planner.checked(limit, max_flushed, gpu, formats))
    lab = _part(watch)
    if lab is None:
        return replace(made, why_not=_why_none(watch))
    if not (made.why_not or watch.closed):
        lab.calls.follow(planner.records_of(made, max(watch.last_step.step, 0)))
    return replace(made, notes=(*made.notes, *unknown_formats(made.formats)))


def _part(watch: Monitor) -> Lab | None:
    return watch.part if isinstance(watch.part, Lab) else None


def _why_none(watch: Monitor) -> str:
    return NO_LAB if watch.settings.lab == "off" else NOT_READ
