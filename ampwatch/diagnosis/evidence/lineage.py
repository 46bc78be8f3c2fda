"""Lineage of non-finite values, as far as it is known while an iteration is followed op by op."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ampwatch.diagnosis.evidence.origins import (
    NOT_ASKED,
    Answer,
    Fault,
    OpTrace,
    Origin,
    OriginKind,
    Values,
    Writer,
)
from ampwatch.numerics.units.ops import FP8_DTYPES, Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

MAX_ORIGINS = 256
"""Origins that are remembered of one iteration; what follows the first of them seldom matters."""

MAKES_NONE = frozenset({"_amp_update_scale_", "_amp_foreach_non_finite_check_and_unscale_"})
"""Ops of the scaler. They write what is not finite already, or was not meant to be."""


CHECKS = "_amp_foreach_non_finite_check_and_unscale_"
"""Op by which a scaler learns that gradients are not finite. What becomes of them then hides nothing."""

WRITES_ONLY = frozenset(
    {"zero_", "fill_", "copy_", "normal_", "uniform_", "_foreach_zero_", "_foreach_copy_"}
)
"""Ops that write in place and do not read what was there: a gradient that is zeroed is not hidden."""


class Operand(Protocol):
    """A tensor that an op has read or written."""

    @property
    def key(self) -> int:
        """Identity of the memory that its values lie in, whatever view of them it is."""

    @property
    def is_float(self) -> bool:
        """Whether it can hold values that are not finite."""

    @property
    def dtype_name(self) -> str:
        """Name of its dtype."""

    @property
    def numel(self) -> int:
        """Number of its elements."""

    @property
    def is_part(self) -> bool:
        """Whether more elements lie at its key: what is known of those holds when these are written."""

    def is_finite(self) -> bool:
        """Whether all of its values are finite."""

    def values(self) -> Values:
        """Return what is known of its values."""


class OpFacts(NamedTuple):
    """Facts about the op of an origin besides its place; the fields are those of ``Origin``."""

    overload: str
    number: float
    is_stepping: bool
    gradient: str
    is_hook: bool
    source: str
    has_autocast: bool | None = None
    reads_argument: bool = False
    derivative_of: str = ""


class SeenOp(NamedTuple):
    """One call of an op.

    Attributes:
        name: Base name of the ATen op.
        phase: The part of the iteration.
        module: Qualified name of the module that was running.
        is_inside: Whether a watched module was running.
        nonfinite: The first Python number among the arguments that is not finite, if any.
        is_scaling: Whether it reads the loss scale, or is one of those that unscale gradients.
        needs_grad: Whether an input requires a gradient.
        facts: Returns what else there is to say, for an origin.
        ask: Computes the op once more, for an origin of finite inputs; given the place of the output.
        is_beside_graph: Returns whether the user's code computes with gradients there, in a hook of
            backward or between it and the step.
    """

    name: str
    phase: Phase
    module: str
    is_inside: bool
    nonfinite: float | None
    is_scaling: bool
    needs_grad: bool
    facts: Callable[[], OpFacts]
    ask: Callable[[int], Answer] = lambda _index: NOT_ASKED
    is_beside_graph: Callable[[], bool] = lambda: False


class Lineage:
    """Follows non-finite values of one iteration from the op that made them to where they end.

    Ops come in the order in which they ran. One whose values are all finite may be left out as long
    as ``is_clean``.

    Args:
        step: The iteration.
        owner: Says whose values lie at a key that no op was seen to write: asked once a key.

    Attributes:
        trace: What was seen; complete after ``finish``.
        is_clean: Whether no values are known that are not finite.
    """

    def __init__(self, step: int, owner: Callable[[int], tuple[OriginKind, str]]) -> None:
        self.trace = OpTrace(step)
        self._owner = owner
        self._origins: list[Origin] = []
        self._tainted: dict[int, tuple[int, frozenset[int]]] = {}
        self._foreign: dict[int, int] = {}
        self._hidden: set[int] = set()
        self._checked: set[int] = set()
        self._suspects: dict[int, Values] = {}
        self._unseen: set[int] = set()
        self._has_unseen = False
        self._other: int | None = None
        self._received: int | None = None
        self._count = 0

    @property
    def is_clean(self) -> bool:
        """Whether no values are known that are not finite."""
        return not (self._tainted or self._suspects)

    def suspect(self, operand: Operand) -> None:
        """Take in a buffer as it is before the first op: one may overwrite it before any reads it."""
        if operand.is_float and not operand.is_finite():
            self._suspects[operand.key] = operand.values()

    def failed(
        self,
        op: SeenOp,
        outputs: Sequence[Operand],
        bad: Mapping[int, Values],
        inputs: Sequence[Operand],
        written: AbstractSet[int],
    ) -> None:
        """Outputs of an op are not finite.

        Args:
            op: The op.
            outputs: What it has written.
            bad: What is known of those that are not finite, by their place among ``outputs``.
            inputs: What it has read.
            written: The keys of all that it has written, returned or not: what it has read there
                is gone.
        """
        self._count += 1
        # A result of its own may lie where another one lay that is gone by now, and is none of it. What copy_
        # writes to is among its inputs: a gradient that is clipped by it keeps its date.
        read = {operand.key for operand in inputs}
        before = {
            o.key: self._tainted[o.key] for o in outputs if o.key in read and o.key in self._tainted
        }
        given, parents, has_nans, has_posinf = self._read(op, inputs, written)
        if op.name == CHECKS:
            self._checked |= parents
        for index, output in enumerate(outputs):
            self._suspects.pop(output.key, None)
            if index not in bad:
                if not output.is_part:
                    self._tainted.pop(output.key, None)
                continue
            out = bad[index]
            origins = parents
            if (out.nans and not has_nans) or not parents:
                ancestors = [self._origins[parent] for parent in parents]
                reads_graph = any(o.needs_grad or o.joins_graph for o in ancestors)
                made = self._originate(op, out, index, given, parents)
                self._origins[made].reads_posinf = has_posinf
                self._origins[made].reads_graph = reads_graph
                origins = frozenset({made})
            else:
                self._spread(origins, op)
            # Unscaling and clipping write into all gradients at once: what was not finite there has
            # been so since it was made, and the first of them is the culprit's.
            since, known = before.get(output.key, (self._count, origins))
            self._tainted[output.key] = since if known <= origins else self._count, origins
            if op.phase is Phase.OPTIMIZER and self.trace.writer is None:
                self._note_writer(op, output.key, parents)

    def _note_writer(self, op: SeenOp, key: int, parents: AbstractSet[int]) -> None:
        """Note who is the first to write what was made of gradients into a parameter."""
        made = [self._origins[parent] for parent in parents]
        is_of_gradient = any(o.phase is Phase.BACKWARD or o.gradient for o in made)
        if is_of_gradient and self._owner(key)[0] is OriginKind.PARAMETER:
            facts = op.facts()
            self.trace.writer = Writer("" if facts.is_stepping else op.name, facts.source)

    def knows(self, keys: Iterable[int]) -> bool:
        """Whether values that are not finite are known at any of these keys."""
        return not self._tainted.keys().isdisjoint(keys)

    def received(self, op: SeenOp, output: Operand, values: Values) -> None:
        """Values that come from another process are not finite: it knows which op made them."""
        self._count += 1
        if self._received is None:
            # What was made without ops may have been bad before it was sent.
            self._received = (
                self._another(op, values)
                if self._has_unseen
                else self._add(OriginKind.SENT, op, values)
            )
        self._tainted[output.key] = self._count, frozenset({self._received})

    def _read(
        self, op: SeenOp, inputs: Iterable[Operand], written: AbstractSet[int]
    ) -> tuple[list[Values], frozenset[int], bool, bool]:
        """Return the finite inputs, the origins that the others are made of, and if any is NaN, or +inf."""
        given: list[Values] = []
        parents: frozenset[int] = frozenset()
        has_nans = has_posinf = False
        for operand in inputs:
            known = self._tainted.get(operand.key)
            if operand.key in written:
                # Its values are gone. What is known of them is where they lay.
                suspect = self._suspects.get(operand.key)
                if known is not None:
                    parents |= known[1]
                    has_nans = has_nans or any(self._origins[b].out.nans for b in known[1])
                elif suspect is not None:
                    parents |= {self._found(op, operand.key, suspect)}
                    has_nans = has_nans or suspect.nans
                else:
                    given.append(Values(operand.dtype_name, operand.numel))
                continue
            if not operand.is_float:
                if known is not None:
                    # Of an FP8 format: its values are not read, and what was cast to it was not finite.
                    parents |= known[1]
                    has_nans = True
                continue
            values = operand.values()
            if values.is_finite:
                given.append(values)
                continue
            has_nans = has_nans or values.nans
            has_posinf = has_posinf or values.posinf
            if known is not None:
                parents |= known[1]
            else:
                parents |= {self._found(op, operand.key, values)}
        if op.nonfinite is not None:
            has_nans = has_nans or math.isnan(op.nonfinite)
            parents |= {self._constant(op, op.nonfinite)}
        return given, parents, has_nans, has_posinf

    def settle(self, op: SeenOp, outputs: Sequence[Operand], inputs: Iterable[Operand]) -> None:
        """All outputs of an op are finite: what was not among the inputs has been absorbed.

        Or it went into an output of an FP8 format: what a cast makes of it is not finite either, and is
        not read.
        """
        # What backward reads of them again is no part of the result.
        computed = op.phase is not Phase.BACKWARD and not _reads_no_values(op.name)
        if computed and any(output.is_float for output in outputs):
            for operand in inputs:
                known = self._tainted.get(operand.key)
                if known is not None and operand.is_float and not operand.is_finite():
                    for origin in known[1]:
                        self._origins[origin].absorbed_by[op.name] += 1
        if any(output.is_float for output in outputs) and _hides(op):
            self._hide_gradients(op, {output.key for output in outputs}, inputs)
        carried = self._carried(outputs, inputs)
        for output in outputs:
            self._suspects.pop(output.key, None)
            if not output.is_part:
                self._tainted.pop(output.key, None)
            if carried and output.dtype_name in FP8_DTYPES:
                self._tainted[output.key] = self._count, carried

    def _carried(self, outputs: Sequence[Operand], inputs: Iterable[Operand]) -> frozenset[int]:
        """Return the origins that go into outputs of an FP8 format, whose own values are not read."""
        origins: frozenset[int] = frozenset()
        if any(output.dtype_name in FP8_DTYPES for output in outputs):
            for operand in inputs:
                known = self._tainted.get(operand.key)
                if known is not None and not (operand.is_float and operand.is_finite()):
                    origins |= known[1]
        return origins

    def _hide_gradients(
        self, op: SeenOp, written: AbstractSet[int], inputs: Iterable[Operand]
    ) -> None:
        """Note that what backward has made was not finite and is now, by no doing of backward."""
        for operand in inputs:
            known = self._tainted.get(operand.key)
            # What is written in place has been read before that.
            if known is not None and (operand.key in written or not operand.is_finite()):
                for origin in known[1] - self._checked:
                    if self._origins[origin].phase is Phase.BACKWARD:
                        self._origins[origin].hidden_by = op.name

    def hide(self, keys: Iterable[int]) -> None:
        """Values were written by an op that is nobody's failure, and that was not observed."""
        for key in keys:
            self._tainted.pop(key, None)
            self._hidden.add(key)

    def unseen(self, keys: Iterable[int]) -> None:
        """Code that computes without ops has run, and may have written the values at some keys.

        What is not finite there comes from an origin before, or has its origin in that code, of
        which the op that reads it is all that is seen.
        """
        self._has_unseen = True
        self._unseen.update(keys)

    def finish(
        self,
        gradients: Iterable[tuple[str, Operand]],
        scale: float,
        parameters: Iterable[tuple[str, Operand]] = (),
    ) -> OpTrace:
        """Return what was seen.

        Args:
            gradients: The gradients that there are at the end, with the names of their parameters.
            scale: The loss scale; NaN without one, or if it is not known.
            parameters: The parameters as they are at the end, with their names.
        """
        if self._origins:
            self.trace.scale = scale
            self.trace.origins = self._origins
            sent = self._sent() or self._before_unseen()
            unseen = (self._count + 1, frozenset(sent)) if sent else None
            self.trace.bad_gradients = self._bad(gradients, unseen)
            self.trace.bad_parameters = self._bad(parameters, None)
        return self.trace

    def _bad(
        self, tensors: Iterable[tuple[str, Operand]], unseen: tuple[int, frozenset[int]] | None
    ) -> dict[str, frozenset[int]]:
        found: list[tuple[int, str, frozenset[int]]] = []
        for name, tensor in tensors:
            known = self._tainted.get(tensor.key, unseen)
            if known is not None and tensor.is_float and not tensor.is_finite():
                found.append((known[0], name, known[1]))
        return {name: origins for _, name, origins in sorted(found, key=lambda item: item[0])}

    def _originate(
        self,
        op: SeenOp,
        out: Values,
        index: int,
        given: Sequence[Values],
        parents: frozenset[int],
    ) -> int:
        if op.name in MAKES_NONE or op.is_scaling:
            return self._another(op, out)
        dtypes = [values.dtype for values in given]
        if op.name == "copy_" and not parents and dtypes == [out.dtype, out.dtype]:
            # A copy within a dtype makes nothing: its input has changed since it was observed.
            sent = self._sent()
            if sent:
                return sent[-1]
        self._spread(parents, op)
        # NaN of infinities is no question of precision: inf - inf, 0 * inf.
        answer = Answer(Fault.INVALID) if parents else op.ask(index)
        return self._add(
            OriginKind.OP,
            op,
            out,
            out_index=index,
            inputs=tuple(given),
            parents=parents,
            answer=answer,
        )

    def _found(self, op: SeenOp, key: int, values: Values) -> int:
        """Return the origin of values that no op was seen to make."""
        if key in self._hidden:
            return self._another(op, values)
        known = self._foreign.get(key)
        if known is None:
            kind, name = self._owner(key)
            if kind is OriginKind.INPUT and self._is_made_unseen(op, key):
                return self._found_unseen(op, key, values)
            sent = self._sent() if kind is OriginKind.INPUT and op.phase is Phase.BACKWARD else ()
            known = sent[-1] if sent else self._add(kind, op, values, name=name)
            self._foreign[key] = known
        return known

    def _is_made_unseen(self, op: SeenOp, key: int) -> bool:
        """Whether values that no op has written are those of code that computes without ops."""
        is_after = op.phase in (Phase.BACKWARD, Phase.OPTIMIZER)
        return key in self._unseen or (self._has_unseen and is_after)

    def _found_unseen(self, op: SeenOp, key: int, values: Values) -> int:
        before = self._before_unseen()
        if before:
            return before[0]
        # A gradient that nobody has seen being made says nothing about the op that reads it.
        if key not in self._unseen:
            return self._another(op, values)
        index = self._add(OriginKind.OP, op, values)
        self._origins[index].is_unseen = True
        return index

    def _before_unseen(self) -> list[int]:
        """Return the origin that what was made unseen comes from, if any: the first that is no mask."""
        return [
            origin.index
            for origin in self._origins
            if self._has_unseen
            and origin.kind not in (OriginKind.OTHER, OriginKind.SENT)
            and not origin.out.is_negative_only
        ][:1]

    def _sent(self) -> list[int]:
        """Return what hooks of backward have made: it may come back in another thread, unseen.

        Those of ``DistributedDataParallel`` send it to other ranks, and write down what returns
        when it does.
        """
        return [
            origin.index
            for origin in self._origins
            if origin.is_hook and origin.kind is OriginKind.OP and not origin.absorbed_by
        ]

    def _constant(self, op: SeenOp, number: float) -> int:
        out = Values("", 1, math.isnan(number), number == math.inf, number == -math.inf)
        return self._add(OriginKind.CONSTANT, op, out)

    def _another(self, op: SeenOp, out: Values) -> int:
        """Return the origin that stands for all that are not distinguished."""
        if self._other is None:
            self._other = self._add(OriginKind.OTHER, op, out)
        return self._other

    def _add(
        self,
        kind: OriginKind,
        op: SeenOp,
        out: Values,
        *,
        name: str = "",
        out_index: int = 0,
        inputs: Sequence[Values] = (),
        parents: frozenset[int] = frozenset(),
        answer: Answer = NOT_ASKED,
    ) -> int:
        if len(self._origins) >= MAX_ORIGINS and kind is not OriginKind.OTHER:
            return self._another(op, out)
        origin = Origin(
            index=len(self._origins),
            kind=kind,
            name=name,
            op=op.name,
            module=op.module,
            is_inside=op.is_inside,
            phase=op.phase,
            out=out,
            out_index=out_index,
            inputs=inputs,
            parents=parents,
            needs_grad=op.needs_grad,
            answer=answer,
            **op.facts()._asdict(),
        )
        self._origins.append(origin)
        return origin.index

    def _spread(self, origins: Iterable[int], op: SeenOp) -> None:
        where = op.module if op.is_inside else "loss"
        for number in origins:
            origin = self._origins[number]
            if op.phase is Phase.BACKWARD:
                origin.in_backward = True
            else:
                origin.spread_to.add(where)
                origin.joins_graph |= op.needs_grad and op.phase is Phase.FORWARD


def _hides(op: SeenOp) -> bool:
    """Whether an op reads gradients where the user's code does, and not a node or an optimizer."""
    return op.name not in WRITES_ONLY and not _reads_no_values(op.name) and op.is_beside_graph()


def _reads_no_values(name: str) -> bool:
    """Whether an op reads the shape of its input, and none of its values."""
    return name.endswith("_like") or name.startswith("new_")
