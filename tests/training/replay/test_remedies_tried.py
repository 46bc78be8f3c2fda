"""Remedies that were tried: what the advice says of them is what they do, when somebody applies them by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

import ampwatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

FAULTY = 36


class Block(nn.Module):
    """A residual block with a fault, and the three remedies as somebody would write them."""

    def __init__(self, fault: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.fault, self.is_faulty = fault, False
        self.in_float32 = self.sums_in_float32 = False

    def branch(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.up(x)) * 1.0
        return self.down(self.fault(hidden) if self.is_faulty else hidden)

    def residual(self, x: Tensor) -> Tensor:
        if self.sums_in_float32:
            return x.float() + self.branch(x).float()
        return x + self.branch(x)

    def forward(self, x: Tensor) -> Tensor:
        if not self.in_float32:
            return self.residual(x)
        with torch.autocast("cpu", enabled=False):
            return self.residual(x.float())


class Net(nn.Module):
    def __init__(self, fault: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(fault) for _ in range(3))
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x).float()


FAULTS: dict[str, Callable[[Tensor], Tensor]] = {
    "a product beyond both": lambda x: x * 1e39,
    "a product beyond float16": lambda x: x * 4e5,
    "a product that is scaled back": lambda x: x * 4e5 * 1e-6,
    "a square": lambda x: (x * 2e3) ** 2,
    "an exponential": lambda x: (x * 0 + 12).exp(),
    "an exponential that is taken back": lambda x: (x * 0 + 12).exp().log(),
    "a sum": lambda x: (x * 2e4).sum(-1, keepdim=True).expand_as(x),
    "a running sum": lambda x: (x * 3e4).cumsum(-1),
    "a matrix product": lambda x: (x * 200) @ (x * 200).t() @ x * 1e-6,
    "a reciprocal": lambda x: (x * 0 + 1e-5).reciprocal(),
}


def forward(
    fault: Callable[[Tensor], Tensor], remedy: str, state: dict[str, Tensor], x: Tensor
) -> bool:
    """Run the forward pass that failed, with a remedy applied by hand; return whether it is finite."""
    net = Net(fault)
    net.load_state_dict(state)
    net.blocks[1].is_faulty = True
    net.blocks[1].in_float32 = remedy == "module blocks.1 in float32"
    for block in net.blocks:
        block.sums_in_float32 = remedy == "the residual stream in float32"
    dtype = torch.bfloat16 if remedy == "bfloat16 instead of float16" else torch.float16
    with torch.no_grad(), torch.autocast("cpu", dtype=dtype):
        return bool(net(x).isfinite().all())


@pytest.mark.rotating
@pytest.mark.parametrize("name", FAULTS)
def test_what_is_said_to_cure_cures_and_what_is_said_not_to_does_not(name: str) -> None:
    """Each of the three remedies, applied by hand to the model, on the batch that failed."""
    fault = FAULTS[name]
    torch.manual_seed(0)
    net = Net(fault)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    with ampwatch.monitor(net, scaler, optimizer=optimizer, serve=False) as watch:
        for step in range(FAULTY + 2):
            net.blocks[1].is_faulty = step == FAULTY
            x = torch.randn(4, 8)
            if step == FAULTY:
                state = {key: value.clone() for key, value in net.state_dict().items()}
                batch = x.clone()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = net(x).square().mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    found = next(f for f in watch.findings if f.where == "blocks.1" and f.op)

    assert {(t.change, t.cures) for t in found.tried} == {
        (remedy, forward(fault, remedy, state, batch))
        for remedy in (
            "module blocks.1 in float32",
            "the residual stream in float32",
            "bfloat16 instead of float16",
        )
    }
    assert {t.step for t in found.tried} == {FAULTY}
