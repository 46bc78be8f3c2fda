"""Log of the ops of one iteration, and its replay when their values arrive."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ampwatch.diagnosis.evidence.births import NOT_ASKED, Answer, Values
from ampwatch.diagnosis.evidence.lineage import Lineage, OpFacts, SeenOp
from ampwatch.training.model.dtypes import name_of
from ampwatch.training.ops.operands import FLOATS
from ampwatch.training.sensors.births.asking import ask_for_ends
from ampwatch.training.sensors.births.unfinished import arrived

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ampwatch.diagnosis.evidence.births import OpTrace, Origin
    from ampwatch.training.ops.events import OpPlace
    from ampwatch.training.sensors.births.asking import Arguments
    from ampwatch.training.transfer.extremes import Extremes, Flight


class LoggedOperand(NamedTuple):
    """A tensor that an op has read or written, without the tensor.

    Attributes:
        key: Identity of the storage.
        dtype: Dtype of the tensor.
        numel: Number of elements.
        row: Measurement that is on its way; ``None`` if the values are not measured.
    """

    key: int
    dtype: torch.dtype
    numel: int
    row: Extremes | None

    @property
    def is_float(self) -> bool:
        """Whether the dtype can hold values that are not finite."""
        return self.dtype in FLOATS

    @property
    def dtype_name(self) -> str:
        """Name of the dtype."""
        return name_of(self.dtype)

    def is_finite(self) -> bool:
        """Whether all values are finite, as far as they were measured."""
        return self.row is None or self.row.is_finite

    def values(self) -> Values:
        """Describe the values, now that they have arrived."""
        row = self.row
        dtype = name_of(self.dtype)
        if row is None:
            return Values(dtype, self.numel)
        low = row.low
        high = row.high
        if row.is_finite:
            # With both ends on one side of zero, the end closer to it has the least magnitude.
            least = low if low >= 0.0 else -high if high <= 0.0 else row.least
            return Values(dtype, self.numel, amax=max(-low, high), amin=least)
        # Both ends are NaN if any element is; infinities beside it cannot be known then.
        nans = math.isnan(low) or math.isnan(high)
        # With both ends infinite alike there is no other number in it: 0, as the host says.
        amax = 0.0 if low == high else math.nan
        return Values(dtype, self.numel, nans, high == math.inf, low == -math.inf, amax)

    def ends(self) -> tuple[float, ...]:
        """Return the numbers that stand for all of its values; none if these are not known."""
        if not self.is_float:
            return (0.0, 1.0)  # of a mask, or of numbers that make nothing infinite
        row = self.row
        if row is None or not row.is_finite:
            return ()
        low = row.low
        high = row.high
        if low > 0.0 or high < 0.0:
            return (low, high)
        # Without a measured one, zero stands for what is closest to it.
        least = row.least if row.has_least else 0.0
        return tuple({low: None, high: None, least: None, -least: None})


class LoggedGradient(NamedTuple):
    """A gradient at the time of an op, without the tensor.

    Attributes:
        name: Name of the parameter.
        key: Identity of the storage.
        shape: Shape of the gradient.
    """

    name: str
    key: int
    shape: torch.Size


class LoggedOp(NamedTuple):
    """An op of the log; other fields than these are of ``OpFacts`` and ``SeenOp``.

    Attributes:
        func: The overload.
        arguments: Arguments of an elementwise op, with places for its tensors.
        inputs: Operands that it has read.
        outputs: Tensors that it has returned, or written if it has returned nothing.
        written: Keys of all storages that it has written to.
        shapes: Shapes of the inputs, if one of them may be a gradient.
        gradients: Gradients at the time, if it may have read one.
        is_collective: Whether the outputs were measured when another op met them.
        unseen: Keys of what it has read that fused code may have written.
        is_beside_graph: Whether the user's code computed with gradients there.
    """

    func: Any
    name: str
    place: OpPlace
    nonfinite: float | None
    is_scaling: bool
    needs_grad: bool
    number: float
    is_hook: bool
    source: str
    has_autocast: bool | None
    arguments: Arguments | None
    inputs: Sequence[LoggedOperand]
    outputs: list[LoggedOperand]
    written: frozenset[int]
    shapes: frozenset[torch.Size]
    gradients: Sequence[LoggedGradient]
    is_collective: bool = False
    unseen: Sequence[int] = ()
    is_beside_graph: bool = False

    def facts(self) -> OpFacts:
        """Return the facts of the op that a birth reports. No op of a stepping optimizer is one."""
        return OpFacts(
            overload=str(self.func),
            needs_grad=self.needs_grad,
            number=self.number,
            is_stepping=False,
            gradient=self._gradient(),
            is_hook=self.is_hook,
            source=self.source,
            has_autocast=self.has_autocast,
        )

    def ask(self, index: int) -> Answer:
        """Compute the op for the ends of its operands: the operands themselves are gone."""
        if self.arguments is None:
            return NOT_ASKED
        ends = [operand.ends() for operand in self.inputs]
        if not all(ends):
            return NOT_ASKED
        limit = torch.finfo(self.outputs[index].dtype).max
        return ask_for_ends(self.func, self.arguments, ends, limit)

    def _gradient(self) -> str:
        """Return the parameter whose gradient, or a cast of it, was read."""
        keys = {operand.key for operand in self.inputs}
        read = next((g.name for g in self.gradients if g.key in keys), "")
        return read or next((g.name for g in self.gradients if g.shape in self.shapes), "")


@dataclass(slots=True)
class OpLog:
    """Log of one iteration.

    Attributes:
        step: The iteration.
        ops: Ops in the order in which they ran; of a stepping optimizer's only the written keys.
        num_ops: Number of ops that were seen.
        buffers: The buffers of the models, as they were before the first op.
        gradients: The gradients at the end, with the names of their parameters.
        scale: The loss scale.
        loss: The loss; ``None`` if there was none.
        loss_on_host: The part of the loss that the host knows.
        has_trained: Whether gradients were computed.
        flight: Rows on their way to the host.
    """

    step: int
    ops: list[LoggedOp | tuple[int, ...]] = field(default_factory=list)
    num_ops: int = 0
    has_trained: bool = False
    buffers: Sequence[LoggedOperand] = ()
    gradients: list[tuple[str, LoggedOperand]] = field(default_factory=list)
    scale: Extremes | None = None
    loss: Extremes | None = None
    loss_on_host: float | None = None
    flight: Flight | None = None


def replayed(log: OpLog, owner: Callable[[int], tuple[Origin, str]], *, is_finite: bool) -> OpTrace:
    """Return the trace that reading each value at once would have given.

    Args:
        log: A log whose values have arrived.
        owner: Returns the owner of a key that no op was seen to write.
        is_finite: Whether all values are finite: then the log is not gone through.
    """
    lineage = Lineage(log.step, owner)
    for buffer in () if is_finite else log.buffers:
        lineage.suspect(buffer)
    for op in () if is_finite else log.ops:
        if isinstance(op, LoggedOp):
            _replay(op, lineage)
        else:
            lineage.hide(op)
    trace = lineage.finish(log.gradients, math.nan if log.scale is None else log.scale.high)
    trace.num_ops = log.num_ops
    trace.has_trained = log.has_trained
    if log.loss is not None or log.loss_on_host is not None:
        is_known_bad = not math.isfinite(log.loss_on_host or 0.0)
        trace.loss_nonfinite = is_known_bad or not (log.loss is None or log.loss.is_finite)
    return trace


def _replay(noted: LoggedOp, lineage: Lineage) -> None:
    """Add one op to the lineage, as if its values had been read when it ran."""
    bad = {
        index: output.values()
        for index, output in enumerate(noted.outputs)
        if not output.is_finite()
    }
    if noted.place.follows_fused:
        lineage.unseen(noted.unseen)
    if not bad and lineage.is_clean:
        return
    op = SeenOp(
        noted.name,
        noted.place.phase,
        noted.place.module,
        noted.place.is_inside,
        noted.nonfinite,
        noted.is_scaling,
        noted.facts,
        noted.ask,
        lambda: noted.is_beside_graph,
    )
    if noted.is_collective:
        for index in bad:
            arrived(lineage, op, noted.outputs[index], noted.inputs, noted.written)
    elif bad:
        lineage.failed(op, noted.outputs, bad, noted.inputs, noted.written)
    else:
        lineage.settle(op, noted.outputs, noted.inputs)
