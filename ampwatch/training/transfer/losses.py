"""Sum of the losses of one iteration, added up where they are."""

from __future__ import annotations

import torch

from ampwatch.training.devices import is_readable
from ampwatch.training.kernels.admission import whole_part
from ampwatch.training.kernels.dtypes import name_of
from ampwatch.training.transfer.readback import host_scalar, is_plain_scalar


class LossSum:
    """Adds up the losses that the user hands to ``scaler.scale``, on the host or on the device.

    A NaN or an infinity among the losses stays visible in their sum.

    Attributes:
        num_losses: Number of losses since the last reset.
        on_host: Sum of the losses on the host.
        on_device: Sum of the losses on a device, float32; ``None`` without any.
        dtype: ``float16`` if any loss is, else the name of the newest loss's dtype; empty without
            any.
    """

    def __init__(self) -> None:
        self.num_losses = 0
        self.on_host = 0.0
        self.on_device: torch.Tensor | None = None
        self.dtype = ""
        self._buffers: dict[torch.device, torch.Tensor] = {}

    def reset(self) -> None:
        """Begin the next iteration."""
        self.num_losses = 0
        self.on_host = 0.0
        self.on_device = None
        self.dtype = ""

    def add(self, outputs: object, divisor: float = 1.0) -> None:
        """Take a loss, or a list of them, as handed to ``scaler.scale``.

        They may be multiplied by ``divisor``, a power of two: what is added is what they were before.
        Only one-element tensors are losses; an iterator is left alone, it can be
        consumed only once. Cost on a device: one small kernel per loss.
        """
        if isinstance(outputs, (list, tuple)):
            for output in outputs:
                self.add(output, divisor)
            return
        # Of a DTensor where it lies: what is asked of itself is asked of all processes.
        if isinstance(outputs, torch.Tensor):
            outputs = whole_part(outputs)
        if not is_plain_scalar(outputs) or not outputs.is_floating_point():
            return
        if outputs.device.type == "cpu":
            self.on_host += host_scalar(outputs) / divisor
        elif is_readable(outputs.device.type):
            self._add_on_device(outputs.detach().reshape(()), divisor)
        else:
            return
        self.num_losses += 1
        if self.dtype != "float16":
            self.dtype = name_of(outputs.dtype)

    def _add_on_device(self, loss: torch.Tensor, divisor: float) -> None:
        with torch.no_grad():
            if self.on_device is not None:
                moved = loss.to(self.on_device.device, non_blocking=True)
                self.on_device.add_(moved, alpha=1.0 / divisor)
                return
            buffer = self._buffers.get(loss.device)
            if buffer is None:
                buffer = torch.zeros((), dtype=torch.float32, device=loss.device)
                self._buffers[loss.device] = buffer
            # Converts to float32 on the way: a sum in float16 could overflow.
            self.on_device = buffer.copy_(loss)
            if divisor != 1.0:
                buffer.div_(divisor)
