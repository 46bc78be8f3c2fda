"""Linear layers that multiply in FP8 through a tensor subclass, as libraries for FP8 training do.

Written after what these have in common and not after one of them: a wrapper of numbers in FP8 and their
scale, whose product is computed on its parts when the dispatcher asks the class.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from typing_extensions import Self

E4M3 = torch.float8_e4m3fn
E5M2 = torch.float8_e5m2
aten = torch.ops.aten


class Fp8Tensor(torch.Tensor):
    """Numbers in FP8, and the scale that they were multiplied by.

    Args:
        numbers: Of shape (M, N).
        scale: Of shape (), (M, 1) or (1, N).
        emulates: Whether a product casts both matrices up, instead of multiplying them as they are.
    """

    numbers: torch.Tensor
    scale: torch.Tensor
    emulates: bool

    def __new__(cls, numbers: torch.Tensor, scale: torch.Tensor, *, emulates: bool) -> Self:
        made = torch.Tensor._make_wrapper_subclass(
            cls, numbers.shape, strides=numbers.stride(), dtype=scale.dtype
        )
        made.numbers, made.scale, made.emulates = numbers, scale, emulates
        return made

    def __tensor_flatten__(self) -> tuple[list[str], bool]:
        return ["numbers", "scale"], self.emulates

    def wide(self) -> torch.Tensor:
        """Return the numbers as they were before they were scaled."""
        return self.numbers.float() / self.scale

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten.t.default:
            (of,) = args
            scale = of.scale.t() if of.scale.ndim else of.scale
            return cls(of.numbers.t(), scale, emulates=of.emulates)
        if func is aten.mm.default:
            a, b = args
            if a.emulates:
                return torch.mm(a.wide(), b.wide())
            one = torch.ones((), dtype=torch.float32)
            product = torch._scaled_mm(
                a.numbers.contiguous(),
                b.numbers.t().contiguous().t(),
                scale_a=one,
                scale_b=one,
                out_dtype=torch.float32,
            )
            return product / (a.scale * b.scale)
        msg = f"no {func} of {cls.__name__}"
        raise NotImplementedError(msg)


def to_fp8(
    values: torch.Tensor,
    dtype: torch.dtype,
    *,
    rows: bool = False,
    emulates: bool = True,
    scale: torch.Tensor | None = None,
) -> Fp8Tensor:
    """Scale to the largest magnitude, of the whole or of each row, clamp and cast."""
    limit = torch.finfo(dtype).max
    if scale is None:
        amax = values.abs().amax(-1, keepdim=True) if rows else values.abs().max()
        scale = limit / amax.clamp(min=1e-12)
    numbers = (values.float() * scale).clamp(-limit, limit).to(dtype)
    return Fp8Tensor(numbers, scale, emulates=emulates)


class Fp8Product(torch.autograd.Function):
    """``x @ weight.T``, and both products of its backward, in FP8."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, how: dict[str, Any]) -> Any:
        ctx.save_for_backward(x, weight)
        ctx.how = how
        return torch.mm(to_fp8(x, E4M3, **how), to_fp8(weight, E4M3, **how).t())

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        how = {"rows": ctx.how["rows"], "emulates": ctx.how["emulates"]}
        of_x = torch.mm(to_fp8(grad, E5M2, **how), to_fp8(weight.t(), E4M3, **how).t())
        of_weight = torch.mm(to_fp8(grad.t(), E5M2, **how), to_fp8(x.t(), E4M3, **how).t())
        return of_x, of_weight, None


class Fp8Linear(nn.Linear):
    """A linear layer in FP8.

    Args:
        sizes: Features in and out.
        rows: Whether each row has a scale of its own.
        emulates: Whether products are emulated.
    """

    def __init__(self, *sizes: int, rows: bool = False, emulates: bool = True) -> None:
        super().__init__(*sizes)
        self.how: dict[str, Any] = {"rows": rows, "emulates": emulates}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = Fp8Product.apply(x, self.weight, self.how)
        return out + self.bias


def mlp(**how: bool) -> nn.Sequential:
    """A small network whose every linear layer is in FP8."""
    return nn.Sequential(Fp8Linear(64, 128, **how), nn.GELU(), Fp8Linear(128, 32, **how))
