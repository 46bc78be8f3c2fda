"""Error budgets: the newest call of a model made again on a twin, with float64 beside each op."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils.checkpoint import set_checkpoint_early_stop

from ampwatch.diagnosis.evidence.plans import PlanMade, plan_made
from ampwatch.errors import SettingsError
from ampwatch.report.error_budget import ErrorBudget
from ampwatch.report.plan import Plan
from ampwatch.report.planner import format_named, records_of
from ampwatch.report.words import plural
from ampwatch.training.kernels.dtypes import HALF
from ampwatch.training.model.dtypes import name_of
from ampwatch.training.sensors.births.cast_layers import CastLayers, LayerFormats
from ampwatch.training.sensors.births.error_log import ErrorLog
from ampwatch.training.sensors.births.exact_ops import Apart
from ampwatch.training.sensors.births.replay import Replay
from ampwatch.wire.records import BY_PLAN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

    from ampwatch.training.sensors.births.kept_calls import KeptCall

OUTPUT_ALONE = (
    "the model does not return its loss, so errors are weighed by what they do to its output and"
    " there is no backward; error_budget(loss=f) takes f(output) for the loss"
)

OF_COMPILED = (
    "compiled code runs, and the budget is that of the same model run eagerly: what is compiled keeps"
    " more of what it computes in float32"
)

NO_PLAN = "no plan was asked for yet; the newest one of watch.plan() or `ampwatch plan` is kept"

NO_FORWARD = (
    "no forward of a watched model that records gradients was seen yet; ask again after a step"
)


class Asked(NamedTuple):
    """What a budget is asked for.

    Attributes:
        model: The model, ``None`` for the one that was called last.
        loss: Returns the loss for what the model returns; ``None`` if the model does that itself.
        dtype: What autocast casts to instead of what it was; ``None`` for the batch as it was trained.
        layers_in: What the products of layers are computed in instead; ``None`` for as they were.
    """

    model: nn.Module | None = None
    loss: Callable[[Any], Any] | None = None
    dtype: torch.dtype | None = None
    layers_in: LayerFormats | None = None


def checked(model: nn.Module | None, loss: object, dtype: object, layers_in: object) -> Asked:
    """Return what the user asks for.

    Raises:
        SettingsError: If it makes no sense.
    """
    if not (loss is None or callable(loss)):
        msg = f"expected `loss` to be a function of what the model returns, got {loss!r:.80}"
        raise SettingsError(msg)
    if not (dtype is None or (isinstance(dtype, torch.dtype) and dtype in HALF)):
        msg = f"expected `dtype` to be torch.float16 or torch.bfloat16, got {dtype!r:.80}"
        raise SettingsError(msg)
    if isinstance(layers_in, Plan):
        if layers_in.why_not:
            msg = (
                f"expected `layers_in` to be a plan of layers, got one without: {layers_in.why_not}"
            )
            raise SettingsError(msg)
        return Asked(model, loss, dtype, by_plan(plan_made(records_of(layers_in, 0))))
    if layers_in is not None and not isinstance(layers_in, str):
        msg = f"expected `layers_in` to be the name of a format or a plan, got {layers_in!r:.80}"
        raise SettingsError(msg)
    return Asked(model, loss, dtype, all_in(layers_in) if layers_in is not None else None)


def all_in(name: str) -> LayerFormats:
    """Return that every product of a layer is computed in the format of that name.

    Raises:
        SettingsError: If there is no such format.
    """
    return LayerFormats(name, format_named(name))


def by_plan(plan: PlanMade) -> LayerFormats:
    """Return that the products of layers are computed in the formats of a plan."""
    return LayerFormats(BY_PLAN, products=plan.products)


class NewestCalls:
    """Keeps the newest call of each model, with its step, for a budget that may be asked for.

    What it keeps of a batch is freed when the model is called again.
    """

    def __init__(self) -> None:
        self._calls: dict[int, tuple[int, KeptCall]] = {}
        self.why_none = NO_FORWARD

    def keep(self, step: int, call: KeptCall, model: nn.Module) -> None:
        """Keep a call, and let go of the one before."""
        for key, (_, older) in list(self._calls.items()):
            if older.is_orphan:
                del self._calls[key]
        # In the place of the newest: a dictionary keeps the order in which keys came.
        self._calls.pop(id(model), None)
        self._calls[id(model)] = step, call

    def let_go(self, why: str = NO_FORWARD) -> None:
        """Keep none of them, for a reason in words."""
        self._calls.clear()
        self.why_none = why

    def __iter__(self) -> Iterator[KeptCall]:
        """Iterate over the calls."""
        return iter([call for _, call in self._calls.values()])

    def of(self, model: nn.Module | None) -> tuple[int, KeptCall] | None:
        """Return step and call of a model, of the one that was called last where none is named."""
        if model is not None:
            return self._calls.get(id(model))
        return next(reversed(list(self._calls.values())), None)


def budget_of(
    call: KeptCall,
    *,
    step: int,
    prefix: str,
    scale: float,
    asked: Asked,
) -> ErrorBudget:
    """Return the error budget of a call.

    Args:
        call: The call. Parameters are those of now.
        step: Its iteration.
        prefix: Of the model's name among the watched ones.
        scale: What the loss is multiplied by before backward.
        asked: What is asked for.

    Raises:
        ReplayRefusedError: If the call cannot be made again, saying why.
        torch.OutOfMemoryError: If there is no memory for it.

    Cost: see ``ErrorLog``.
    """
    apart = Apart()
    formats = asked.layers_in
    casts = None if formats is None else CastLayers(formats.of(call.model, prefix), apart)
    log = ErrorLog(apart, asked.loss, casts)
    # Whoever asks for a budget has memory for it, or is told.
    replay = Replay(call, prefix, sys.maxsize, beside=log, dtype=asked.dtype)
    try:
        # A forward that checkpointing repeats, whole: it is the ops of that one whose operands backward has.
        with set_checkpoint_early_stop(False):
            replay.run(lambda _call, _place: None, scale)
        target = log.target
        rows = log.rows()
        dtypes = (
            [region.dtype for region in call.autocast] if asked.dtype is None else [asked.dtype]
        )
        notes = list(log.notes)
        if target is None or target.name != "loss":
            notes.insert(0, OUTPUT_ALONE)
        if casts is not None:
            notes += _not_cast(casts, log.called)
        known = [row.contribution for row in rows if row.contribution is not None]
        return ErrorBudget(
            model=prefix.rstrip("."),
            step=step,
            formats=tuple(dict.fromkeys(map(name_of, dtypes))),
            layers_in="" if formats is None else formats.name,
            target="output" if target is None else target.name,
            value=None if target is None else target.value,
            exact=None if target is None else target.exact,
            error=None if target is None else target.error,
            explained=sum(known) if known else None,
            rows=tuple(rows),
            modules=tuple(log.module_rows()),
            notes=tuple(notes),
        )
    finally:
        log.forget()


def _not_cast(casts: CastLayers, called: set[str]) -> Iterator[str]:
    """Yield, in sentences, which layers were computed as they are trained."""
    left = casts.modules - casts.seen
    if not casts.modules:
        yield "there is no linear or convolutional layer, and nothing was cast"
    for names, why in (
        (left & called, "multiplied in ops of their own, or in none"),
        (left - called, "were not called as modules, as the parts of MultiheadAttention are not"),
    ):
        if names:
            named = ", ".join(sorted(names)[:3]) + (" and others" if len(names) > 3 else "")
            layers = f"{plural(len(names), 'layer')} of {len(casts.modules)}"
            yield f"{layers} stayed as trained: they {why} ({named})"
