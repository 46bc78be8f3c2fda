"""The events of a training: what the bus tells sensors of.

A sensor that wants one has a method of the event's name in lower case: ``updating`` for
``Updating``. *-ing* is before the call of PyTorch that it is named after, *-ed* after it has
returned. Tensors and modules in an event belong to the user and must not be kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Sequence

    import torch
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from ampwatch.diagnosis.evidence.iteration import Attention, Iteration, StepTime
    from ampwatch.wire.ring.requests import Request

    GradScaler = torch.amp.GradScaler


class Scaled(NamedTuple):
    """``scaler.scale(outputs)`` has multiplied losses by the loss scale.

    Attributes:
        scaler: The scaler.
        outputs: The losses, as the user gave them: a tensor, a list of them, an iterator.
        result: What it has returned.
    """

    scaler: GradScaler
    outputs: object
    result: object


class ScaleRead(NamedTuple):
    """``scaler.get_scale()`` is about to be read, as a rule to scale something by hand."""

    scaler: GradScaler


class Unscaling(NamedTuple):
    """The user has called ``scaler.unscale_(optimizer)``; not where ``scaler.step`` does."""

    scaler: GradScaler
    optimizer: Optimizer


class Unscaled(NamedTuple):
    """The user's ``scaler.unscale_(optimizer)`` has returned."""

    scaler: GradScaler
    optimizer: Optimizer


class StepBegan(NamedTuple):
    """``scaler.step(optimizer)`` begins."""

    scaler: GradScaler
    optimizer: Optimizer


class StepEnded(NamedTuple):
    """``scaler.step(optimizer)`` has returned; whether it has stepped, its verdict says."""

    scaler: GradScaler
    optimizer: Optimizer


class Updating(NamedTuple):
    """``scaler.update()`` is about to forget its verdicts and to change the scale."""

    scaler: GradScaler


class Updated(NamedTuple):
    """``scaler.update(new_scale)`` has returned.

    Attributes:
        scaler: The scaler.
        is_given: Whether the user has handed in the new scale.
    """

    scaler: GradScaler
    is_given: bool


class ScalerLoaded(NamedTuple):
    """``scaler.load_state_dict`` has returned."""

    scaler: GradScaler


class OptimizerLoaded(NamedTuple):
    """``optimizer.load_state_dict`` has returned."""

    optimizer: Optimizer


class OptimizerStepping(NamedTuple):
    """``optimizer.step()`` begins, called by a scaler or by the user, or within another step."""

    optimizer: Optimizer


class OptimizerStepped(NamedTuple):
    """``optimizer.step()`` has returned, called by a scaler or by the user.

    Attributes:
        optimizer: The optimizer.
        by_scaler: Whether the watched scaler has called it.
        is_outermost: Not within the step of a wrapper, nor by ``super().step()``.
    """

    optimizer: Optimizer
    by_scaler: bool
    is_outermost: bool


class EndCalled(NamedTuple):
    """A call begins that may end an iteration: one that a ``LossScaler`` names, or ``end_iteration``.

    Attributes:
        scale: The loss scale of this iteration, a float or a tensor that is read later; ``None`` if it
            is not known.
    """

    scale: object


class EndReturned(NamedTuple):
    """A call has ended the iteration.

    Attributes:
        scale: The loss scale from here on, likewise.
        skipped: Whether the step was skipped: a bool, a tensor that is read later, or NaN if that is
            not known.
    """

    scale: object
    skipped: object


class ScaleSeen(NamedTuple):
    """A loss was multiplied by a scale of a scaler that nobody has handed in."""

    scale: float


class StepMissed(NamedTuple):
    """Gradients of the open iteration were thrown away without a step: it was skipped.

    Attributes:
        scale_before: The scale that the loss was multiplied by.
        scale: The scale from here on.
    """

    scale_before: float
    scale: float


class BatchAwaited(NamedTuple):
    """The program asks an iterator of a ``DataLoader`` for its next batch. Only its moment is noted."""


class BatchArrived(NamedTuple):
    """It has the batch, or there is none any more, or the loader has raised. Only its moment is noted."""


class CommunicationAwaited(NamedTuple):
    """The program begins to wait for a collective (``torch.distributed.Work.wait``).

    Not within a backward: that is ``CommunicationAwaitedWithin``. Only its moment is noted.
    """


class CommunicationAwaitedWithin(NamedTuple):
    """The program begins to wait for a collective while a backward runs. Only its moment is noted."""


class CommunicationArrived(NamedTuple):
    """The program has waited for a collective; on a device only the stream may have to. Only its moment is noted."""


class ClipBegan(NamedTuple):
    """A function of ``torch.nn.utils`` begins to take a norm of gradients, or to clip them.

    Only its moment is noted.
    """


class ClipEnded(NamedTuple):
    """It has returned, or raised. Only its moment is noted."""


class Zeroed(NamedTuple):
    """``zero_grad()`` of an optimizer or of a module has returned."""

    owner: Optimizer | nn.Module


class ClippingByNorm(NamedTuple):
    """Gradients are about to be scaled down to a norm.

    Attributes:
        parameters: Whose gradients, as the user gave them.
        limit: ``max_norm``, as the user gave it.
        norm: Their norm, where PyTorch has computed it before.
    """

    parameters: object
    limit: object
    norm: object


class ClippingByValue(NamedTuple):
    """``clip_grad_value_`` is about to limit gradients one by one.

    Attributes:
        gradients: The gradients.
        limit: ``clip_value``, as the user gave it.
    """

    gradients: Sequence[Tensor]
    limit: object


class BackwardBegan(NamedTuple):
    """``Tensor.backward`` or ``torch.autograd.backward`` begins, and not within another one.

    Not where its graph is known to lead to the parameters of other trainings alone.

    A handler returns what is to be called once backward has returned, or ``None``. It is dropped
    with the call also where backward raises: nothing of a graph outlives its backward here.

    Attributes:
        tensors: Where it begins.
        gradients: The gradients given by hand, empty without any.
        is_alone: Whether no other thread is in one; otherwise that may be another training's.
    """

    tensors: tuple[Any, ...]
    gradients: tuple[Any, ...]
    is_alone: bool = True


class GradientsTaken(NamedTuple):
    """``torch.autograd.grad(..., create_graph=True)`` has returned.

    Attributes:
        outputs: Tensors that were differentiated, or ``GradientEdge``.
        starts: Gradients of these that backward began with.
        gradients: Results, ``None`` for an input that was not used.
    """

    outputs: tuple[Any, ...]
    starts: tuple[Any, ...]
    gradients: tuple[Any, ...]


class BackwardEnded(NamedTuple):
    """It has returned, and has not raised. Only its moment is noted."""


class AutocastEntering(NamedTuple):
    """A ``torch.autocast`` region is about to be entered in the calling thread."""

    region: torch.autocast


class AutocastLeft(NamedTuple):
    """A ``torch.autocast`` region has been left in the calling thread."""


class ExitCalled(NamedTuple):
    """``sys.exit`` is called with a status that says failed."""


class CompileCalled(NamedTuple):
    """``torch.compile`` was called; nothing runs compiled yet."""


class CompiledEntering(NamedTuple):
    """Compiled code is about to run, for the first time while this training is watched.

    PyTorch has not compiled it yet, nor asked what hooks there are. Where it has no place at which
    that could be seen, and before 2.10, as soon as ``torch.compile`` is called.
    """


class GraphCaptured(NamedTuple):
    """``torch.compile`` hands a graph that it has captured to its backend.

    Attributes:
        graph: The ``torch.fx.GraphModule``.
        inputs: Its example inputs.
    """

    graph: Any
    inputs: Any


class ForwardBegan(NamedTuple):
    """A module is about to run. On demand, see ``Bus.listen``."""

    module: nn.Module
    args: Any


class ForwardReturned(NamedTuple):
    """A module has returned ``output``, before the user's hooks see it. On demand.

    Attributes:
        module: The module.
        args: What it was called with by position.
        output: What it returned.
    """

    module: nn.Module
    args: Any
    output: Any


class ForwardEnded(NamedTuple):
    """A module has run, or has raised. On demand."""

    module: nn.Module


class SavedTensorsHooked(NamedTuple):
    """A region begins in which what autograd saves goes through hooks: checkpointing, offloading."""


class RootCalled(NamedTuple):
    """A watched model is about to be called, by itself or by what wraps it. On demand.

    Attributes:
        module: The model without its wrappers.
        args: Its positional arguments; may be read, and kept no longer than is stated where.
        kwargs: Its keyword arguments.
    """

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class RootReturned(NamedTuple):
    """A watched model has returned ``output``. On demand."""

    module: nn.Module
    output: Any


class AlteredCalled(NamedTuple):
    """A function is about to be called that PyTorch computes otherwise under a dispatch mode.

    On demand.
    """

    name: str


class TensorsSwapping(NamedTuple):
    """PyTorch is about to swap two tensors, which it refuses to do while one is referred to weakly.

    ``Module.to`` swaps parameters, and their gradients, of wrapper subclasses, and all of them under
    ``torch.__future__.set_swap_module_params_on_conversion``.
    """


class SchedulerStepped(NamedTuple):
    """The learning-rate schedule of ``optimizer`` has moved since that stepped last."""

    optimizer: Optimizer


class FactsChanged(NamedTuple):
    """Something that is recorded once is new: a dtype of autocast, the settings of the scaler."""


class DevicesKnown(NamedTuple):
    """It is known on which devices the training is (``Context.home``), or they have changed.

    At set-up, and again where the model has moved since: the time to pin memory and to compile.

    Attributes:
        has_accelerator: Whether values come from an accelerator, through pinned memory.
    """

    has_accelerator: bool


class Requested(NamedTuple):
    """Another process asks for something that is no trace.

    Attributes:
        request: What it asks for.
        answer: To be called once by whoever knows: with why there is none, in words, or with nothing
            if it was written to the file of the request.
    """

    request: Request
    answer: Callable[[str], None]


class CollectiveBegan(NamedTuple):
    """A collective has begun, and the memory of its results is not to be read yet.

    Attributes:
        targets: The tensors that it writes.
        work: The handle to wait for.
    """

    targets: Sequence[Tensor]
    work: Any


class CollectiveWaited(NamedTuple):
    """The program has waited for a collective: what it has written can be read.

    Attributes:
        work: The handle.
    """

    work: Any


class SensorFailed(NamedTuple):
    """A sensor has failed and is switched off.

    Attributes:
        sensor: Its name.
        errors: Exceptions of it that were kept from training so far.
        error: The newest one.
    """

    sensor: str
    errors: int
    error: Exception


class IterationClosing(NamedTuple):
    """The open iteration is about to end; gradients and weights are as the last step left them.

    Attributes:
        has_nonfinite: Whether something in it is known on the host not to be finite.
    """

    has_nonfinite: bool


class IterationClosed(NamedTuple):
    """An iteration has ended, and is on its way to the diagnosis.

    Attributes:
        iteration: What the host knows of it; a sensor adds what it has seen.
    """

    iteration: Iteration


class IterationOpened(NamedTuple):
    """The next iteration begins; or has begun, where those before it were alike and nobody was notified.

    Attributes:
        step: Its index.
        duration_s: Wall time of the one before, or of all since the one that was reported last; NaN for the first. Unit: s.
        attention: What the diagnosis asks for.
    """

    step: int
    duration_s: float
    attention: Attention


class IterationPlanned(NamedTuple):
    """Something is to be measured or observed in the iteration that begins, or was in the last.

    Between two iterations of which nothing is asked nobody has to be notified.

    Attributes:
        step: Its index.
        attention: What the diagnosis asks for.
    """

    step: int
    attention: Attention


class IterationsArriving(NamedTuple):
    """Iterations that have ended are about to be judged: several at once, where all is well.

    Attributes:
        times: Where their time went, by their indices, in order; to be added to.
    """

    times: deque[tuple[int, StepTime]]


class IterationArrived(NamedTuple):
    """Everything about an iteration has reached the host.

    Attributes:
        iteration: The iteration.
        is_alarming: Something in it was not finite, or its scale is so small that its inverse
            is not.
        ends_alarm: It is the first without after iterations that were alarming.
    """

    iteration: Iteration
    is_alarming: bool
    ends_alarm: bool


ON_DEMAND = frozenset(
    {ForwardBegan, ForwardReturned, ForwardEnded, RootCalled, RootReturned, AlteredCalled}
)
"""Events whose place is not free while it is on: sensors ask for them when they need them."""

EACH_STEP = (
    AutocastEntering,
    AutocastLeft,
    BackwardBegan,
    IterationClosed,
    OptimizerStepped,
    Scaled,
    StepBegan,
    StepEnded,
    Unscaled,
    Unscaling,
    Updated,
    Updating,
    Zeroed,
)
"""Events of each step of a quiet training, which sensors that rest go without."""
