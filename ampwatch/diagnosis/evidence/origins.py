"""Values that are not finite: where they came up, and what became of them."""

from __future__ import annotations

import math
from collections import Counter
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct, field

from ampwatch.wire.records import in_words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ampwatch.numerics.units.ops import Phase
    from ampwatch.wire.records import Tried


class OriginKind(Enum):
    """Sources of non-finite values.

    ``OP``: an op whose inputs were finite, or infinite where the values are NaN. ``CONSTANT``: a
    non-finite Python number. ``INPUT``: a tensor that no op that was seen has made.
    ``PARAMETER``, ``BUFFER``: one of the watched models. ``SENT``: another process, by a collective
    that was given nothing but finite values here. ``OTHER``: the loss scale, or more origins than are
    kept apart.
    """

    OP = "op"
    CONSTANT = "constant"
    INPUT = "input"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    SENT = "sent"
    OTHER = "other"


HELD = (OriginKind.PARAMETER, OriginKind.BUFFER)
"""What a model holds."""


class Fault(Enum):
    """Reasons why an op of finite numbers has a result that is not finite.

    ``OVERFLOW``: the result is a number, and too large for the format. ``POINT``: there is none at
    this very point, and one beside it: something is zero, or all but zero, or has come to the end
    of a domain. ``INVALID``: there is none here and none near by, however precise. ``UNKNOWN``: the
    op could not be computed again.
    """

    OVERFLOW = "overflow"
    POINT = "point"
    INVALID = "invalid"
    UNKNOWN = "unknown"


class Answer(NamedTuple):
    """Result of an op that was computed once more in float64.

    Attributes:
        fault: Why the first result was not finite.
        amax: Largest magnitude of the result; infinite at a point without one, NaN if unknown.
    """

    fault: Fault = Fault.UNKNOWN
    amax: float = math.nan


NOT_ASKED = Answer()


class Values(NamedTuple):
    """Facts that are known of the values of one tensor.

    Attributes:
        dtype: Name of its dtype.
        numel: Number of its elements.
        nans: Whether any is NaN.
        posinf: Whether any is positive infinity.
        neginf: Whether any is negative infinity.
        amax: Largest magnitude of its finite elements; NaN if unknown.
        amin: Smallest magnitude of its elements, zero included; NaN if unknown.
    """

    dtype: str
    numel: int
    nans: bool = False
    posinf: bool = False
    neginf: bool = False
    amax: float = math.nan
    amin: float = math.nan

    @property
    def is_finite(self) -> bool:
        """Whether all elements are finite."""
        return not (self.nans or self.posinf or self.neginf)

    def in_words(self) -> str:
        """Return what is not finite of them."""
        names = ["NaN"] * self.nans + ["inf"] * self.posinf + ["-inf"] * self.neginf
        return " and ".join(names)

    @property
    def is_negative_only(self) -> bool:
        """Whether what is not finite is negative infinity, as masks are."""
        return self.neginf and not (self.nans or self.posinf)


class Origin(Struct):
    """Non-finite values where they are seen first.

    Attributes:
        index: Place in the order of origins of one iteration.
        kind: Where they come from.
        name: Of a parameter or buffer its name, else empty.
        op: Base name of the ATen op; of an input the one that reads it.
        overload: The op's full name (``aten.mul.Tensor``).
        module: Qualified name of the module that was running; empty for the root and outside.
        is_inside: Whether a watched module was running.
        phase: The part of the iteration.
        out: The non-finite output, or the input.
        out_index: Which of the op's outputs it is.
        inputs: The floating-point inputs of the op, as far as their values are known.
        parents: Origins of the infinities that NaN were made of.
        reads_posinf: Whether one of these was positive when the op read it, whatever its sign was at first.
        reads_graph: Whether these had a graph when the op read them.
        needs_grad: Whether an input of the op requires a gradient.
        number: The Python number given as second argument, an exponent or a divisor; NaN without.
        is_stepping: Whether an optimizer was stepping.
        gradient: Parameter whose gradient was read, between backward and the optimizer's step.
        is_hook: Whether it ran in backward, but in no node of the graph: in a hook, as those of
            ``DistributedDataParallel``.
        derivative_of: Op whose derivative it is a part of; empty in forward, in the user's own functions, and if unknown.
        source: File and line of the user's code, of a derivative that of the op in forward,
            or of ``backward()`` if that is not known; empty if unknown.
        has_autocast: Whether autocast was on there; ``None`` if that is not known.
        reads_argument: Whether it reads what the model was called with; ``False`` also if unknown.
        answer: Result of the op in float64, if its inputs were finite.
        is_unseen: Whether no op was seen to make them, as none of fused code is, nor what goes into a loss without
            a graph: the op is the first that reads them, and they are what it has read.
        absorbed_by: Ops that read the values and returned finite ones, and how often.
        hidden_by: Op outside of the graph, in a hook of backward or between it and the step, that has
            made finite numbers of a gradient; empty without one.
        spread_to: Modules (``loss`` outside of all) in which values made of these were not finite.
        joins_graph: Whether what an op has made of these, and of what requires a gradient, was not finite.
        in_backward: Whether values made of these were not finite in backward.
    """

    index: int
    kind: OriginKind
    name: str
    op: str
    overload: str
    module: str
    is_inside: bool
    phase: Phase
    out: Values
    out_index: int = 0
    inputs: Sequence[Values] = ()
    parents: frozenset[int] = frozenset()
    reads_posinf: bool = False
    reads_graph: bool = False
    needs_grad: bool = False
    number: float = math.nan
    is_stepping: bool = False
    gradient: str = ""
    is_hook: bool = False
    derivative_of: str = ""
    source: str = ""
    has_autocast: bool | None = None
    reads_argument: bool = False
    answer: Answer = NOT_ASKED
    is_unseen: bool = False
    absorbed_by: Counter[str] = field(default_factory=Counter)
    hidden_by: str = ""
    spread_to: set[str] = field(default_factory=set)
    joins_graph: bool = False
    in_backward: bool = False

    @property
    def place(self) -> str:
        """The module in which it is, or ``loss`` outside of all."""
        return self.module if self.is_inside else "loss"

    @property
    def in_amax(self) -> float:
        """Largest magnitude of the inputs; NaN if unknown."""
        known = [values.amax for values in self.inputs if not math.isnan(values.amax)]
        return max(known, default=math.nan)


class Writer(NamedTuple):
    """The first op that has written a gradient that was not finite into a parameter.

    Attributes:
        op: Base name of the ATen op; empty if an optimizer's step did it.
        source: File and line of the user's code; empty if unknown.
    """

    op: str
    source: str


class OpTrace(Struct):
    """Origins in one iteration that was traced op by op.

    Attributes:
        step: The iteration.
        origins: In order.
        bad_gradients: Name of each parameter whose gradient is not finite at the end, in the order
            in which they became so, to the origins that its values are made of.
        bad_parameters: The same of each parameter that an op has made non-finite; empty on a device.
        writer: The op that has made them so outside of a step; ``None`` without one.
        num_ops: Ops that were observed.
        loss_nonfinite: Whether the loss is known not to be finite; ``None`` if it was not seen.
        has_trained: Whether gradients were computed.
        scale: The loss scale; NaN without one, or where the host does not know it.
        is_scaled: Whether an enabled scaler skips steps whose gradients are not finite.
        is_replay: Whether the forward pass was run again on a replica, without backward. There are no
            gradients then, and ``loss_nonfinite`` says it of the output.
        of_compiled: Whether it was compiled code that had failed, and was run again eagerly.
        tried: Remedies that were tried on the batch that failed.
        is_refused: Whether an exception has ended it, of a function that refuses what is not finite.
    """

    step: int
    origins: Sequence[Origin] = ()
    bad_gradients: Mapping[str, frozenset[int]] = field(default_factory=dict)
    bad_parameters: Mapping[str, frozenset[int]] = field(default_factory=dict)
    writer: Writer | None = None
    num_ops: int = 0
    loss_nonfinite: bool | None = None
    has_trained: bool = False
    scale: float = math.nan
    is_scaled: bool = False
    is_replay: bool = False
    of_compiled: bool = False
    tried: Sequence[Tried] = ()
    is_refused: bool = False

    @property
    def gradient_origins(self) -> list[Origin]:
        """Origins that the gradients which are not finite at the end are made of."""
        return [self.origins[i] for i in sorted(frozenset().union(*self.bad_gradients.values()))]

    @property
    def holds_nans(self) -> bool:
        """Whether what the model holds has NaN: what is made of that has, and of masks as well."""
        return any(origin.kind in HELD and origin.out.nans for origin in self.origins)

    @property
    def harmful(self) -> list[Origin]:
        """Parameters and buffers that have made the loss or gradients non-finite, if nothing else has.

        Else they are not to blame: a mask may be read in a step that fails.
        """
        made = self.gradient_origins
        if not (self.loss_nonfinite or (made and all(origin.parents for origin in made))):
            return []
        for origin in self.origins:
            is_given = self.holds_nans or origin.kind is not OriginKind.OP
            is_mask = origin.out.is_negative_only and is_given
            is_after = origin.is_stepping  # as a moment that has been NaN for longer
            if not (origin.parents or origin.kind in HELD or is_mask or is_after):
                return []
        return [o for o in self.origins if o.kind in HELD and o.in_backward]

    def sent(self) -> str:
        """Return, as a sentence, which gradient another rank has made non-finite; empty if one is made here."""
        made = frozenset().union(*self.bad_gradients.values())
        for origin in reversed(self.origins):
            if origin.parents and origin.index in made:  # NaN of infinities: look for these
                made = made - {origin.index} | origin.parents
        if not made or any(self.origins[i].kind is not OriginKind.SENT for i in made):
            return ""
        # With weights that were not finite before it, what is sent shows nothing of how they became so.
        if any(o.kind is OriginKind.PARAMETER and not o.out.is_negative_only for o in self.origins):
            return ""
        where = in_words(f"param:{next(iter(self.bad_gradients))}")
        return (
            f"no op of this rank made the gradient of {where} non-finite: {self.origins[min(made)].op} brought it"
            f" from another rank at step {self.step}, whose findings name the op"
        )


class BadInput(NamedTuple):
    """A model was given values that are not finite, and more than a mask of negative infinity.

    Attributes:
        step: The iteration.
        nans: Whether any is NaN.
        numel: Elements of its inputs.
        source: File and line of the call; empty if unknown.
    """

    step: int
    nans: bool
    numel: int
    source: str
