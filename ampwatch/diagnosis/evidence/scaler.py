"""Observations of scalers, casts and compiled code, made on the spot; no torch here."""

from __future__ import annotations

from typing import NamedTuple


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
