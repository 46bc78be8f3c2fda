"""Parts that the programs have in common: a small model, its data, two faults, and what is written down.

A program trains for ``STEPS`` iterations and writes one file a rank into the directory
``PROGRAM_OUT``: a hash of its last weights, the loss scale after each iteration, and the
iterations that were skipped, as its framework counts them. ampwatch appears in one function
only, ``watch``, and only where ``PROGRAM_WATCH`` asks for it.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from parting import part
from torch import nn

if TYPE_CHECKING:
    import contextlib

# What follows is read of the environment of one run. What a program imports after it, each of its runs imports.
part()

STEPS = 44
FAULT_AT = 24
"""Iteration from which on the planted fault is there. The openings of all sensors lie before it."""

INIT_SCALE = 4096.0
GROWTH_INTERVAL = 10

OVERFLOW, GRADIENT = "overflow", "gradient"

LOG_EVERY = 10
"""Iterations between two rows of what a framework logs."""

FAILS_AT = 30
MODE = os.environ.get("PROGRAM_MODE", "")
"""What else there is to a program that has a callback of ampwatch; see the names below."""

FAILS, STOPS, TWICE, BESIDE, BFLOAT16 = "fails", "stops", "twice", "beside", "bfloat16"
TRACKED = "tracked"
FAULT = os.environ.get("PROGRAM_FAULT", "")
WIDTH = 32
BATCH = 16


class Boost(nn.Module):
    """Multiplies by a gain, twice: 1, until an overflow is planted here."""

    gain: torch.Tensor
    planted = 3e4

    def __init__(self) -> None:
        super().__init__()
        # 3e4 itself is a float16, so that no cast of the buffer is to blame, but the op.
        self.register_buffer("gain", torch.ones(()), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gain * self.gain


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(WIDTH, WIDTH)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(WIDTH, WIDTH)
        self.boost = Boost()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.boost(self.fc2(self.act(self.fc1(x))))


class Net(nn.Module):
    """Two residual blocks between two linear layers."""

    overflows_in = "blocks.1.boost"
    infinite = "blocks.1.fc2.weight"

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def settle() -> None:
    """Have every run compute the same: one thread, one seed."""
    torch.set_num_threads(1)
    torch.manual_seed(0)


def batches(rank: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return a batch for each iteration."""
    generator = torch.Generator().manual_seed(1 + rank)
    return [
        (torch.randn(BATCH, 8, generator=generator), torch.randn(BATCH, 4, generator=generator))
        for _ in range(STEPS)
    ]


def examples() -> torch.utils.data.TensorDataset:
    """Return the batches as single examples, for frameworks that make batches themselves."""
    parts = batches()
    return torch.utils.data.TensorDataset(
        torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])
    )


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(output.float(), target)


def new_scaler() -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=INIT_SCALE, growth_interval=GROWTH_INTERVAL)


def watch(model: nn.Module | list[nn.Module] | None, scaler: Any = None, **more: Any) -> None:
    """Do what a user would: the one edit. Nothing, where the program runs bare or under `ampwatch run`."""
    if os.environ.get("PROGRAM_WATCH") == "edit":
        import ampwatch  # noqa: PLC0415 - only here

        ampwatch.monitor(model, scaler, **more)


def callbacks(framework: str) -> list[Any]:
    """Return the callback of ampwatch for a framework, which is the one edit there; none likewise."""
    if os.environ.get("PROGRAM_WATCH") != "edit":
        return []
    import ampwatch  # noqa: PLC0415 - only here

    kind = getattr(ampwatch.integrations, framework).AmpwatchCallback
    made = kind()
    if MODE == STOPS:
        made.on_finding(ampwatch.actions.stop())
    return [made, kind()] if MODE == TWICE else [made]


class Course:
    """Course of one training: plants the fault in time, and writes down what happened.

    Args:
        model: The bare model, before any framework has wrapped it.
        overflows_in: Name of its ``Boost``.
        infinite: Name of the parameter whose gradient becomes infinite.
        first: Index of the first iteration, where earlier ones were trained before.
        at_forward: Whether to place the hook in forward, on the tensor that the module has for its
            parameter then: where parameters are shards, the sharded ones receive no gradient
            from autograd.
    """

    def __init__(
        self,
        model: nn.Module,
        overflows_in: str = Net.overflows_in,
        infinite: str = Net.infinite,
        *,
        first: int = 0,
        at_forward: bool = False,
    ) -> None:
        self.names = {
            "modules": [name for name, _ in model.named_modules()],
            "parameters": [name for name, _ in model.named_parameters()],
            "trained": [name for name, p in model.named_parameters() if p.requires_grad],
        }
        self.expected = {OVERFLOW: overflows_in, GRADIENT: infinite}
        self.first = self.step = first
        self.scales: list[float | None] = []
        self.skipped: list[int] = []
        self.logged: list[tuple[int, dict[str, float]]] = []
        self._growths = 0
        self._scale: float | None = None
        self._boost = model.get_submodule(overflows_in)
        if FAULT == GRADIENT and at_forward:
            owner, name = infinite.rpartition(".")[::2]
            self._hooked: list[torch.Tensor] = []
            model.get_submodule(owner).register_forward_pre_hook(
                lambda module, _: self._hook(getattr(module, name))
            )
        elif FAULT == GRADIENT:
            model.get_parameter(infinite).register_hook(self._poison)

    def _hook(self, parameter: torch.Tensor) -> None:
        if parameter.requires_grad and not any(parameter is other for other in self._hooked):
            self._hooked.append(parameter)
            parameter.register_hook(self._poison)

    def _poison(self, gradient: torch.Tensor) -> torch.Tensor | None:
        if self.step < self.first + FAULT_AT:
            return None
        poisoned = gradient.clone()
        if not hasattr(poisoned, "to_local"):
            poisoned[(0,) * poisoned.dim()].fill_(float("inf"))
        elif rank() == 0:  # of a DTensor one shard
            poisoned.to_local()[(0,) * poisoned.dim()].fill_(float("inf"))
        return poisoned

    def begins(self) -> None:
        """Say that an iteration begins: from ``FAULT_AT`` on, with the fault."""
        if MODE == FAILS and self.step == FAILS_AT:
            msg = "planted"
            raise RuntimeError(msg)
        if FAULT == OVERFLOW and self.step >= self.first + FAULT_AT:
            with torch.no_grad():
                self._boost.gain.fill_(Boost.planted)

    def ended(self, scale: float | None, *, skipped: bool | None = None) -> None:
        """Write down the iteration that has ended.

        Args:
            scale: The loss scale after it; ``None`` where nothing scales the loss.
            skipped: Whether its step was skipped; where the framework does not tell, a scale that
                falls does.
        """
        change = 0.0 if scale is None or self._scale is None else scale - self._scale
        if skipped or (skipped is None and change < 0):
            self.skipped.append(self.step)
        self._growths += change > 0
        self._scale = scale
        self.scales.append(scale)
        self.step += 1
        if rank() == 0:
            print(f"iteration {self.step}: loss scale {scale}")

    def log(self, values: dict[str, Any], step: int) -> None:
        """Write down what the framework hands to its loggers."""
        self.logged.append((step, {k: v for k, v in values.items() if k.startswith("amp/")}))

    def write(self, model: nn.Module, *packages: str) -> None:
        """Write everything down, for whoever compares."""
        digest = hashlib.sha256()
        for name, value in sorted(model.state_dict().items()):
            tensor = value.to_local() if hasattr(value, "to_local") else value
            if isinstance(tensor, torch.Tensor):
                digest.update(name.encode() + tensor.detach().contiguous().numpy().tobytes())
        told = {
            "weights": digest.hexdigest(),
            "first": self.first,
            "scales": self.scales,
            "skipped": self.skipped,
            "growths": self._growths,
            "logged": self.logged,
            "names": self.names,
            "expected": self.expected,
            "versions": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                **{package: metadata.version(package) for package in packages},
            },
        }
        out = os.environ.get("PROGRAM_OUT")
        if out is None:
            json.dump(told, sys.stdout)
        else:
            Path(out, f"rank{rank()}.json").write_text(json.dumps(told))


def rank() -> int:
    return int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")))


def start_gloo() -> int:
    """Join the process group that torchrun has prepared, and return this process's rank."""
    settle()
    torch.distributed.init_process_group("gloo")
    return torch.distributed.get_rank()


def loop(
    course: Course,
    model: Any,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    rank: int = 0,
    region: contextlib.AbstractContextManager[Any] | None = None,
) -> None:
    """The loop that PyTorch documents for mixed precision; forward in another ``region`` if one is given."""
    for x, y in batches(rank):
        course.begins()
        with region or torch.autocast("cpu", dtype=torch.float16):
            loss = loss_of(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        course.ended(scaler.get_scale())
