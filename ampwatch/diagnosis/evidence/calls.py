"""Observations of the sensors of API use, made on the spot: plain names and numbers."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class ScaledClip(NamedTuple):
    """Gradients were clipped while they were multiplied by the loss scale, and unscaled after that.

    Attributes:
        step: Index of the iteration.
        optimizer: Number of the optimizer whose gradients they are.
        function: Name of the function that clipped.
        limit: Its ``max_norm`` or ``clip_value``.
        norm: Norm of the gradients, NaN if there is none.
        scale: The loss scale, NaN where the host does not know it.
        source: ``file:line`` of the call.
    """

    step: int
    optimizer: int
    function: str
    limit: float
    norm: float
    scale: float
    source: str


class RescaledGradients(NamedTuple):
    """The program has changed gradients that were multiplied by the loss scale, and are unscaled after that.

    Attributes:
        step: Index of the iteration.
        optimizer: Number of the optimizer whose gradients they are.
        before: Norm of those gradients that were changed, all together, before.
        after: Their norm after it.
        gradients: How many were changed.
        scale: The loss scale, NaN where the host does not know it.
        source: ``file:line`` of the change.
    """

    step: int
    optimizer: int
    before: float
    after: float
    gradients: int
    scale: float
    source: str


class NonfiniteClip(NamedTuple):
    """Gradients were clipped by a norm that is not finite, and the step was taken.

    Attributes:
        step: Index of the iteration.
        optimizer: Number of the optimizer that stepped.
        parameter: Name of the parameter whose gradient was not finite before; empty if unknown.
        broken: Elements of its gradient that were not finite.
        norm: The norm.
        limit: ``max_norm``.
        source: ``file:line`` of the call.
    """

    step: int
    optimizer: int
    parameter: str
    broken: int
    norm: float
    limit: float
    source: str


class ScaledStep(NamedTuple):
    """An optimizer was stepped, not through the scaler, with gradients of scaled losses.

    Attributes:
        step: Index of the iteration.
        optimizer: Number of the optimizer.
        scale: The loss scale, NaN where the host does not know it.
        parameters: Number of parameters with these gradients.
        source: ``file:line`` of the step.
        is_compiled: Whether the step is inside of compiled code: not seen itself, but weights have moved.
    """

    step: int
    optimizer: int
    scale: float
    parameters: int
    source: str
    is_compiled: bool = False


class Mix(Enum):
    """What is wrong with gradients that are about to be unscaled, or stepped with.

    ``BESIDE``: they hold an unscaled loss beside scaled ones.
    ``UNSCALED``: they hold unscaled losses alone.
    ``AFTER_UNSCALE``: a scaled loss came after ``unscale_``.
    ``TWICE``: ``unscale_`` has divided them, or a part of them, and they are divided again.
    """

    BESIDE = "beside"
    UNSCALED = "unscaled"
    AFTER_UNSCALE = "after_unscale"
    TWICE = "twice"


class MixedGradients(NamedTuple):
    """Gradients of scaled and of unscaled losses are about to be unscaled, or stepped, together.

    Attributes:
        step: Index of the iteration.
        optimizer: Number of the optimizer.
        scale: The loss scale, NaN where the host does not know it.
        parameter: Name of a parameter whose gradient is not, or not only, of scaled losses.
        parameters: Number of parameters like that.
        mix: What is wrong with them.
        source: ``file:line`` of the backward that does not fit, or of the second division.
    """

    step: int
    optimizer: int
    scale: float
    parameter: str
    parameters: int
    mix: Mix
    source: str


class ScaledPenalty(NamedTuple):
    """A step is made with a loss that holds gradients of a scaled loss, and nothing has divided them by the scale.

    Attributes:
        step: Index of the iteration.
        optimizer: Number of the optimizer.
        scale: The loss scale, NaN where the host does not know it.
        source: ``file:line`` of ``torch.autograd.grad``.
    """

    step: int
    optimizer: int
    scale: float
    source: str


class MixedScales(NamedTuple):
    """Gradients of losses that were multiplied by another scale than they are divided by.

    Attributes:
        step: Index of the iteration in which they are unscaled.
        optimizer: Number of the optimizer.
        scale: The scale they are divided by.
        other: The scale, of those they were multiplied by, that is farthest from it.
        updates: Updates of the scaler between the first of them and the end.
        parameters: Number of parameters with these gradients.
        source: ``file:line`` of the call that unscales them.
        is_of_other: Whether that scale is the one of another scaler.
    """

    step: int
    optimizer: int
    scale: float
    other: float
    updates: int
    parameters: int
    source: str
    is_of_other: bool = False


class AutocastBackward(NamedTuple):
    """Gradients were computed inside an autocast region.

    Attributes:
        step: Index of the iteration.
        dtype: Name of the dtype of the region.
        source: ``file:line`` of the call.
        is_held: Whether the region goes on from iteration to iteration.
        region_of: The framework that has entered the region; empty where it is the user's.
    """

    step: int
    dtype: str
    source: str
    is_held: bool = False
    region_of: str = ""


class RefusedOp(NamedTuple):
    """An op ran under autocast on a CPU that autocast refuses on a GPU.

    Attributes:
        step: Index of the iteration.
        op: Its name.
        where: Qualified name of the module that was running, or ``loss``.
        dtype: Name of the dtype that its input was rounded to.
        source: ``file:line`` of the call.
    """

    step: int
    op: str
    where: str
    dtype: str
    source: str


class Raised(NamedTuple):
    """The exception that ended the training.

    Attributes:
        step: Index of the open iteration.
        type_name: Name of its class.
        message: What it says.
        module: Qualified name of the watched module that was running, ``None`` outside of all.
        module_type: Name of that module's class.
        op: Name of the function, method or operator that raised it; empty if unknown.
        optimizer: Number of the optimizer that PyTorch was at work with, -1 without.
        in_backward: It was raised while going back.
        without_gradient: Parameters of the optimizer without a gradient, by reason.
        parameters: How many parameters the optimizer has.
        source: ``file:line`` of the user's innermost line.
        in_float16: Parameters of the optimizer that are float16 themselves.
        in_function: It was raised by the ``backward`` of an ``autograd.Function`` of the user's.
        variables: What the tensors in the variables of that line's frame held, where it refuses what is
            not finite: name, dtype, and whether all elements are finite.
        in_half: The training has run under autocast, or has parameters in half precision.
    """

    step: int
    type_name: str
    message: str
    module: str | None
    module_type: str
    op: str
    optimizer: int
    in_backward: bool
    without_gradient: tuple[tuple[str, tuple[str, ...]], ...]
    parameters: int
    source: str
    in_float16: tuple[str, ...] = ()
    in_function: bool = False
    variables: tuple[tuple[str, str, bool], ...] = ()
    in_half: bool = False
