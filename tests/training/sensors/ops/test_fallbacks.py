"""Why ops ran in float32: each reason from a program that brings it about."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.amp import custom_bwd, custom_fwd
from torch.nn import functional as F  # noqa: N812 - the name everybody gives it
from torch.utils.checkpoint import checkpoint

import ampwatch
from ampwatch.numerics.units.ops import Fallback, Phase
from tests.training.sensors.counting import Counted


def region(device_type: str = "cpu", **options: Any) -> torch.autocast:
    return torch.autocast(device_type, dtype=torch.bfloat16, **options)


class Program(nn.Module):
    """A linear layer, and what the test wants done to its output."""

    def __init__(self, call: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.call = call

    def forward(self, x: torch.Tensor) -> Any:
        return self.call(self.first(x))


def in_region(call: Callable[[torch.Tensor], Any]) -> Counted:
    model = Program(call)
    with Counted(model) as counted, region():
        model(torch.randn(4, 8))
    return counted


def reasons(counted: Counted, op: str) -> set[Fallback]:
    return {key.fallback for key, _ in counted.of(op=op)}


def test_ops_in_low_precision_are_no_fallbacks() -> None:
    """Casts, copies and ops of a float32 backward are none either."""
    model = Program(lambda h: h.relu() * 2)
    with Counted(model) as counted:
        with region():
            out = model(torch.randn(4, 8))
        out.sum().backward()

    assert set(counted.by("fallback", module="first")) == {Fallback.NONE}
    assert set(counted.by("fallback", phase=Phase.BACKWARD)) == {Fallback.NONE}


@pytest.mark.parametrize(
    ("program", "op", "reason"),
    [
        # Autocast casts the input of the first, and runs it in float32; that of the second was float32.
        (lambda h: F.mse_loss(h, h), "mse_loss", Fallback.FP32_LIST),
        (lambda h: F.gelu(h.float()), "gelu", Fallback.NOT_LISTED),
        # A residual that was kept in float32, or a mask.
        (lambda h: h + torch.ones(8), "add", Fallback.PROMOTED),
    ],
)
def test_an_op_in_float32_says_why(program: Any, op: str, reason: Fallback) -> None:
    """It is on the list, was left alone, or has a float32 and a lower input."""
    assert reasons(in_region(program), op) == {reason}


def test_a_disabled_region_inside_an_enabled_one_is_the_reason() -> None:
    """However often they are nested, the innermost counts."""

    def call(h: torch.Tensor) -> Any:
        with torch.autocast("cpu", enabled=False):
            high = h.float() @ h.float().t()
            with region():
                low = h @ h.t()
            return high + low

    counted = in_region(call)

    assert reasons(counted, "mm") == {Fallback.DISABLED_REGION, Fallback.NONE}
    assert counted.by("dtype", op="mm") == {"float32": 1, "bfloat16": 1}


def test_what_runs_outside_of_every_region_says_so() -> None:
    """A region elsewhere in the iteration shows that autocast is used."""
    model = Program(lambda h: h)
    other = nn.Linear(8, 8)
    with Counted(model, other) as counted:
        with region():
            h = model(torch.randn(4, 8))
        other(h.float())

    assert counted.by("fallback", module="1") == {Fallback.OUTSIDE_REGION: 1}


def test_without_any_autocast_nothing_falls_back() -> None:
    """Training in float32 is a choice; so is ``enabled=False`` for all of it."""
    model = Program(lambda h: h.relu())
    with Counted(model) as counted:
        model(torch.randn(4, 8))
        with torch.autocast("cpu", enabled=False):
            model(torch.randn(4, 8))

    assert set(counted.by("fallback")) == {Fallback.NONE}


def test_a_thread_without_a_region_while_another_is_in_one() -> None:
    """Autocast is a matter of each thread: this is what everybody forgets."""
    model = Program(lambda h: h)
    with Counted(model) as counted, region():
        thread = threading.Thread(target=model, args=(torch.randn(4, 8),))
        thread.start()
        thread.join()

    assert counted.by("fallback", op="addmm") == {Fallback.OTHER_THREAD: 1}
    assert counted.census is not None
    (lone,) = counted.census.lone_forwards
    assert lone == ("", Fallback.OTHER_THREAD, "bfloat16", "cpu", 1)


def test_a_region_for_another_type_of_device() -> None:
    """The model is on ``meta``, the region is for ``cpu``."""
    model = nn.Linear(8, 8, device="meta")
    with Counted(model) as counted, region():
        model(torch.randn(4, 8, device="meta"))
        model(torch.randn(4, 8, device="meta"))

    assert counted.by("fallback", op="addmm") == {Fallback.DEVICE_TYPE: 2}
    assert counted.census is not None
    (lone,) = counted.census.lone_forwards
    assert lone == ("", Fallback.DEVICE_TYPE, "bfloat16", "cpu", 2)


class InFloat32(torch.autograd.Function):
    """A function that switches autocast off, as a loss does that needs the range."""

    @staticmethod
    @custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x @ x.t()

    @staticmethod
    @custom_bwd(device_type="cpu")
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return (gradient + gradient.t()) @ x


def test_a_function_that_asks_for_float32() -> None:
    """``custom_fwd(cast_inputs=...)`` disables autocast: the function does, not its caller."""
    model = Program(InFloat32.apply)
    with Counted(model) as counted:
        with region():
            out = model(torch.randn(4, 8))
        out.sum().backward()

    assert counted.by("fallback", op="mm", phase=Phase.FORWARD) == {Fallback.CUSTOM_FUNCTION: 1}
    assert counted.by("fallback", op="mm", phase=Phase.BACKWARD) == {Fallback.NONE: 2}


def test_an_op_that_is_not_pytorchs_own() -> None:
    """Autocast knows nothing of it."""
    with torch.library._scoped_library("ampwatch_test_op", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        counted = in_region(lambda h: torch.ops.ampwatch_test_op.twice(h.detach().float()))

    assert reasons(counted, "twice") == {Fallback.CUSTOM_FUNCTION}


def test_the_dtypes_of_the_regions_are_those_that_ops_ran_in() -> None:
    """A region that nothing ran in is none, a disabled one neither."""
    model = Program(lambda h: h)
    with Counted(model) as counted:
        with region():
            model(torch.randn(4, 8))
        with torch.autocast("cpu", dtype=torch.float16):
            model(torch.randn(4, 8))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):
            model(torch.randn(4, 8))

    assert counted.census is not None
    assert counted.census.autocast_dtypes == ("bfloat16", "float16")
    assert counted.census.device_types == {"cpu"}


ENTERS, STAYS_OUT = True, False
"""Whether what is computed again enters the region of its forward."""


class Recompute(torch.autograd.Function):
    """Checkpointing by hand: forward without a graph, and the module is called again in backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, module: nn.Module, enters: bool) -> torch.Tensor:  # noqa: FBT001
        ctx.module, ctx.x, ctx.enters = module, x.detach(), enters
        with torch.no_grad():
            out: torch.Tensor = module(x)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        x = ctx.x.requires_grad_()
        around = region() if ctx.enters else nullcontext()
        with torch.enable_grad(), around:
            out = ctx.module(x)
        torch.autograd.backward(out, gradients[0].to(out.dtype))
        return x.grad, None, None


def recomputed(call: Callable[[torch.Tensor, nn.Module], torch.Tensor], block: nn.Module) -> Any:
    """Return the findings about autocast of a training whose second block is called as given."""
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(8, 8), block, nn.Linear(8, 1)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with ampwatch.monitor(model, level="deep", serve=False) as watch:
        for _ in range(6):
            with torch.autocast("cpu", torch.bfloat16):
                out = model[2](call(model[0](torch.randn(4, 8)), model[1]))
            optimizer.zero_grad()
            out.float().square().mean().backward()
            optimizer.step()
    return [f for f in watch.findings if f.kind == "autocast_inactive"]


def _checkpointed(x: torch.Tensor, block: nn.Module) -> torch.Tensor:
    out: torch.Tensor = checkpoint(block, x, use_reentrant=False)
    return out


def test_a_module_that_is_computed_again_outside_of_its_region_is_named() -> None:
    """Its gradients are those of another function, and what it saves memory for is kept in float32."""
    block = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    (finding,) = recomputed(lambda x, block: Recompute.apply(x.float(), block, STAYS_OUT), block)

    assert (finding.where, finding.phase) == ("1", "backward")
    assert "computed again in backward" in finding.summary


@pytest.mark.rotating
@pytest.mark.parametrize(
    "call",
    [
        lambda x, block: Recompute.apply(x.float(), block, ENTERS),
        _checkpointed,
        lambda x, block: checkpoint(block, x, use_reentrant=True),
    ],
    ids=["by hand", "checkpoint", "reentrant"],
)
def test_one_that_enters_the_region_again_is_right(
    call: Callable[[torch.Tensor, nn.Module], torch.Tensor],
) -> None:
    """As PyTorch's own checkpoints do."""
    assert recomputed(call, nn.Sequential(nn.Linear(8, 8), nn.ReLU())) == []


def test_what_forward_kept_out_of_autocast_may_be_computed_again_without() -> None:
    """Both are in float32."""

    def call(x: torch.Tensor, block: nn.Module) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            out: torch.Tensor = Recompute.apply(x.float(), block, STAYS_OUT)
        return out

    assert recomputed(call, nn.Linear(8, 8)) == []
