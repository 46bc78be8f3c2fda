"""Error budgets: the newest call of a model made again on a replica, with float64 beside each op."""

from __future__ import annotations

import sys
from dataclasses import replace
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils.checkpoint import set_checkpoint_early_stop

from ampwatch.errors import SettingsError
from ampwatch.guard import Account, is_of_a_signal
from ampwatch.lab.budget import ErrorBudget, to_json
from ampwatch.lab.budget import records_of as errors_of
from ampwatch.lab.training.error_log import ErrorLog
from ampwatch.training.hooks.roots import unwrapped
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.kernels.dtypes import HALF, name_of
from ampwatch.training.private import graph_task
from ampwatch.training.replay.kept_calls import ReplayRefusedError
from ampwatch.training.replay.replay import Replay, prefix_of
from ampwatch.wire.ring.requests import ERRORS

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from ampwatch.guard import Guard
    from ampwatch.training.hooks.events import Requested
    from ampwatch.training.iteration.context import Context
    from ampwatch.training.replay.kept_calls import KeptCall
    from ampwatch.training.replay.sensor import ReplaySensor

OUTPUT_ALONE = (
    "the model does not return its loss, so errors are weighed by what they do to its output and"
    " there is no backward; error_budget(loss=f) takes f(output) for the loss"
)

OF_COMPILED = (
    "compiled code runs, and the budget is that of the same model run eagerly: what is compiled keeps"
    " more of what it computes in float32"
)


class Asked(NamedTuple):
    """What a budget is asked for."""

    model: nn.Module | None = None  # the model, ``None`` for the one that was called last
    # returns the loss for what the model returns; ``None`` if the model does that itself
    loss: Callable[[Any], Any] | None = None
    # what autocast casts to instead of what it was; ``None`` for the batch as it was trained
    dtype: torch.dtype | None = None


def checked(model: nn.Module | None, loss: object, dtype: object) -> Asked:
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
    return Asked(model, loss, dtype)


class Budgets(Sensor):
    """Answers who asks for the error budget of the newest call of a model."""

    name = "error_budget"

    def __init__(self, context: Context, replays: ReplaySensor) -> None:
        self._context = context
        self._replays = replays
        self._calls = replays.calls
        # An account of its own: as a debt it would end all sampling.
        account = Account(context.bus.account.modes)
        self.guard: Guard = context.bus.guard(self.name, account=account)

    def of(self, asked: Asked) -> ErrorBudget:
        """Return the budget, or why there is none. Never raises."""
        budget = self.guard.run(self._budget, asked)
        return budget or ErrorBudget(why_not="it has failed, as the log says")

    def requested(self, event: Requested) -> None:
        """Write a budget to a file, for who asks from outside."""
        request = event.request
        if request.what != ERRORS:
            return
        budget = self._budget(Asked())
        why_not = budget.why_not
        if not why_not:
            try:
                request.path.write_text(to_json(budget))
            except OSError as error:
                if is_of_a_signal(error):
                    raise
                why_not = f"it could not be written: {error}"
        event.answer(why_not)

    def _budget(self, asked: Asked) -> ErrorBudget:
        """Return the budget, or why there is none; the daemon gets it as well."""
        budget = self._newest(asked)
        self._context.out.put(*errors_of(budget))
        return budget

    def _newest(self, asked: Asked) -> ErrorBudget:
        if self._context.iteration.thread not in (0, get_ident()):
            return ErrorBudget(why_not="another thread trains; ask in that one")
        found = self._calls.newest.of(None if asked.model is None else unwrapped(asked.model))
        step = -1 if found is None else found[0]
        why_not = self._why_none(found)
        if found is None or why_not:
            return ErrorBudget(step=step, why_not=why_not)
        try:
            budget = self._of_call(found[1], step, asked)
        except ReplayRefusedError as refusal:
            return ErrorBudget(step=step, why_not=f"the batch cannot be run again: {refusal}")
        except (torch.OutOfMemoryError, MemoryError):
            why_not = "there was no memory for it; a smaller batch needs less"
            return ErrorBudget(step=step, why_not=why_not)
        if not self._context.bus.runs_compiled:
            return budget
        return replace(budget, notes=(*budget.notes, OF_COMPILED))

    def _of_call(self, call: KeptCall, step: int, asked: Asked) -> ErrorBudget:
        """Return the budget of a call, with the parameters of now.

        Raises:
            ReplayRefusedError: If the call cannot be made again, saying why.
            torch.OutOfMemoryError: If there is no memory for it.

        Cost: see ``ErrorLog``.
        """
        scaler = self._context.scaler
        scale = scaler.get_scale() if scaler is not None and scaler.is_enabled() else 1.0
        prefix = prefix_of(call.model, self._context.names)
        log = ErrorLog(asked.loss)
        # Whoever asks for a budget has memory for it, or is informed.
        replay = Replay(call, prefix, sys.maxsize, beside=log, dtype=asked.dtype)
        try:
            # A forward that checkpointing repeats, whole: it is the ops of that one whose operands
            # backward has.
            with set_checkpoint_early_stop(False):
                replay.run(lambda _call, _place: None, scale)
            rows = log.rows()
            known = [row.contribution for row in rows if row.contribution is not None]
            notes = [] if log.target.target == "loss" else [OUTPUT_ALONE]
            notes += log.notes
            trained = [region.dtype for region in call.autocast]
            dtypes = trained if asked.dtype is None else [asked.dtype]
            return ErrorBudget(
                model=prefix.rstrip("."),
                step=step,
                formats=tuple(dict.fromkeys(map(name_of, dtypes))),
                **log.target._asdict(),
                explained=sum(known) if known else None,
                rows=tuple(rows),
                modules=tuple(log.module_rows()),
                notes=tuple(notes),
            )
        finally:
            log.forget()

    def _why_none(self, found: tuple[int, KeptCall] | None) -> str:
        if graph_task() != -1:
            return "backward is running; ask between two iterations"
        if self._context.settings.replay == "off":
            return 'calls are not kept with the setting replay="off"; leave it as it is by default'
        if found is None:
            return self._replays.why_not or self._calls.newest.why_none
        if not self._calls.random.knows(found[1].draws):
            return "the random numbers of the batch are not known any more; ask right after a step"
        return ""
