"""The devices that a training is on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.training.devices import HOST
from ampwatch.training.model.living import alive
from ampwatch.training.model.names import parameters_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from torch import Tensor

    from ampwatch.training.model.names import Names
    from ampwatch.training.model.optimizers import Trained


class Home:
    """Knows where a training is, also when it moves after set-up.

    ``ampwatch.monitor(model)`` may come before ``model.to("cuda")``, and without a model nothing is
    known before the first optimizer steps.

    Args:
        names: The watched models.
        trained: The optimizers that were met, for a training without a watched model.

    Attributes:
        device: The first accelerator among ``devices``, else the first of them; ``None`` while
            there is none.
        devices: The devices of all parameters, in order.
    """

    def __init__(self, names: Names, trained: Trained) -> None:
        self._names = names
        self._trained = trained
        self.device: torch.device | None = None
        self.devices: tuple[torch.device, ...] = ()
        self.update()

    def update(self) -> bool:
        """Look where the parameters are now; return whether their devices have changed.

        Cost: less than 1 us a parameter.
        """
        before = self.devices
        # A dict keeps the order in which they were met.
        found = dict.fromkeys(parameter.device for parameter in self._parameters())
        # What is to be made later, as sharded models are, is nowhere yet.
        self.devices = tuple(device for device in found if device.type != "meta")
        # Embeddings may have been left on the host, and the rest of the model computes elsewhere.
        accelerators = [device for device in self.devices if device.type != HOST]
        self.device = next(iter(accelerators or self.devices), None)
        return self.devices != before

    def _parameters(self) -> Iterator[Tensor]:
        yield from (parameter for _, parameter in self._names.parameters())
        for optimizer in alive(self._trained.met.values()):
            yield from parameters_of(optimizer)
