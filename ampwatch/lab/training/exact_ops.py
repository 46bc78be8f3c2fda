"""Ops of a replay run once more in float64, and the exact value of each tensor."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ampwatch.training.devices import autocast_key, autocast_types
from ampwatch.training.kernels.admission import is_dense
from ampwatch.training.model.tensors import all_tensors_in
from ampwatch.training.ops.storage import WeakStorage
from ampwatch.training.private import (
    DispatchKey,
    DispatchKeySet,
    ForcedKeys,
    attention_in_float64,
    excluded_keys,
    included_keys,
    schema_of,
    storage_key,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from ampwatch.training.ops.call import OpCall

EXACT = torch.float64
"""The format that stands for the exact result."""

SWEEP = 256
"""Tensors that are taken in between two looks for those whose memory is gone."""

FUSED_ATTENTION = "_scaled_dot_product_"
"""How the names of fused attention begin, of which some have kernels for halves alone."""


class Apart:
    """Runs what is in the block as if no dispatch mode and no autocast were there.

    Autograd is: whether it records is for the block to say.
    """

    def __init__(self) -> None:
        included, excluded = included_keys(), excluded_keys()
        # Those of modes: one of ampwatch, that sees the ops of an iteration, may be on.
        for key in (DispatchKey.Python, DispatchKey.PythonTLSSnapshot):
            included = included - DispatchKeySet(key)
            excluded = excluded | DispatchKeySet(key)
        for kind in autocast_types():
            excluded = excluded | DispatchKeySet(autocast_key(kind))
        self._included, self._excluded = included, excluded

    @contextmanager
    def __call__(self, *, records: bool = False) -> Iterator[None]:
        """Run a block; ``records`` is whether autograd records a graph of it."""
        with ForcedKeys(self._included, self._excluded), torch.set_grad_enabled(records):
            if not records:
                yield
                return
            # Checkpointing counts what is saved, and would count what is recorded here: the hooks that
            # came last are those that are asked.
            with torch.autograd.graph.saved_tensors_hooks(_as_it_is, _as_it_is):
                yield


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


class ExactValue(NamedTuple):
    """The exact value of a tensor of a replay."""

    # the value, float64 where the tensor is of floating point; of a graph in forward
    tensor: Tensor
    error: float  # how far the tensor is from it, relative, as an L2 norm
    memory: WeakStorage  # of the tensor, without holding it


class ExactValues:
    """Knows the exact value of each tensor of a replay, by the place of its elements in memory.

    Not by the object: what autograd has saved comes back as another object of the same memory. What
    was not computed by an op that was seen, such as parameters and the batch, is exact as it is.
    """

    def __init__(self) -> None:
        self._known: dict[Any, ExactValue] = {}
        self._until_sweep = SWEEP

    def of(self, tensor: Tensor) -> Tensor:
        """Return the exact value of a tensor, as it is known by now. It may be written to."""
        key = _key(tensor)
        known = self._known.get(key)
        if known is None:
            return self.put(tensor, as_exact(tensor), 0.0)
        return known.tensor

    def error_of(self, tensor: Tensor) -> float:
        """Return the relative error of a tensor, 0 for one that is exact as it is."""
        known = self._known.get(_key(tensor))
        return 0.0 if known is None else known.error

    def put(self, tensor: Tensor, exact: Tensor, error: float) -> Tensor:
        """Take in the exact value of a tensor, in the place of an older one; return it."""
        # The weak reference keeps the identity of the memory from being given away.
        memory = WeakStorage(tensor.untyped_storage())
        self._known[_key(tensor)] = ExactValue(exact, error, memory)
        self._until_sweep -= 1
        if self._until_sweep <= 0:
            self._known = {k: v for k, v in self._known.items() if not v.memory.expired()}
            self._until_sweep = max(SWEEP, len(self._known))
        return exact

    def settle(self) -> None:
        """Let go of the graph: the values stay, of no graph."""
        for key, (tensor, error, memory) in self._known.items():
            self._known[key] = ExactValue(tensor.detach(), error, memory)

    def forget(self) -> None:
        """Let go of everything. Idempotent."""
        self._known.clear()


def _key(tensor: Tensor) -> Any:
    place = storage_key(tensor.untyped_storage()), tensor.storage_offset()
    return (*place, tuple(tensor.shape), tensor.stride(), tensor.dtype)


def as_exact(tensor: Tensor) -> Tensor:
    """Return a copy of a tensor, in float64 if it is of floating point. It is of no graph."""
    if tensor.is_floating_point():
        return tensor.detach().to(EXACT, copy=True)
    if tensor.is_complex():
        return tensor.detach().to(torch.complex128, copy=True)
    return tensor.detach().clone()


def is_random(call: OpCall) -> bool:
    """Whether a call draws random numbers: in float64 it would draw others."""
    if torch.Tag.nondeterministic_seeded not in call.func.tags:
        return False
    given = dict(zip(call.info.arguments, call.args, strict=False)) | call.kwargs
    if "dropout_p" in call.info.arguments:
        return bool(given.get("dropout_p", 0.0))
    return True


class ExactRun:
    """A call that is made once more in float64, on exact values of what it was given.

    Args:
        call: The call, before it has run: it may write to its arguments.
        exact_of: Returns what takes the place of a tensor. It is written to where the call writes.
    """

    def __init__(self, call: OpCall, exact_of: Callable[[Tensor], Tensor]) -> None:
        self._call = call

        def argument(name: str, value: Any) -> Any:
            return False if name == "half_to_float" else _converted(value, exact_of)

        self._args = list(map(argument, call.info.arguments, call.args))
        self._kwargs = {name: argument(name, value) for name, value in call.kwargs.items()}

    def run(self) -> list[Tensor]:
        """Return the tensors that it returns; of a call that returns none those that it has written to.

        Raises:
            RuntimeError: If the op does not know float64.
        """
        call = self._call
        try:
            found = call.func(*self._args, **self._kwargs)
        except (RuntimeError, NotImplementedError):
            otherwise = _otherwise(call, self._args, self._kwargs)
            if otherwise is None:
                raise
            found = otherwise()
        here = call._replace(args=self._args, kwargs=self._kwargs)
        return all_tensors_in([found]) or list(writes(here))


def _otherwise(call: OpCall, args: list[Any], kwargs: dict[str, Any]) -> Callable[[], Any] | None:
    """Return another way to compute the same, where an op has no kernel for float64 or these strides."""
    name = call.info.name
    if name in ("view", "_unsafe_view") and isinstance(args[1], (list, tuple)):
        return lambda: args[0].reshape(args[1])
    attend = attention_in_float64
    if attend is not None and name.startswith(FUSED_ATTENTION) and "backward" not in name:
        given = dict(zip(call.info.arguments, args, strict=False)) | kwargs
        query, key, value = (given[part] for part in ("query", "key", "value"))
        mask = given.get("attn_mask", given.get("attn_bias"))
        causal, scale = given.get("is_causal", False), given.get("scale")
        return lambda: attend(query, key, value, mask, 0.0, causal, scale=scale)[:1]
    return None


def _converted(value: Any, exact_of: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return exact_of(value)
    if isinstance(value, torch.dtype) and value.is_floating_point:
        return EXACT
    if isinstance(value, (list, tuple)):
        return [_converted(part, exact_of) for part in value]
    return value


def with_strides_of(exact: Tensor, tensor: Tensor) -> Tensor:
    """Return an exact value with its elements in the order of those of the tensor: views follow.

    Some kernels choose the order by the dtype.
    """
    wanted = tensor.stride()
    if exact.stride() == wanted or exact.shape != tensor.shape or 0 in wanted:
        return exact
    made = torch.empty_strided(tensor.shape, wanted, dtype=exact.dtype, device=exact.device)
    return made.copy_(exact)


def float_tensors(values: Any) -> list[Tensor]:
    """Return the dense tensors of floating point among the results of an op."""
    return [t for t in all_tensors_in([values]) if t.is_floating_point() and is_dense(t)]


def writes(call: OpCall) -> Sequence[Tensor]:
    """Return the tensors that a call writes to according to its schema."""
    given = dict(zip(call.info.arguments, call.args, strict=False)) | call.kwargs
    found = [
        given.get(argument.name)
        for argument in schema_of(call.func).arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return all_tensors_in(found)
