"""The shapes of the layers that multiply matrices, before anything has run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn
from torch.nn.modules.conv import _ConvNd

from ampwatch.diagnosis.evidence.ops import LayerShape
from ampwatch.numerics.units.ops import OpKind
from ampwatch.training.model.dtypes import name_of

if TYPE_CHECKING:
    from ampwatch.training.model.names import Names


def layer_shapes(names: Names) -> list[LayerShape]:
    """Return the weight of each linear and convolutional layer; lazy ones have none yet."""
    shapes = []
    for name, module in names.modules():
        if isinstance(module, nn.Linear):
            kind, dims = OpKind.MATMUL, (module.in_features, module.out_features)
        elif isinstance(module, _ConvNd):
            groups = module.groups
            kind = OpKind.CONVOLUTION
            dims = module.in_channels // groups, module.out_channels // groups
        else:
            continue
        weight = module.weight
        # Quantized layers keep theirs behind a method.
        if isinstance(weight, nn.Parameter) and not nn.parameter.is_lazy(weight):
            dtype, device_type = name_of(weight.dtype), weight.device.type
            shapes.append(LayerShape(name, kind, dims, weight.numel(), dtype, device_type))
    return shapes
