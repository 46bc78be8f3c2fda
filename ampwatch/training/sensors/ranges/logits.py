"""The largest attention logit of each module, in iterations whose ops are observed."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ampwatch.diagnosis.evidence.ops import LogitsRead
from ampwatch.numerics.units.ops import Phase
from ampwatch.training.hooks.sources import user_source
from ampwatch.training.kernels.admission import is_plain
from ampwatch.training.kernels.dtypes import FLOATS, name_of
from ampwatch.training.ops.call import tensors_among
from ampwatch.training.ops.events import OpSensor
from ampwatch.training.ops.operands import place_name
from ampwatch.training.ops.storage import WeakStorage
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
    for name in ("mul", "div", "add", "sub", "masked_fill", "clone", "_to_copy")
    for end in ("", "_")
) | {"where", "copy_"}
"""Ops between product and softmax: scale, bias, mask, cast."""

CAPS = frozenset({"tanh", "tanh_"})
"""Ops after which logits are bounded, however large queries and keys become: no growth is carried on."""

SOFTMAX = frozenset({"_softmax", "_safe_softmax"})

FUSED = "_scaled_dot_product_"
"""Beginning of the names of the ops that fuse attention."""

MAX_REMEMBERED = 256
"""Products that are remembered at a time; a softmax follows on its own within a few ops."""

MAX_MODULES = 128
"""Modules of one iteration that are measured: readings have room for others besides."""


class _Origin(NamedTuple):
    """The product that logits come from."""

    dtype: torch.dtype  # its dtype
    reach: Tensor  # the longest row of the one factor times the longest column of the other, still on its device


class _Product(NamedTuple):
    """A product that has not met a softmax. By storage, since views make no event."""

    storage: WeakStorage
    origin: _Origin


class _Largest(NamedTuple):
    """The largest logit of a module so far, still on its device."""

    value: Tensor
    reach: Tensor
    label: LogitsRead  # evidence that lacks only these two


class LogitSensor(OpSensor):
    """Measures the operands of softmax that are products of two activations, and fused attention.

    What a softmax is given is read as it is, with mask and bias: an element that is masked, by -inf
    or by a large negative number, is never the largest. Of fused attention only query and key are to be seen:
    by Cauchy and Schwarz no logit is larger than the scale times the norm of the longest query times
    that of the longest key, head by head. That product of norms is read of all attention, for it strays
    less from batch to batch than the largest logit does. Logits that are capped by a tanh are left alone. Attention
    in compiled code that is one kernel is not seen.

    Cost:
        Less than 1 us for other ops; one pass over query and key, and one over logits that are seen; one over
        the factors of each other product of activations; one copy of a few bytes for each 8 modules. No sync.
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
        wanted = name in PRODUCTS or name in ON_THE_WAY or name in SOFTMAX or name in CAPS
        return not in_backward and (wanted or name.startswith(FUSED))

    def prefilter(self, call: OpCall) -> bool:
        """Whether an op lies on no way from a product to a softmax."""
        name = call.info.name
        return not self._products and (name in ON_THE_WAY or name in CAPS)

    def op(self, event: Op) -> None:
        """Follow a product to its softmax, and measure there."""
        call, place = event
        if place.phase is not Phase.FORWARD:
            return
        name = call.info.name
        if name in PRODUCTS:
            self._product(call)
        elif name in SOFTMAX:
            self._softmax(call, place)
        elif name.startswith(FUSED):
            self._fused(call, place)
        elif name in CAPS:
            for capped in filter(is_plain, tensors_among((call.out,))):
                # Memory of its operand, where it is in place.
                self._products.pop(capped.untyped_storage().data_ptr(), None)
        elif self._products:
            origin = self._origin(tensors_among(call.args))
            if origin is not None:
                for made in tensors_among((call.out,)):
                    self._note(made, origin)

    def ops_ended(self, _event: OpsEnded) -> None:
        """Read what was measured in the iteration."""
        self._products.clear()
        by_device: dict[torch.device, list[_Largest]] = {}
        for largest in self._largest.values():
            by_device.setdefault(largest.value.device, []).append(largest)
        self._largest.clear()
        for found in by_device.values():
            for first in range(0, len(found), WIDTH // 2):
                part = found[first : first + WIDTH // 2]
                values = torch.stack([t for known in part for t in (known.value, known.reach)])
                labels = [known.label for known in part]
                self._deferred.read(values, partial(self._report, labels))
        self._deferred.poll()

    def _report(self, labels: Sequence[LogitsRead], values: list[float]) -> None:
        for label, largest, reach in zip(labels, values[::2], values[1::2], strict=True):
            self._observe(label._replace(largest=largest, reach=reach))

    def _product(self, call: OpCall) -> None:
        made = call.out
        rows, columns = call.args[:2] if call.info.name == "bmm" else call.args[1:3]
        # What is empty has no largest element.
        if is_plain(made) and made.dtype in FLOATS and made.numel():
            reach = _reach(rows, columns.mT)
            self._note(made, _Origin(made.dtype, reach.amax()))

    def _softmax(self, call: OpCall, place: OpPlace) -> None:
        given = call.args[0]
        if not (is_plain(given) and given.numel()):
            return
        origin = self._origin((given,))
        if origin is not None:
            largest = given.detach().amax().to(torch.float32)
            self._keep(call, place, largest, origin, is_bound=False)

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
        bound = _reach(query, key).amax() * scale
        self._keep(call, place, bound, _Origin(query.dtype, bound), is_bound=True)

    def _keep(
        self, call: OpCall, place: OpPlace, value: Tensor, origin: _Origin, *, is_bound: bool
    ) -> None:
        where = place_name(place)
        # What has moved to another device since is not waited for.
        reach = origin.reach if origin.reach.device == value.device else value
        known = self._largest.get(where)
        if known is not None and known.value.device == value.device:
            self._largest[where] = known._replace(
                value=torch.maximum(known.value, value),
                reach=torch.maximum(known.reach, reach),
            )
        elif known is None and len(self._largest) < MAX_MODULES:
            op, dtype, source = call.info.name, name_of(origin.dtype), place.source or user_source()
            label = LogitsRead(self._step, where, op, dtype, 0.0, is_bound, source)
            self._largest[where] = _Largest(value, reach, label)

    def _note(self, made: Any, origin: _Origin) -> None:
        if not is_plain(made) or made.dtype not in FLOATS:
            return
        if len(self._products) >= MAX_REMEMBERED:
            self._products.clear()
        storage = made.untyped_storage()
        ref = WeakStorage(storage)
        self._products[storage.data_ptr()] = _Product(ref, origin)

    def _origin(self, given: Sequence[Tensor]) -> _Origin | None:
        """Return the product that one of the tensors comes from."""
        for tensor in given:
            if not is_plain(tensor):
                continue
            product = self._products.get(tensor.untyped_storage().data_ptr())
            if product is not None and not product.storage.expired():
                return product.origin
        return None


def _reach(rows: Tensor, columns: Tensor) -> Tensor:
    """Return the product of the largest norms of the vectors of two factors, matrix by matrix.

    By Cauchy and Schwarz no element of their product is larger. float32, on their device.
    """
    rows, columns = (
        torch.linalg.vector_norm(t.detach(), dim=-1, dtype=torch.float32).amax(-1)
        for t in (rows, columns)
    )
    if rows.shape != columns.shape:  # several heads of queries share one of keys
        rows, columns = rows.amax(), columns.amax()
    return rows * columns
