"""A model with a part that cannot be read or hooked is watched but for that part, which the report names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import ampwatch
from ampwatch.wire.blackbox import Box

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

STEPS = 16


class Gated(nn.Module):
    """Two layers, and constants that ``torch.jit.trace`` keeps as tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.outer(torch.tanh(self.inner(x) * 0.5 + 1) / 3)
        return out


class Closed(nn.Linear):
    """Whoever asks for what it does not have gets another exception than ``AttributeError``."""

    is_made = False

    def __init__(self) -> None:
        super().__init__(8, 8)
        self.is_made = True

    def __getattr__(self, name: str) -> Any:
        if name not in self._parameters and self.is_made:
            msg = f"no {name} here"
            raise RuntimeError(msg)
        return super().__getattr__(name)


class Computed(nn.Linear):
    """What is an attribute of others cannot be computed here."""

    def __init__(self) -> None:
        super().__init__(8, 8)
        del self.in_features

    @property
    def in_features(self) -> int:
        msg = "of no size"
        raise ValueError(msg)

    @in_features.setter
    def in_features(self, size: int) -> None: ...

    @in_features.deleter
    def in_features(self) -> None: ...


def scripted() -> nn.Module:
    return torch.jit.script(Gated())


def traced() -> nn.Module:
    return torch.jit.trace(Gated(), torch.ones(4, 8))  # type: ignore[no-any-return, no-untyped-call]


def exported() -> nn.Module:
    return torch.export.export(Gated(), (torch.ones(4, 8),)).module()


def not_initialized() -> nn.Module:
    """Return a module of which parts are not called before the last steps."""
    part: Any = nn.Linear(8, 8)
    part.norm, part.head = nn.LazyBatchNorm1d(), nn.LazyLinear(8)
    part.register_forward_hook(lambda _part, _x, y: part.head(part.norm(y)) if part.is_late else y)
    return part  # type: ignore[no-any-return]


OF_TORCHSCRIPT = (
    "outputs of the modules in 1 are not measured one by one: it is TorchScript, in which no hooks are"
    " called"
)

KINDS: dict[Callable[[], nn.Module], list[str]] = {
    scripted: [OF_TORCHSCRIPT],
    traced: [OF_TORCHSCRIPT],
    exported: [],
    Closed: ["module 1 (Closed) is not watched as a layer: RuntimeError: no parametrizations here"],
    Computed: ["module 1 (Computed) is not watched as a layer: ValueError: of no size"],
    not_initialized: [],
}
"""Makes a part of a model, and what the report says of it."""


def train(
    make: Callable[[], nn.Module], level: str | None
) -> tuple[list[torch.Tensor], Box | None]:
    torch.manual_seed(0)
    part: Any = make()
    part.is_late = False
    model = nn.Sequential(nn.Linear(8, 8), part, nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    watch = None
    if level is not None:
        watch = ampwatch.monitor(model, scaler, level=level, serve=False, sample_every=1, lab=True)
    for step in range(STEPS):
        part.is_late = step >= STEPS // 2
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = model(torch.randn(4, 8)).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    if watch is None:
        return list(model.state_dict().values()), None
    assert watch.last_step.step == STEPS - 1
    box = watch.box()
    watch.close()
    return list(model.state_dict().values()), box


@pytest.mark.parametrize("level", ["standard", "deep"])
@pytest.mark.parametrize("make", KINDS)
def test_the_rest_is_watched_and_the_training_is_the_same(
    make: Callable[[], nn.Module], level: str
) -> None:
    """No sensor fails, layers beside the part have their operands, and weights are those without a monitor."""
    expected, _ = train(make, None)
    weights, box = train(make, level)

    assert box is not None
    assert [note for note in box.notes if "switched off" in note] == []
    assert [note for note in box.notes if " 1 " in note] == KINDS[make]
    assert {layer.module for layer in box.layers if layer.rows} >= {"0", "2"}
    assert all(torch.equal(a, b) for a, b in zip(weights, expected, strict=True))
