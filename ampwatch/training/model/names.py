"""Qualified names of parameters, buffers and modules."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor, nn
    from torch.optim import Optimizer


WRAPPER = "_orig_mod"
"""Name of a module within its ``OptimizedModule``."""


class Names:
    """Qualified names within the watched models, held weakly.

    With several models a name begins with the index of its model. A parameter that no
    watched model holds is called by its place in its optimizer.

    Args:
        models: The watched models.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self._models = tuple(weakref.ref(model) for model in models)
        self._of: dict[int, tuple[weakref.ref[Tensor], str]] = {}

    def of_optimizer(self, optimizer: Optimizer, index: int) -> list[tuple[str, Tensor]]:
        """Return name and tensor of each parameter of ``optimizer``, number ``index``.

        Cost: about 0.2 us a parameter; one walk over the models when a parameter is new.
        """
        parameters = parameters_of(optimizer)
        if not all(self._knows(p) for p in parameters):
            self._learn()
            for number, p in enumerate(parameters):
                if not self._knows(p):
                    self._of[id(p)] = weakref.ref(p), f"optimizer{index}.{number}"
        return [(self._of[id(p)][1], p) for p in parameters]

    def _knows(self, parameter: Tensor) -> bool:
        # An identity is given away again once its owner is freed: the reference proves whose it is.
        known = self._of.get(id(parameter))
        return known is not None and known[0]() is parameter

    def _learn(self) -> None:
        # Sharding and tying replace parameters after the model was made.
        self._of = {key: known for key, known in self._of.items() if known[0]() is not None}
        for name, parameter in self.parameters():
            self._of[id(parameter)] = weakref.ref(parameter), name

    def let_go(self) -> None:
        """Refer to no parameter until it is asked for again."""
        self._of.clear()

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield name and tensor of each parameter of the models."""
        for prefix, model in self._prefixed():
            for name, parameter in model.named_parameters():
                yield prefix + canonical(name), parameter

    def buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Yield name and tensor of each buffer of the models."""
        for prefix, model in self._prefixed():
            for name, buffer in model.named_buffers():
                yield prefix + canonical(name), buffer

    def leaf_modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield name and module of each module without children; parametrizations are none."""
        for prefix, model in self._prefixed():
            for name, module in model.named_modules():
                if all(child == "parametrizations" for child, _ in module.named_children()):
                    yield (prefix + canonical(name)).rstrip("."), module

    def modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield name and module of each module."""
        for prefix, model in self._prefixed():
            for name, module in model.named_modules():
                yield (prefix + canonical(name)).rstrip("."), module

    def models(self) -> Iterator[nn.Module]:
        """Yield the watched models that are still there."""
        yield from (model for _, model in self._prefixed())

    def _prefixed(self) -> Iterator[tuple[str, nn.Module]]:
        several = len(self._models) > 1
        for number, reference in enumerate(self._models):
            model = reference()
            if model is not None:
                yield (f"{number}." if several else "", model)


def canonical(name: str) -> str:
    """Return a qualified name without the modules that ``torch.compile`` has wrapped others in."""
    if WRAPPER not in name:
        return name
    return ".".join(part for part in name.split(".") if part != WRAPPER)


def parameters_of(optimizer: Optimizer) -> list[Any]:
    """Return the parameters of an optimizer."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def module_of(name: str) -> str:
    """Return the name of the module that holds the parameter or buffer ``name``."""
    return name.rpartition(".")[0]
