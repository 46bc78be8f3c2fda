"""The three promises where every step is replayed, for models that make it hard."""

from __future__ import annotations

import hashlib
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.nn.utils import weight_norm as old_weight_norm
from torch.utils.checkpoint import checkpoint

import ampwatch
from ampwatch.diagnosis.escalation import Escalation
from ampwatch.training.replay import inquiry
from ampwatch.training.replay.replay import Replay
from tests.promises.conftest import ahead, each_recipe
from tests.trainings import build

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

pytestmark = ahead

BANK = torch.zeros(8)


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have every iteration replayed; return what became of each replay."""
    outcomes: list[str] = []
    run = Replay.run

    def noted(replay: Replay, *given: Any) -> Any:
        outcomes.append("refused")
        made = run(replay, *given)
        outcomes[-1] = "replayed"
        return made

    monkeypatch.setattr(Replay, "run", noted)
    monkeypatch.setattr(inquiry.Pace, "allows", lambda _pace, _step: True)
    each = property(lambda self: (self._step, 1024.0, True), lambda _self, _newest: None)
    monkeypatch.setattr(Escalation, "failed", each, raising=False)
    return outcomes


class Block(nn.Module):
    """A block with dropout, batch norm and a switch that makes it overflow."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.3))
        self.boost = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x) * self.boost


class WithState(Block):
    """Counts, keeps what it has computed, and a cache that grows."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.seen = 0, []
        self.register_buffer("cache", torch.zeros(64, 8))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.last = super().forward(x)  # of the graph: deepcopy refuses it
        self.cache[self.calls] = self.last[0].detach().float()
        self.seen.append(self.cache[: self.calls].sum())
        return self.last + 0.01 * self.seen[-1]


class WithOtherChance(Block):
    def forward(self, x: Tensor) -> Tensor:
        keep = random.random() < 0.5 or np.random.rand() < 0.5  # noqa: NPY002 - the state of the process
        return super().forward(x) * (1.0 if keep else 0.5)


class InPlace(Block):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mul_(1.25))


class WritingElsewhere(Block):
    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        BANK.add_(out[0].detach().float())
        return out + BANK.sum()


class WithGenerator(Block):
    generator = torch.Generator().manual_seed(3)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + torch.rand(8, generator=self.generator))


class Checkpointed(Block):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = checkpoint(super().forward, x, use_reentrant=False)
        return out


class Loss(Block):
    """Returns its loss, as models of transformers do."""

    def forward(self, x: Tensor) -> Any:
        out = super().forward(x)
        return {"loss": out.float().square().mean(), "out": out}


def hooked() -> nn.Module:
    block = Block()
    seen: list[float] = []
    block.seen = seen  # type: ignore[assignment]
    block.inner[0].register_forward_hook(lambda _m, _a, out: seen.append(float(out.detach().sum())))
    block.inner[0].weight.register_hook(lambda g: g * 0.5)
    return block


def normed() -> nn.Module:
    block = Block()
    block.inner[0] = parametrizations.spectral_norm(nn.Linear(8, 8))
    return block


def normed_by_a_hook() -> nn.Module:
    block = Block()
    with pytest.warns(FutureWarning):
        block.inner[0] = old_weight_norm(nn.Linear(8, 8))
    return block


MODELS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "dropout and batch norm": (Block, "replayed"),
    "state in attributes and buffers": (WithState, "replayed"),
    "python's and numpy's random numbers": (WithOtherChance, "replayed"),
    "hooks of the user": (hooked, "replayed"),
    "a parametrization": (normed, "replayed"),
    "a norm in a hook of torch": (normed_by_a_hook, "replayed"),
    "checkpointing": (Checkpointed, "replayed"),
    "its own loss": (Loss, "replayed"),
    "inputs changed in place": (InPlace, ""),
    "writes to a tensor of others": (WritingElsewhere, "refused"),
    "a generator of its own": (WithGenerator, ""),
}


def train(model: nn.Module, *, level: str = "") -> tuple[str, list[str]]:
    """Train for some steps, in two of which the model overflows; return a digest, and what was not seen."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - the state of the process
    BANK.zero_()
    WithGenerator.generator.manual_seed(3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=4)
    watch = ampwatch.monitor(model, scaler, level=level, serve=False) if level else None
    losses = []
    for step in range(12):
        model.boost = 3e6 if step in (4, 9) else 1.0
        x = torch.randn(16, 8)
        with torch.autocast("cpu", dtype=torch.float16):
            out = model(x)
        loss = out["loss"] if isinstance(out, dict) else out.float().square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append((loss.item(), scaler.get_scale()))
    not_seen = []
    if watch is not None:
        not_seen = watch._session.not_seen()
        watch.close()
    digest = hashlib.sha256(repr((losses, len(getattr(model, "seen", ())))).encode())
    for _, value in sorted(model.state_dict().items()):
        digest.update(value.numpy().tobytes())
    for state in (torch.get_rng_state().numpy(), BANK.numpy(), np.random.get_state()[1]):  # noqa: NPY002
        digest.update(state.tobytes())
    digest.update(repr((random.getstate(), getattr(model, "calls", 0))).encode())
    return digest.hexdigest(), not_seen


@pytest.mark.rotating
@pytest.mark.parametrize("level", ["standard", pytest.param("deep", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_what_it_is_without_replays(name: str, level: str, replays: list[str]) -> None:
    """And it is replayed, or refused in words."""
    make, outcome = MODELS[name]
    torch.manual_seed(1)
    bare, _ = train(make())
    torch.manual_seed(1)
    watched, not_seen = train(make(), level=level)

    assert watched == bare
    if outcome == "replayed":
        assert set(replays) == {"replayed"}
        assert len(replays) >= 12
    else:
        assert "replayed" not in replays
        assert any("replayed" in sentence for sentence in not_seen)


@each_recipe
def test_recipes_are_what_they_are_without_replays(recipe: str, replays: list[str]) -> None:
    """Every recipe, every step of it replayed."""
    bare = build(recipe)
    bare.loop()

    watched = build(recipe)
    with ampwatch.monitor(
        watched.models, watched.scaler, optimizer=watched.optimizers, serve=False
    ):
        watched.loop()

    assert watched.digest() == bare.digest()


def test_nothing_stays_of_a_replay(replays: list[str]) -> None:
    """Neither a method of the class, nor a mode, nor a hook, nor a gradient."""
    model = Block()
    train(model, level="standard")

    assert "__call__" not in vars(Block)
    assert torch._C._len_torch_dispatch_stack() == 0
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert replays
