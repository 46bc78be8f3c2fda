"""What a place is, and what is placed outside of the bus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from torch.nn.modules import module as module_state
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ampwatch.training.private import FORWARD_HOOKS

if TYPE_CHECKING:
    from collections.abc import Callable

REPLACED = "replaced method"
FUNCTION = "replaced function"
HOOK = "PyTorch's hook"


class Handle(Protocol):
    """Takes something off."""

    def remove(self) -> None:
        """Take it off. Idempotent."""


@dataclass(frozen=True)
class Place:
    """Something of torch that is replaced or hooked while a sensor wants to know of it.

    Attributes:
        what: The callable, as users know it.
        how: ``REPLACED``, ``FUNCTION`` or ``HOOK``.
        events: What sensors are notified of.
        put_on: Puts it on for a ``Bus``, and adds what takes it off to a list.
        when: When it is there, in words for the documentation.
        of_scaler: Whether it depends on which scaler is watched.
    """

    what: str
    how: str
    events: tuple[type, ...]
    put_on: Callable[[Any, list[Any]], None]
    when: str = "always"
    of_scaler: bool = False


# What is placed outside of the bus, by those who plant faults or have an end of their own.


def before_any_forward(call: Callable[..., None]) -> Handle:
    """Have ``call(module, args)`` called before every forward of every module."""
    return register_module_forward_pre_hook(call)


def after_any_forward_first(call: Callable[..., Any]) -> Handle:
    """Have ``call(module, args, output)`` called after every forward, ahead of all other hooks.

    What it returns, unless ``None``, is the output from there on.
    """
    handle = register_module_forward_hook(call)
    hooks: Any = getattr(module_state, FORWARD_HOOKS, {})
    if handle.id in hooks:
        hooks.move_to_end(handle.id, last=False)
    return handle


def before_any_step(call: Callable[..., None]) -> Handle:
    """Have ``call(optimizer, args, kwargs)`` called before every step of every optimizer."""
    return register_optimizer_step_pre_hook(call)


def before_node(node: Any, call: Callable[..., Any]) -> Handle:
    """Have ``call(gradients)`` called before a node of a graph runs in backward."""
    handle: Handle = node.register_prehook(call)
    return handle
