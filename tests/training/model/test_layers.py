"""The shapes of layers before anything has run."""

from __future__ import annotations

import torch
from torch import nn

from ampwatch.diagnosis.evidence.ops import LayerShape
from ampwatch.numerics.units.ops import OpKind
from ampwatch.training.model.layers import layer_shapes
from ampwatch.training.model.names import Names


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(6, 8, 3, groups=2), nn.BatchNorm2d(8))
        self.head = nn.Linear(5, 7, dtype=torch.bfloat16)
        self.lazy = nn.LazyLinear(3)


def test_linear_and_convolutional_layers_are_listed_with_the_channels_of_a_group() -> None:
    """Norms are not, nor layers without a weight yet."""
    model = Net()  # names hold it weakly

    shapes = layer_shapes(Names([model]))

    assert shapes == [
        LayerShape("body.0", OpKind.CONVOLUTION, (3, 4), 8 * 3 * 9, "float32", "cpu"),
        LayerShape("head", OpKind.MATMUL, (5, 7), 35, "bfloat16", "cpu"),
    ]


def test_a_model_on_the_meta_device_has_shapes_all_the_same() -> None:
    """A model that does not fit this machine can be looked at."""
    with torch.device("meta"):
        model = nn.Linear(770, 50257)

    (shape,) = layer_shapes(Names([model]))

    assert (shape.module, shape.dims, shape.device_type) == ("", (770, 50257), "meta")


def test_a_layer_whose_weight_is_computed_is_left_out() -> None:
    """Quantized layers keep it behind a method."""
    model = nn.Linear(4, 4)
    del model.weight
    model.weight = lambda: None  # type: ignore[assignment]

    assert layer_shapes(Names([model])) == []
