"""Facts of the training besides its ops, for those who follow non-finite values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from ampwatch.diagnosis.evidence.origins import OpTrace
    from ampwatch.training.iteration.context import Context
    from ampwatch.training.model.names import Names


class Named(Protocol):
    """Names of parameters and buffers."""

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield name and tensor of each parameter."""

    def buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Yield name and tensor of each buffer."""


class Around(Protocol):
    """What those who follow non-finite values have to know besides the ops; see ``Surroundings``."""

    @property
    def names(self) -> Named:
        """Names of parameters and buffers."""

    @property
    def is_stepping(self) -> bool:
        """Whether an optimizer is stepping."""

    @property
    def scale(self) -> Tensor | None:
        """The scaler's scale."""

    @property
    def loss_parts(self) -> tuple[float | None, Tensor | None]:
        """The loss: on the host, and on a device."""

    def deliver(self, trace: OpTrace) -> None:
        """Take the trace of an iteration."""


class Surroundings:
    """Gives the scale, the losses and the steps around the ops, and takes traces.

    Args:
        context: Shared parts of the training.

    Attributes:
        names: Names of parameters and buffers.
    """

    def __init__(self, context: Context) -> None:
        self.names: Names = context.names
        self._context = context

    @property
    def is_stepping(self) -> bool:
        """Whether an optimizer is stepping."""
        return self._context.bus.is_optimizer_stepping

    @property
    def scale(self) -> Tensor | None:
        """The scaler's scale, ``None`` without one.

        A loss that the scale alone has made non-finite is not the fault of an op.
        """
        scale: Tensor | None = getattr(self._context.bus.scaler, "_scale", None)
        return scale

    @property
    def loss_parts(self) -> tuple[float | None, Tensor | None]:
        """The losses of the open iteration: the sum on the host, and the sum on a device.

        The first is ``None`` if there are no losses, the second if none is on a device.
        """
        losses = self._context.losses
        return losses.on_host if losses.num_losses else None, losses.on_device

    def deliver(self, trace: OpTrace) -> None:
        """Hand on the trace of an iteration."""
        trace.is_scaled = self._context.is_scaled
        self._context.observe(trace)
