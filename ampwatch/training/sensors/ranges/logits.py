"""The largest attention logit of each module, in iterations whose ops are observed."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ampwatch.diagnosis.evidence.logits import LogitsRead
from ampwatch.numerics.units.ops import Phase
from ampwatch.training.hooks.sources import user_source
from ampwatch.training.kernels.dtypes import FLOATS
from ampwatch.training.model.dtypes import name_of
from ampwatch.training.ops.call import tensors_among
from ampwatch.training.ops.events import OpSensor
from ampwatch.training.ops.values import is_plain, place_name
from ampwatch.training.transfer.deferred import WIDTH

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from ampwatch.training.iteration.context import Context
    from ampwatch.training.ops.call import OpCall
    from ampwatch.training.ops.events import Op, OpPlace, OpsBegan, OpsEnded
    from ampwatch.training.ops.info import OpInfo

PRODUCTS = frozenset({"bmm", "baddbmm"})
"""Ops that multiply queries with keys: products of two activations, batch by batch."""

ON_THE_WAY = frozenset(
    f"{name}{end}"
    for name in ("mul", "div", "add", "sub", "masked_fill", "tanh", "clone", "_to_copy")
    for end in ("", "_")
) | {"where", "copy_"}
"""Ops between product and softmax: scale, bias, mask, cap, cast."""

SOFTMAX = frozenset({"_softmax", "_safe_softmax"})

FUSED = "_scaled_dot_product_"
"""Beginning of the names of the ops that fuse attention."""

MAX_REMEMBERED = 256
"""Products that are remembered at a time; a softmax follows on its own within a few ops."""

MAX_MODULES = 128
"""Modules of one iteration that are measured: readings have room for others besides."""


class _Product(NamedTuple):
    """A product that has not met a softmax. By storage, since views make no event."""

    storage: StorageWeakRef
    dtype: torch.dtype


class _Largest(NamedTuple):
    """The largest logit of a module so far, still on its device."""

    value: Tensor
    op: str
    dtype: str
    is_bound: bool
    source: str


class LogitSensor(OpSensor):
    """Measures the operands of softmax that are products of two activations, and fused attention.

    What a softmax is given is read as it is, with mask and bias: an element that is masked, by -inf
    or by a large negative number, is never the largest. Of fused attention only query and key are to be seen:
    by Cauchy and Schwarz no logit is larger than the scale times the norm of the longest query times
    that of the longest key, head by head. Attention in compiled code that is one kernel is not seen.

    Args:
        context: Shared parts of the training.

    Cost:
        Less than 1 us for other ops; one pass over the logits, or over query and key; one copy of a few
        bytes for each 16 modules. No sync.
    """

    name = "logits"
    is_thread_safe = True

    def __init__(self, context: Context) -> None:
        self._deferred = context.deferred
        self._observe = context.observe
        self._step = 0
        self._products: dict[int, _Product] = {}
        self._largest: dict[str, _Largest] = {}

    def ops_began(self, event: OpsBegan) -> None:
        """Begin an iteration."""
        self._step = event.step
        self._products.clear()
        self._largest.clear()
        self._deferred.poll()

    def wants_op(self, info: OpInfo, *, in_backward: bool) -> bool:
        """Whether an op makes logits, or shares of them, in forward."""
        name = info.name
        wanted = name in PRODUCTS or name in ON_THE_WAY or name in SOFTMAX
        return not in_backward and (wanted or name.startswith(FUSED))

    def glance(self, call: OpCall) -> bool:
        """Whether an op lies on no way from a product to a softmax."""
        return not self._products and call.info.name in ON_THE_WAY

    def op(self, event: Op) -> None:
        """Follow a product to its softmax, and measure there."""
        call, place = event
        if place.phase is not Phase.FORWARD:
            return
        name = call.info.name
        if name in PRODUCTS:
            self._note(call.out, getattr(call.out, "dtype", torch.float32))
        elif name in SOFTMAX:
            self._softmax(call, place)
        elif name.startswith(FUSED):
            self._fused(call, place)
        elif self._products:
            dtype = self._origin(tensors_among(call.args))
            if dtype is not None:
                for made in tensors_among((call.out,)):
                    self._note(made, dtype)

    def ops_ended(self, _event: OpsEnded) -> None:
        """Read what was measured in the iteration."""
        self._products.clear()
        measured = list(self._largest.items())
        self._largest.clear()
        by_device: dict[torch.device, list[tuple[str, _Largest]]] = {}
        for where, largest in measured:
            by_device.setdefault(largest.value.device, []).append((where, largest))
        for found in by_device.values():
            for first in range(0, len(found), WIDTH):
                part = found[first : first + WIDTH]
                values = torch.stack([largest.value for _, largest in part])
                labels = [
                    LogitsRead(
                        self._step, where, known.op, known.dtype, 0.0, known.is_bound, known.source
                    )
                    for where, known in part
                ]
                self._deferred.read(values, partial(self._report, labels))
        self._deferred.poll()

    def _report(self, labels: Sequence[LogitsRead], values: list[float]) -> None:
        for label, value in zip(labels, values, strict=True):
            self._observe(label._replace(largest=value))

    def _softmax(self, call: OpCall, place: OpPlace) -> None:
        given = call.args[0]
        if not is_plain(given):
            return
        dtype = self._origin((given,))
        if dtype is not None:
            self._keep(call, place, given.detach().amax(), dtype, is_bound=False)

    def _fused(self, call: OpCall, place: OpPlace) -> None:
        # Not strict: the dispatcher leaves out trailing arguments that have their defaults.
        given: dict[str, Any] = (
            dict(zip(call.info.arguments, call.args, strict=False)) | call.kwargs
        )
        query: Any
        key: Any
        query, key = given.get("query"), given.get("key")
        if not (is_plain(query) and is_plain(key)) or query.dtype not in FLOATS:
            return
        scale = given.get("scale")
        scale = 1 / math.sqrt(query.shape[-1]) if scale is None else abs(float(scale))
        longest = [
            torch.linalg.vector_norm(t.detach(), dim=-1, dtype=torch.float32).amax(-1)
            for t in (query, key)
        ]
        if longest[0].shape != longest[1].shape:  # several heads of queries share one of keys
            longest = [norms.amax() for norms in longest]
        bound = (longest[0] * longest[1]).amax() * scale
        self._keep(call, place, bound, query.dtype, is_bound=True)

    def _keep(
        self, call: OpCall, place: OpPlace, value: Tensor, dtype: torch.dtype, *, is_bound: bool
    ) -> None:
        where = place_name(place)
        value = value.to(torch.float32)
        known = self._largest.get(where)
        if known is not None and known.value.device == value.device:
            self._largest[where] = known._replace(value=torch.maximum(known.value, value))
        elif known is None and len(self._largest) < MAX_MODULES:
            source = place.source or user_source()
            name = call.info.name
            self._largest[where] = _Largest(value, name, name_of(dtype), is_bound, source)

    def _note(self, made: Any, dtype: torch.dtype) -> None:
        if not is_plain(made) or made.dtype not in FLOATS:
            return
        if len(self._products) >= MAX_REMEMBERED:
            self._products.clear()
        storage = made.untyped_storage()
        ref = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        self._products[storage.data_ptr()] = _Product(ref, dtype)

    def _origin(self, given: Sequence[Tensor]) -> torch.dtype | None:
        """Return the dtype of the product that one of the tensors comes from."""
        for tensor in given:
            if not is_plain(tensor):
                continue
            product = self._products.get(tensor.untyped_storage().data_ptr())
            if product is not None and not product.storage.expired():  # type: ignore[no-untyped-call]
                return product.dtype
        return None
