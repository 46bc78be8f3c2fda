"""Facts around the ops of a replay, for those who follow its non-finite values."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from ampwatch.training.devices import HOST
from ampwatch.training.model.names import canonical
from ampwatch.training.transfer.readback import host_scalar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from ampwatch.diagnosis.evidence.origins import OpTrace
    from ampwatch.training.replay.replay import Replay


class TwinNames:
    """Names of the parameters and buffers of a twin.

    Attributes:
        replay: The replay whose twin it is; ``None`` without one.
    """

    def __init__(self) -> None:
        self.replay: Replay | None = None

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield name and tensor of each parameter."""
        if self.replay is not None:
            for name, parameter in self.replay.twin.parameters.items():
                yield self.replay.prefix + name, parameter

    def buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Yield name and tensor of each buffer."""
        if self.replay is not None:
            twin = self.replay.twin.model
            for name, buffer in twin.named_buffers():
                yield self.replay.prefix + canonical(name, twin), buffer


class TwinSurroundings:
    """Gives what a replay knows besides its ops, and keeps its trace.

    Attributes:
        names: Names of the twin's parameters and buffers.
        trace: What was seen, once that is known.
        is_stepping: No optimizer steps in a replay.
    """

    is_stepping = False

    def __init__(self) -> None:
        self.names = TwinNames()
        self.trace: OpTrace | None = None
        self.scale: Tensor | None = None
        self._largest: Tensor | None = None

    def begin(self, replay: Replay, scale: float) -> None:
        """Take in the replay that begins, and what its loss is multiplied by; NaN without backward."""
        self.names.replay = replay
        self.trace = None
        self.scale = None if math.isnan(scale) else torch.tensor(scale)
        self._largest = None

    def let_go(self) -> None:
        """Forget the twin."""
        self.names.replay = None
        self.trace = None
        self.scale = self._largest = None

    def take(self, outputs: Sequence[Tensor]) -> None:
        """Take in what the twin has returned."""
        with torch.no_grad():
            # The largest element is NaN if any is; a mask of negative infinity is not to show in it.
            each = [tensor.detach().amax().float() for tensor in outputs if tensor.numel()]
            self._largest = torch.stack(each).amax().clamp(min=0.0) if each else None

    @property
    def loss_parts(self) -> tuple[float | None, Tensor | None]:
        """The largest output: on the host and on a device, ``None`` for what it is not."""
        largest = self._largest
        if largest is None:
            return None, None
        is_here = largest.device.type == HOST
        return (host_scalar(largest), None) if is_here else (None, largest)

    def deliver(self, trace: OpTrace) -> None:
        """Take the trace of a replay."""
        self.trace = trace
