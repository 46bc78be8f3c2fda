"""The devices that a training is on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.training.model.living import alive
from ampwatch.training.model.names import parameters_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from torch import Tensor

    from ampwatch.training.model.names import Names
    from ampwatch.training.model.trained import Trained


class Home:
    """Knows where a training is, also when it moves after set-up.

    ``ampwatch.monitor(model)`` may come before ``model.to("cuda")``, and without a model nothing is
    known before the first optimizer steps.

    Args:
        names: The watched models.
        trained: The optimizers that were met, for a training without a watched model.

    Attributes:
        device: The device of the first parameter; ``None`` while there is none.
        devices: The devices of all parameters, the first one's first.
    """

    def __init__(self, names: Names, trained: Trained) -> None:
        self._names = names
        self._trained = trained
        self.device: torch.device | None = None
        self.devices: tuple[torch.device, ...] = ()
        self.update()

    def update(self) -> bool:
        """Look where the parameters are now; return whether their devices have changed.

        Cost: 0.2 us a parameter.
        """
        before = self.devices
        # A dict keeps the order in which they were met.
        found = dict.fromkeys(parameter.device for parameter in self._parameters())
        # What is to be made later, as sharded models are, is nowhere yet.
        self.devices = tuple(device for device in found if device.type != "meta")
        self.device = next(iter(self.devices), None)
        return self.devices != before

    @property
    def is_on_host(self) -> bool:
        """Whether the values can be read at once; assumed where no device is known."""
        return self.device is None or self.device.type == "cpu"

    def _parameters(self) -> Iterator[Tensor]:
        yield from (parameter for _, parameter in self._names.parameters())
        for optimizer in alive(self._trained.met.values()):
            yield from parameters_of(optimizer)
