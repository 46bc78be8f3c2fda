"""Qualified names of parameters, buffers and modules."""

from __future__ import annotations

import re
import weakref
from typing import TYPE_CHECKING, Any, TypeVar

from torch import nn
from torch.jit import ScriptModule
from torch.nn.parameter import is_lazy

from ampwatch.guard import is_of_a_signal
from ampwatch.wire.blackbox.exception import words_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor
    from torch.optim import Optimizer

T = TypeVar("T")

WRAPPED = frozenset(
    {
        "_orig_mod",  # torch.compile
        "_fsdp_wrapped_module",  # FullyShardedDataParallel, also fairscale's
        "_fpw_module",  # fairscale's FlattenParamsWrapper
        "_checkpoint_wrapped_module",  # CheckpointWrapper and OffloadWrapper
        "_forward_module",  # Lightning Fabric
    }
)
"""Names that a module has within a wrapper, and that nobody gives to a part of a model."""

MODULE = "module"
"""Name of a module within a wrapper of ``PARALLEL``, and of many a part of a model."""

PARALLEL = frozenset(
    {
        "DistributedDataParallel",  # PyTorch's, apex's and Megatron's
        "DataParallel",
        "DeepSpeedEngine",
        "Float16Module",  # Megatron's
    }
)
"""Names of the classes, or of a base of theirs, whose ``module`` is what they wrap.

``AveragedModel`` is none: what it holds is a copy, and with its own parameters a part of a model."""


_MAY_BE_WRAPPED = re.compile(rf"(?:^|\.)(?:{'|'.join((MODULE, *sorted(WRAPPED)))})(?:\.|$)")


class Names:
    """Qualified names within the watched models, held weakly.

    With several models a name begins with the index of its model. A parameter that no
    watched model holds is called by its place in its optimizer.

    Attributes:
        unread: Sentences about the modules that could not be read, by their names.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self._models = tuple(weakref.ref(model) for model in models)
        self._of: dict[int, tuple[weakref.ref[Tensor], str]] = {}
        self.unread: dict[str, str] = {}

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
                yield prefix + canonical(name, model), parameter

    def buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Yield name and tensor of each buffer of the models; a lazy module has none yet."""
        for prefix, model in self._prefixed():
            for name, buffer in model.named_buffers():
                if not is_lazy(buffer):
                    yield prefix + canonical(name, model), buffer

    def leaf_modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield name and module of each module without children; parametrizations are none.

        A module of TorchScript counts as one of them: Python does not call those in it.
        """
        for name, module in self.modules():
            children = (child for child, _ in module.named_children())
            if isinstance(module, ScriptModule) or all(c == "parametrizations" for c in children):
                yield name, module

    def scripted(self) -> list[str]:
        """Return the names of the modules of TorchScript that hold others."""
        names: list[str] = []
        for name, module in self.modules():
            is_outer = not any(name.startswith(f"{outer}.".lstrip(".")) for outer in names)
            if (
                is_outer
                and isinstance(module, ScriptModule)
                and any(True for _ in module.children())
            ):
                names.append(name)
        return names

    def modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield name and module of each module."""
        for prefix, model in self._prefixed():
            for name, module in model.named_modules():
                yield (prefix + canonical(name, model)).rstrip("."), module

    def read(self, name: str, read: Callable[..., T], module: nn.Module, *rest: Any) -> T | None:
        """Return ``read(module, *rest)``; ``None``, and a sentence in ``unread``, where it raises.

        Attributes of a module may be code of the user's, which raises what it likes.
        """
        try:
            return read(module, *rest)
        except Exception as error:
            if is_of_a_signal(error):
                raise
            kind, why = type(module).__name__, words_of(error)
            self.unread[name] = f"module {name} ({kind}) is not watched as a layer: {why}"
            return None

    def canonical(self, name: str) -> str:
        """Return the name that stands for ``name`` here, wherever wrappers are part of it or not."""
        for prefix, model in self._prefixed():
            if name.startswith(prefix):
                return prefix + canonical(name[len(prefix) :], model)
        return canonical(name)

    def models(self) -> Iterator[nn.Module]:
        """Yield the watched models that are still there."""
        yield from (model for _, model in self._prefixed())

    def _prefixed(self) -> Iterator[tuple[str, nn.Module]]:
        several = len(self._models) > 1
        for number, reference in enumerate(self._models):
            model = reference()
            if model is not None:
                yield (f"{number}." if several else "", model)


def canonical(name: str, model: nn.Module | None = None) -> str:
    """Return a qualified name as the ``state_dict`` of the bare model has it, without wrappers.

    Args:
        name: The name of a module, a parameter or a buffer of ``model``.
        model: The module that the name is relative to. Without it ``module`` stays in the name, for
            only the class of its owner says whether it is a wrapper's.

    Cost: 0.2 us; some 0.2 us more for each part of a name in which something is left out.
    """
    if _MAY_BE_WRAPPED.search(name):
        kept = []
        owner = model
        for part in name.split("."):
            if part not in WRAPPED and not (part == MODULE and _is_parallel(owner)):
                kept.append(part)
            owner = None if owner is None else _part(owner, part)
        name = ".".join(kept)
    # A lone surrogate, as of a file name that is no UTF-8, can be neither written nor printed.
    return name if name.isascii() else name.encode(errors="backslashreplace").decode()


def _part(owner: nn.Module, name: str) -> nn.Module | None:
    try:
        return owner.get_submodule(name)
    except AttributeError:
        return None  # a parameter, or a class of the user's that gives names of its own


def _is_parallel(owner: nn.Module | None) -> bool:
    return any(kind.__name__ in PARALLEL for kind in type(owner).__mro__)


def parameters_of(owner: Optimizer | nn.Module) -> list[Any]:
    """Return the parameters of an optimizer, or of a module."""
    if isinstance(owner, nn.Module):
        return list(owner.parameters())
    return [p for group in owner.param_groups for p in group["params"]]


def own_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that a module holds itself, without computing a parametrization."""
    return dict(module.named_parameters(recurse=False, remove_duplicate=False))


def module_of(name: str) -> str:
    """Return the name of the module that holds the parameter or buffer ``name``."""
    return name.rpartition(".")[0]
