"""What a tape says once: versions, flags, the model and its optimizers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ampwatch.lab.tape.rows import VERSION, TapeHead, TapeModule
from ampwatch.training.kernels.admission import whole_part
from ampwatch.training.model.facts import run_facts
from ampwatch.training.model.tensors import is_in_flat

if TYPE_CHECKING:
    from torch import nn

    from ampwatch.training.iteration.context import Context
    from ampwatch.wire.records import RunIdentity

MAX_OPTIONS = 32
MAX_TEXT = 80
_PLAIN = (bool, int, float, str, tuple)


def head_of(context: Context, identity: RunIdentity) -> TapeHead:
    """Return the head of a tape. Runs no code of the user's: attributes are read where they lie."""
    settings = context.settings
    found = run_facts(context.scaler, context.autocast_dtypes, context.home.device)
    facts = {name: str(value) for name, value in found.items()}  # a version is a class of its own
    facts["threads"] = str(torch.get_num_threads())
    facts["deterministic"] = str(torch.are_deterministic_algorithms_enabled())
    modules = [
        TapeModule(name, type(module).__qualname__[:MAX_TEXT], _options(module))
        for name, module in context.names.modules()
    ]
    divided = [n for n, p in context.names.parameters() if whole_part(p) is None or is_in_flat(p)]
    optimizers = [_of_optimizer(optimizer) for optimizer in context.trained.met.values()]
    return TapeHead(
        version=VERSION,
        run=identity.run,
        rank=identity.rank,
        world_size=identity.world_size,
        started_ns=identity.started_ns,
        ampwatch=identity.version,
        first=settings.record_first,
        every=settings.record_every,
        facts=facts,
        modules=modules,
        optimizers=[known for known in optimizers if known],
        divided=divided,
    )


def _options(module: nn.Module) -> dict[str, str]:
    named = {name: value for name, value in vars(module).items() if _is_option(name, value)}
    return {
        name[:MAX_TEXT]: repr(value)[:MAX_TEXT] for name, value in list(named.items())[:MAX_OPTIONS]
    }


def _is_option(name: str, value: object) -> bool:
    """Whether an attribute is a number, a flag, a word, or a tuple of them; no object of the user's."""
    if name.startswith("_") or name == "training" or type(value) not in _PLAIN:
        return False
    return not isinstance(value, tuple) or all(type(part) in _PLAIN[:-1] for part in value)


def _of_optimizer(reference: Any) -> dict[str, str]:
    optimizer = reference() if callable(reference) else reference
    if optimizer is None:
        return {}
    known = {"class": type(optimizer).__qualname__[:MAX_TEXT]}
    for number, group in enumerate(optimizer.param_groups[:MAX_OPTIONS]):
        for name, value in group.items():
            if name != "params" and _is_option(str(name), value):
                known[f"group{number}.{name}"] = repr(value)[:MAX_TEXT]
    return known
