"""Where a training is, and when that has changed."""

from __future__ import annotations

import torch
from torch import nn

from ampwatch.training.model.home import Home
from ampwatch.training.model.names import Names
from ampwatch.training.model.optimizers import Trained


class Placed(nn.Parameter):
    """A parameter that says it is on another device."""

    where: torch.device

    @property
    def device(self) -> torch.device:  # type: ignore[override] # PyTorch's is no property of Python
        return self.where


def _model(*devices: str) -> nn.Module:
    model = nn.Module()
    for index, device in enumerate(devices):
        parameter = Placed(torch.zeros(1))
        parameter.where = torch.device(device)
        model.register_parameter(f"p{index}", parameter)
    return model


def _home(model: nn.Module | None) -> Home:
    names = Names([] if model is None else [model])
    return Home(names, Trained(names))


def test_the_first_accelerator_counts_and_else_the_host() -> None:
    """An embedding that was left on the host is not where the model computes."""
    mixed, on_host = _home(_model("cpu", "cuda:1", "cuda:0")), _home(_model("cpu"))

    assert mixed.device == torch.device("cuda:1")
    assert mixed.devices == tuple(map(torch.device, ("cpu", "cuda:1", "cuda:0")))
    assert on_host.device == torch.device("cpu")


def test_a_model_that_is_yet_to_be_made_is_nowhere() -> None:
    """As sharded models are, which get their memory after ``monitor()``."""
    model = _model("meta", "meta")
    home = _home(model)
    before = home.device
    for parameter in model.parameters():
        parameter.where = torch.device("cuda:0")

    assert before is None
    assert home.update()
    assert home.device == torch.device("cuda:0")
    assert not home.update()


def test_without_a_model_the_optimizers_that_were_met_say_where() -> None:
    """Nothing is known before one steps."""
    names = Names([])
    trained = Trained(names)
    home = Home(names, trained)
    before = home.device
    optimizer = torch.optim.SGD(_model("cuda:3").parameters(), lr=0.1)
    trained.meet(optimizer)

    assert before is None
    assert home.update()
    assert home.device == torch.device("cuda:3")
