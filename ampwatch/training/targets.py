"""The objects that the user hands to ``monitor``, checked before anything is attached."""

from __future__ import annotations

import sys
from typing import Any

import torch
from msgspec import Struct
from torch import nn
from torch.optim import Optimizer

from ampwatch.errors import AttachError
from ampwatch.guard import Log
from ampwatch.training.model.scaler import check_scaler
from ampwatch.training.scalers.loss_scaler import LossScaler
from ampwatch.training.scalers.rows import Row, grad_scaler_in, living, row_of

logger = Log()


class Targets(Struct, frozen=True):
    """The objects to watch.

    Attributes:
        models: The models; may be empty.
        scaler: The scaler or ``None``.
        optimizers: The optimizers named by the user; may be empty.
        loss_scaler: The scaler that is not torch's, or ``None``.
    """

    models: tuple[nn.Module, ...]
    scaler: torch.amp.GradScaler | None
    optimizers: tuple[Optimizer, ...]
    loss_scaler: LossScaler | None = None


def check_targets(model: object, scaler: object, optimizer: object) -> Targets:
    """Return the objects to watch.

    An engine, a wrapper or an optimizer of a framework in `training/scalers/rows.py` is taken for the
    scaler that it has, wherever it was handed in; without any, the one that the program has made is.
    An Accelerator is taken for the models that it has prepared, and the scaler that it has.

    Args:
        model: An ``nn.Module``, a list of them, an ``accelerate.Accelerator``, or ``None``.
        scaler: A GradScaler, an object that holds one, a ``LossScaler``, or ``None``.
        optimizer: A ``torch.optim.Optimizer``, a list of them, or ``None``.

    Raises:
        AttachError: If one of them is something else, or all are ``None``.
    """
    if model is None and scaler is None and optimizer is None:
        msg = (
            "expected at least one of model, scaler and optimizer, got None for all of them; call"
            " ampwatch.monitor(model, scaler)"
        )
        raise AttachError(msg)
    foreign: list[tuple[Row, Any]] = []
    if _is_accelerator(model):
        model, scaler = _prepared(model, scaler)
    if not isinstance(model, (list, tuple)):
        model = _without_rows(model, foreign)
    if not isinstance(optimizer, (list, tuple)):
        optimizer = _without_rows(optimizer, foreign, is_model=False)
    models = _each(model, nn.Module, "model", "a torch.nn.Module")
    optimizers = _each(optimizer, Optimizer, "optimizer", "a torch.optim.Optimizer")
    checked, loss_scaler = _scalers(scaler, foreign)
    if scaler is None:
        if not foreign and models:
            foreign = list(living(models, has_optimizer=bool(optimizers)))
        loss_scaler = _made(*foreign[0]) if foreign else None
    if not models and foreign and foreign[0][0].model is not None:
        models = (foreign[0][0].model(foreign[0][1]),)
    return Targets(models, checked, tuple(_innermost(o) for o in optimizers), loss_scaler)


def _is_accelerator(thing: object) -> bool:
    # One that the program has not loaded cannot be it.
    kind = getattr(sys.modules.get("accelerate"), "Accelerator", None)
    return isinstance(kind, type) and isinstance(thing, kind)


def _prepared(accelerator: Any, scaler: object) -> tuple[Any, object]:
    """Return what an Accelerator has prepared, and its scaler where no other was handed in."""
    models = list(getattr(accelerator, "_models", ()))
    if not models:
        msg = (
            "expected an Accelerator that has prepared a model, got one that has prepared none; call"
            " ampwatch.monitor(accelerator) after accelerator.prepare(model, ...)"
        )
        raise AttachError(msg)
    if scaler is None:
        scaler = getattr(accelerator, "scaler", None)
    return models[0] if len(models) == 1 else models, scaler


def _without_rows(thing: object, foreign: list[tuple[Row, Any]], *, is_model: bool = True) -> Any:
    """Return what is watched of an argument, and note what of it is a row's."""
    row = row_of(thing)
    if row is None:
        return thing
    foreign.append((row, thing))
    return row.model(thing) if row.model is not None and is_model else None


def _scalers(
    given: object, foreign: list[tuple[Row, Any]]
) -> tuple[torch.amp.GradScaler | None, LossScaler | None]:
    """Return the GradScaler that was handed in, or the LossScaler."""
    if given is None or isinstance(given, torch.amp.GradScaler):
        return (None if given is None else check_scaler(given)), None
    if isinstance(given, LossScaler):
        return None, given
    row, inside = row_of(given), grad_scaler_in(given)
    if row is not None:
        foreign.insert(0, (row, given))
        return None, _made(row, given)
    return check_scaler(given if inside is None else inside), None


def _made(row: Row, instance: Any) -> LossScaler | None:
    """Return the protocol of a framework's object; of one that has changed, ``None``, and say so."""
    try:
        return row.scaler(instance)
    except AttachError as error:
        logger.warning("steps are watched as without a scaler: %s", error)
        return None


def _each(given: object, kind: type[Any], name: str, what: str) -> tuple[Any, ...]:
    if given is None:
        return ()
    # An nn.ModuleList is a module, not a list of them.
    several = given if isinstance(given, (list, tuple)) else (given,)
    wrong = next((x for x in several if not isinstance(x, kind)), None)
    if wrong is not None or not several:
        got = "an empty list" if wrong is None else _describe(wrong)
        msg = f"`{name}`: expected {what}, a list of them or None, got {got}"
        raise AttachError(msg)
    return tuple(several)


def _describe(thing: object) -> str:
    text = f"{type(thing).__module__}.{type(thing).__qualname__}"
    if isinstance(thing, torch.amp.GradScaler):
        return f"{text}; the order is ampwatch.monitor(model, scaler, optimizer=...)"
    return text


def _innermost(optimizer: Optimizer) -> Optimizer:
    # Wrappers (accelerate's, for one) derive from Optimizer and step the one inside.
    while isinstance(inside := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inside
    return optimizer
