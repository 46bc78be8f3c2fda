"""A training with one planted overflow, and one tool that watches it: what does the tool tell?

    python benchmarks/planted.py TOOL DIRECTORY             prints and writes whatever the tool prints and writes
    python benchmarks/planted.py TOOL DIRECTORY --healthy   the same training without the overflow
    python benchmarks/planted.py TOOL DIRECTORY --syncs     likewise, and how often a step waits for the device

`told.py` runs it for each tool, and judges what comes out.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from companions import COMPANIONS
from conditions import own_places
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the name everybody gives it
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from turns import Stopwatch

from ampwatch.guard import NO_MODES
from ampwatch.training import session

STEPS = 60
FAULTY = range(40, 44)
"""Steps in which the factor of one module is far too large."""

FACTOR = 1e6


class Gated(nn.Module):
    """Two linear layers, and between them the op in which the overflow is planted."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.up = nn.Linear(features, 2 * features)
        self.down = nn.Linear(2 * features, features)
        self.factor = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (B, features) to the same shape."""
        hidden = F.gelu(self.up(x))
        hidden = hidden * self.factor  # beyond 65504 where the factor is too large
        return x + self.down(hidden)


OP = "mul"
MODULE = "blocks.2"
LINE = next(
    f"{Path(__file__).name}:{number}"
    for number, line in enumerate(Path(__file__).read_text(encoding="utf-8").splitlines(), 1)
    if "hidden * self.factor" in line
)


class Net(nn.Module):
    """Four blocks between two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(16, 64)
        self.blocks = nn.Sequential(*(Gated(64) for _ in range(4)))
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (B, 16) to logits (B, 10)."""
        return self.head(self.blocks(self.stem(x)))


class Planted:
    """A float16 training on the CPU, with a GradScaler."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = Net()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4, momentum=0.9)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        self._inputs, self._targets = torch.randn(64, 16), torch.randint(10, (64,))

    def step(self) -> None:
        """Take one step, as PyTorch's AMP recipe writes it."""
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(self.model(self._inputs), self._targets)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()


class Reads(TorchDispatchMode):
    """Counts the ops that need a value of the device on the host: on a GPU each of them waits for it."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.count += func.name() in ("aten::_local_scalar_dense", "aten::nonzero")
        return func(*args, **(kwargs or {}))


class Copies(TorchFunctionMode):
    """Counts calls that copy to the host and wait. On a CPU they copy nothing, so no dispatch mode sees them."""

    count = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named = kwargs or {}
        to_host = [*map(str, args[1:]), str(named.get("device"))]
        self.count += func is torch.Tensor.cpu or (
            func is torch.Tensor.to and "cpu" in to_host and not named.get("non_blocking")
        )
        return func(*args, **named)


def main() -> None:
    """Train, let the tool say what it has to say, and end as it ends."""
    name, place = sys.argv[1], Path(sys.argv[2])
    counts, healthy = "--syncs" in sys.argv, {"--healthy", "--syncs"} & set(sys.argv)
    reads, copies = Reads(), Copies()
    if counts:
        session.USERS_MODES = NO_MODES  # else ampwatch hides from modes what it computes itself
    tempfile.tempdir = str(place)
    os.chdir(place)
    training, companion = Planted(), COMPANIONS[name]
    with own_places():
        companion.attach(training, Stopwatch())
        for step in range(STEPS):
            bad = step in FAULTY and not healthy
            training.model.get_submodule(MODULE).factor = FACTOR if bad else 1.0
            with ExitStack() as modes:
                if counts:
                    modes.enter_context(copies)
                    modes.enter_context(reads)
                training.step()
                companion.after_step()
        if counts:
            Path("syncs.json").write_text(json.dumps((reads.count + copies.count) / STEPS))
        print(companion.report())
        companion.detach()


if __name__ == "__main__":
    main()
