"""Observations of scalers, casts, compiled code, state and replicas, made on the spot; no torch here."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ampwatch.wire.records import ChecksumRecord


class SoundBuffers(NamedTuple):
    """Floating-point buffers before the first iteration.

    Attributes:
        names: Names of those without NaN and infinities.
        broken: Names of the others.
    """

    names: frozenset[str]
    broken: frozenset[str] = frozenset()


class BadOption(NamedTuple):
    """An option of an optimizer that is NaN or infinite, as a schedule may make it.

    Attributes:
        step: The iteration.
        name: Its name in the parameter group: ``lr``, ``weight_decay``.
        value: Its value.
        optimizer: Number of the optimizer.
    """

    step: int
    name: str
    value: float
    optimizer: int


class BrokenWeights(NamedTuple):
    """Parameters that were NaN before the first iteration, and still are at its end, or infinite, and that does harm.

    Attributes:
        step: The iteration.
        first: Name of the first of them, in the order of the model.
        dtype: Name of its dtype.
        tensors: How many there are.
        what: What they have.
    """

    step: int
    first: str
    dtype: str
    tensors: int
    what: str = "NaN"


GROUPS = 4
"""Groups that the weights of a check are summed in: where some have come apart, the others say
whether the ranks still train together."""


KEPT_CHECKS = 4
"""Newest checks of the weights of a rank that are compared with those of others."""


class CheckedWeights(NamedTuple):
    """The newest checks of the ranks of a machine.

    Attributes:
        step: The open iteration.
        checks: By rank, the oldest first; that of this rank among them.
    """

    step: int
    checks: Mapping[int, Sequence[ChecksumRecord]]


class ScalerChange(NamedTuple):
    """The state of the loss scale is another one than that of the iteration before.

    Attributes:
        step: The open iteration, the first with the new state.
        loaded: ``load_state_dict`` put the state there.
        resumed: The optimizer goes on with what it had: it is the same one, or was restored.
        known_before: Whether the iterations before were of this training, so that the scale
            before it is known.
        made_anew: A scaler that the program has made meanwhile steps the optimizer of before, and
            nothing was loaded into either.
    """

    step: int
    loaded: bool
    resumed: bool
    known_before: bool = True
    made_anew: bool = False


class UnscaledStep(NamedTuple):
    """An optimizer steps with gradients that come out of float16, and no scaler has scaled the loss.

    Attributes:
        step: The open iteration.
    """

    step: int


class StaleCast(NamedTuple):
    """A graph that was built after a weight had changed uses a cast from before.

    Attributes:
        step: The open iteration.
        parameter: Qualified name of the first stale weight.
        casts: Number of stale casts.
        dtype: What the weight is cast to.
    """

    step: int
    parameter: str
    casts: int
    dtype: str


class CompiledGradients(NamedTuple):
    """Gradients of a protected region of compiled code after a backward outside of autocast.

    Attributes:
        step: The open iteration.
        parameter: Qualified name of the parameter with most non-finite elements; empty without
            a name.
        op: The op that computed its gradient, where known.
        dtype: The dtype of the autocast region that the code was traced in.
        nonfinite: Its non-finite elements.
        parameters: How many parameters have some.
        is_scaled: Whether a scaler multiplies the loss, and skips steps that are not finite.
    """

    step: int
    parameter: str
    op: str
    dtype: str
    nonfinite: int
    parameters: int
    is_scaled: bool


class ReplicaVerdicts(NamedTuple):
    """Two replicas that were equal up to here disagree on whether to take a step.

    Attributes:
        step: The open iteration.
        optimizer: Number of the watched replica's optimizer.
        here: Whether its gradients were found non-finite.
        replicas: Replicas that are known.
        skipping: Of those, with the watched one, that skip.
        common_steps: Steps that they took together before.
        loss_scale: The scale of all of them.
    """

    step: int
    optimizer: int
    here: bool
    replicas: int
    skipping: int
    common_steps: int
    loss_scale: float
