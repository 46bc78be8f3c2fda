"""Sums of many terms that one op makes in half precision: those of the neighbours of a node, of the tokens of an expert."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ampwatch.diagnosis.evidence.rounding import Stuck, What
from ampwatch.numerics.units.ops import Phase
from ampwatch.training.kernels.admission import is_plain
from ampwatch.training.kernels.dtypes import HALF, name_of
from ampwatch.training.sensors.rounding.shadow import TINY, RoundingSensor, VainChecks

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from torch import Tensor

    from ampwatch.diagnosis.evidence.rounding import OpSite
    from ampwatch.training.iteration.context import Context
    from ampwatch.training.ops.call import OpCall
    from ampwatch.training.ops.events import Op
    from ampwatch.training.ops.info import OpInfo

MIN_TERMS = 64
"""Terms below which an op is no sum of many."""

MAX_COMPARED = 65536
"""Elements of the terms, and of what they are added to, that are compared: some columns of each. Where there are more
rows an op is left alone."""

INDEXES = (torch.int64, torch.int32)

MIN_LOST = 0.05
"""Share of what was added, without its signs, that has to be missing: what cancels out loses nothing."""

FEW = 8
"""Terms in a place up to which half precision has lost next to nothing."""

MAX_FEW_ERROR = 0.02
"""Difference in such places from which on more is in them than the terms: what was there before an op in place."""


class _Terms(NamedTuple):
    """What an op adds up."""

    before: Tensor | None  # what was there before; ``None`` where the op has overwritten it
    rows: Tensor  # to which row each row of the terms is added
    terms: Tensor  # the terms


class ScatteredSums(RoundingSensor):
    """Adds the terms of an op up once more in float32, some columns of them, and compares the row that has most.

    In half precision a sum stands still where a term is less than half of the distance to the next number: of numbers
    alike at 2048 terms in float16, and at 256 in bfloat16.

    Cost:
        Nothing in iterations whose ops are not observed. 0.1 to 1 ms an op on a CPU, the first times.
    """

    name = "scattered_sums"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._vain = VainChecks()

    def wants_op(self, info: OpInfo, *, in_backward: bool) -> bool:
        """Whether an op adds rows to rows in forward; in backward gradients are followed by others."""
        return info.name in _READERS and not in_backward

    def prefilter(self, call: OpCall) -> bool:
        """Whether an op is of no concern, as its dtype tells."""
        return getattr(call.out, "dtype", None) not in HALF

    def op(self, event: Op) -> None:
        """Check an op."""
        call, place = event
        read = _READERS.get(call.info.name)
        given = None if read is None else read(call)
        out = call.out
        if given is None or place.phase is Phase.BACKWARD or not _is_such_a_sum(out, given):
            return
        # Some of these are refused where only deterministic ones are wanted.
        if torch.are_deterministic_algorithms_enabled():
            return
        signature = place.module, call.info.name, given.terms.shape[1:]
        if self._vain.are_enough(signature, self._step):
            return
        judge = partial(self._judge, self._site(event, out), name_of(out.dtype), signature)
        # What is left of a device's memory is the training's. The next one may fit.
        with contextlib.suppress(torch.OutOfMemoryError):
            self._read(judge, *_compared(out.detach(), given))

    def _judge(self, site: OpSite, dtype: str, signature: Hashable, read: list[float]) -> None:
        most, error, share, lost, few_error = read
        if few_error <= MAX_FEW_ERROR and lost >= MIN_LOST:
            self._observe(Stuck(site, What.LOOP_SUM, dtype, int(most), error=error, total=share))
            return
        self._vain.add(signature)


def _is_such_a_sum(out: Any, given: _Terms) -> bool:
    """Whether an op adds rows of one shape to rows of that shape, enough of them and not too many."""
    _, rows, terms = given
    if not (is_plain(out) and is_plain(rows) and is_plain(terms)):
        return False
    if rows.dtype not in INDEXES or terms.device != out.device or rows.device != out.device:
        return False
    if not out.ndim or terms.ndim != out.ndim or terms.shape[1:] != out.shape[1:]:
        return False
    has_index = rows.shape in (terms.shape[:1], terms.shape)
    return has_index and len(terms) >= MIN_TERMS and max(len(out), len(terms)) <= MAX_COMPARED


@torch.no_grad()
def _compared(out: Tensor, given: _Terms) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return what ``_judge`` reads, without a wait.

    Returns:
        The most terms in a row; the error of that row, relative to what it is in float32; its norm, as a share of that;
        its error relative to what the terms are without their signs; and the error of the rows with few terms, which
        is large where there are none of these and what was there before is not known.
    """
    before, rows, terms = given
    num_rows, num_terms = len(out), len(terms)
    out, terms = out.reshape(num_rows, -1), terms.detach().reshape(num_terms, -1)
    columns = max(1, min(terms.shape[1], MAX_COMPARED // max(num_rows, num_terms)))
    out, terms = out[:, :columns].float(), terms[:, :columns].float()
    # There is an index for each row of the terms, or one for each element. Counted from the end it is negative.
    rows = rows.reshape(num_terms, -1)[:, :columns].expand(num_terms, columns).long() % num_rows
    start = torch.zeros_like(out)
    if before is not None:
        start = before.detach().reshape(num_rows, -1)[:, :columns].float()
    exact = start.scatter_add(0, rows, terms)
    unsigned = start.abs().scatter_add_(0, rows, terms.abs())
    counts = torch.zeros_like(out).scatter_add_(0, rows, torch.ones_like(terms))[:, 0]
    fullest = counts.argmax()[None]
    found, wanted, all_ = (each.index_select(0, fullest) for each in (out, exact, unsigned))
    norm, missed = wanted.norm().clamp(min=TINY), (found - wanted).norm()
    few = ((counts <= FEW) & (counts > 0))[:, None]
    few_error = ((out - exact) * few).norm() / (exact * few).norm().clamp(min=TINY)
    if before is None:
        few_error = few_error + (~few).all()
    lost = missed / all_.norm().clamp(min=TINY)
    return counts.max(), missed / norm, found.norm() / norm, lost, few_error


def _of_index_put(call: OpCall) -> _Terms | None:
    accumulates = call.args[3] if len(call.args) > 3 else call.kwargs.get("accumulate", False)
    indices = call.args[1]
    if not accumulates or len(indices) != 1 or indices[0] is None:
        return None
    return _Terms(_before(call), indices[0], call.args[2])


def _of_index_add(call: OpCall) -> _Terms | None:
    is_plain_sum = call.args[1] == 0 and call.kwargs.get("alpha", 1) == 1
    return _Terms(_before(call), call.args[2], call.args[3]) if is_plain_sum else None


def _of_scatter(call: OpCall) -> _Terms | None:
    adds = list(call.args[4:5]) in ([], ["sum"]) and call.kwargs.get("include_self", True)
    return _Terms(_before(call), call.args[2], call.args[3]) if adds and call.args[1] == 0 else None


def _before(call: OpCall) -> Tensor | None:
    tensor: Tensor = call.args[0]
    return None if call.info.name.endswith("_") else tensor


_READERS: dict[str, Callable[[OpCall], _Terms | None]] = {
    "index_put": _of_index_put,
    "index_put_": _of_index_put,
    "index_add": _of_index_add,
    "index_add_": _of_index_add,
    "scatter_add": _of_scatter,
    "scatter_add_": _of_scatter,
    "scatter_reduce": _of_scatter,
    "scatter_reduce_": _of_scatter,
}
"""Ops that add rows to rows, and what reads their arguments."""
