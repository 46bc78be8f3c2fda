"""The objects that the user hands to ``monitor``, checked before anything is attached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ampwatch.errors import AttachError
from ampwatch.training.model.scaler import check_scaler


@dataclass(frozen=True, slots=True)
class Targets:
    """The objects to watch.

    Attributes:
        models: The models; may be empty.
        scaler: The scaler or ``None``.
        optimizers: The optimizers named by the user; may be empty.
    """

    models: tuple[nn.Module, ...]
    scaler: torch.amp.GradScaler | None
    optimizers: tuple[Optimizer, ...]


def check_targets(model: object, scaler: object, optimizer: object) -> Targets:
    """Return the objects to watch.

    Args:
        model: An ``nn.Module``, a list of them, or ``None``.
        scaler: A GradScaler or ``None``.
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
    models = _each(model, nn.Module, "model", "a torch.nn.Module")
    checked = None if scaler is None else check_scaler(scaler)
    optimizers = _each(optimizer, Optimizer, "optimizer", "a torch.optim.Optimizer")
    return Targets(models, checked, tuple(_innermost(o) for o in optimizers))


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
