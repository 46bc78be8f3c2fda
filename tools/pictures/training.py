"""A small real training, and what the pictures need of it: exponents of gradients, alone and by block, and a loss scale."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from tools.cost.code import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

MEASURED = ROOT / "tools" / "pictures" / "measured.json"
"""What is kept of it. The pictures are drawn from that, so that they are the same on every machine."""

STEPS, INTERVAL, BATCH = 900, 60, 64
"""Steps of the training, steps from one growth of the scale to the next, and digits in a step."""

LAST = 100
"""Steps at the end whose gradients are counted."""

BLOCK = 32
"""Elements that share a scale in MX formats."""

IN_BLOCKS = 2
"""Place of the layer whose gradient is counted by block: the second one that multiplies."""

Measured = dict[str, Any]


def measured() -> Measured:
    """Return what is kept of the last training."""
    kept: Measured = json.loads(MEASURED.read_text(encoding="utf-8"))
    return kept


def counted(values: torch.Tensor) -> dict[int, int]:
    """Return how many magnitudes there are in ``(2**(e - 1), 2**e]``, by ``e``; without zeros."""
    import torch  # noqa: PLC0415 - pictures are drawn without it

    mantissas, exponents = torch.frexp(values[values != 0].abs().double())
    # A power of two has the mantissa 0.5, and is the upper end of the bin below.
    exponents = exponents - (mantissas == 0.5).to(exponents.dtype)
    found, counts = exponents.unique(return_counts=True)  # type: ignore[no-untyped-call]
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


def below_largest(values: torch.Tensor) -> dict[int, int]:
    """Return how many magnitudes there are in ``(2**(-d - 1), 2**-d]`` of the largest of their row, by ``d``.

    The largest is rounded down to a power of two, as the scale of a block is: its own ``d`` is -1 or 0.
    """
    largest = values.abs().amax(1, keepdim=True).double()
    _, exponents = largest.frexp()  # of what is at least half of two to that power
    return {-e: n for e, n in counted(values.double().ldexp(1 - exponents)).items()}


class _Counts:
    """Counts of magnitudes in the gradients of the outputs of layers.

    Args:
        split: What is counted of a gradient, by the exponents of its magnitudes or of what is below them.
    """

    def __init__(self, split: Callable[[torch.Tensor], dict[int, int]]) -> None:
        self._split = split
        self.is_on = False
        self.found: dict[int, int] = {}
        self.zeros = 0

    def note(self, _module: Any, _inputs: Any, output: Any) -> None:
        """Have the gradient of an output counted: a forward hook."""
        if self.is_on and output.requires_grad:
            output.register_hook(self._count)

    def _count(self, gradient: torch.Tensor) -> None:
        self.zeros += int((gradient == 0).sum())
        for key, number in self._split(gradient).items():
            self.found[key] = self.found.get(key, 0) + number

    def kept(self) -> dict[str, int]:
        """Return the counts as JSON has them."""
        return {str(key): number for key, number in sorted(self.found.items())}


def measure() -> Measured:
    """Train twice: in float32, for gradients as they are, and in float16, for the loss scale.

    Cost: some seconds.
    """
    import torch  # noqa: PLC0415 - pictures are drawn without it

    every = _Counts(counted)
    block = _Counts(lambda gradient: below_largest(gradient.view(-1, BLOCK)))
    whole = _Counts(lambda gradient: below_largest(gradient.view(1, -1)))
    model, batch = _training()
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            layer.register_forward_hook(every.note)
    for counts in (block, whole):
        model[IN_BLOCKS].register_forward_hook(counts.note)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        for counts in (every, block, whole):
            counts.is_on = step >= STEPS - LAST
        optimizer.zero_grad()
        images, labels = batch(step)
        torch.nn.functional.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return {
        "torch": torch.__version__.partition("+")[0],
        "exponents": every.kept(),
        "zeros": every.zeros,
        "below_block": block.kept(),
        "below_tensor": whole.kept(),
        "scales": _scales(),
    }


def _training() -> tuple[torch.nn.Sequential, Callable[[int], tuple[torch.Tensor, torch.Tensor]]]:
    """Return a model of four layers that tells digits apart, and its batches."""
    import torch  # noqa: PLC0415 - as above
    from sklearn.datasets import load_digits  # noqa: PLC0415
    from torch import nn  # noqa: PLC0415

    torch.manual_seed(0)
    data = load_digits()
    order = torch.randperm(len(data.target))
    images = torch.tensor(data.data, dtype=torch.float32)[order] / 16
    labels = torch.tensor(data.target)[order]
    model = nn.Sequential(
        nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 10)
    )  # fmt: skip

    def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.arange(step * BATCH, (step + 1) * BATCH) % len(labels)
        return images[rows], labels[rows]

    return model, batch


def _scales() -> list[int]:
    """Return the exponent of the loss scale in each step of a training in float16."""
    import torch  # noqa: PLC0415 - as above

    model, batch = _training()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", growth_interval=INTERVAL)
    scales = []
    for step in range(STEPS):
        optimizer.zero_grad()
        images, labels = batch(step)
        scales.append(round(math.log2(scaler.get_scale())))
        with torch.autocast("cpu", dtype=torch.float16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)
        scaler.update()
    return scales
