"""Trainings by a precision plan: as good as in float32, and where the plan says so, worse one step below.

Usage: ``python -m benchmarks.plans [--seeds 3] [--out benchmarks/results/DATE-cpu-plans.json]``, some minutes on a CPU.

Three models on real data: a character GPT on the sources of Python's library, a convolutional network and an
MLP-mixer on the digits of scikit-learn. Each is trained in float32 under ampwatch, which plans it; then with the
products of its layers in emulated formats: those of the plan, and those one step cheaper, everywhere. An
emulated product multiplies, in float32, operands that were cast to the format and back; blocks lie along the
dimension that a product sums over.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sysconfig
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

import ampwatch
from ampwatch import lab
from ampwatch.numerics.formats import FORMATS

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from ampwatch.lab.precision.plan import Plan

WIDTH, LENGTH, BATCH = 64, 64, 16
STEPS = {"gpt": 100, "cnn": 80, "mixer": 80}
PLANS: dict[str, dict[str, Any]] = {
    "default": {"limit": 20.0},
    "halves": {"limit": 40.0, "formats": ("float8_e5m2", "bfloat16", "float16", "float32")},
    "float16": {"limit": 60.0, "formats": ("float8_e5m2", "bfloat16", "float16", "float32")},
}
"""Arguments of the plans that are tried. Those of the second keep bfloat16, of the third float16."""

Formats = dict[str, dict[str, tuple[str, ...]]]
"""Formats of the two operands, by module and product."""


# Emulated products


def rounded(values: Tensor, name: str, dim: int) -> Tensor:
    """Return values cast to a format and back, in blocks along a dimension."""
    fmt = FORMATS[name]
    if name == "float32":
        return values
    if fmt.block is None:
        scale = torch.tensor(1.0)
        if fmt.bits == 8:
            scale = torch.exp2(
                torch.floor(torch.log2(fmt.max / values.abs().amax().clamp(min=1e-30)))
            )
        return (values * scale).to(getattr(torch, name)).float() / scale
    moved = values.movedim(dim, -1).contiguous()
    spare = -moved.shape[-1] % fmt.block.elements
    padded = functional.pad(moved, (0, spare))
    made = _blocks(padded.view(-1, fmt.block.elements), name).view(padded.shape)
    return made[..., : moved.shape[-1]].movedim(-1, dim)


def _blocks(blocks: Tensor, name: str) -> Tensor:
    """Return blocks cast to a format of MX (OCP MX 1.0, 6.3) or NVFP4 (arXiv:2509.25149, B) and back."""
    largest = blocks.abs().amax(1, keepdim=True)
    if name == "nvfp4":
        whole = (largest.amax() / (6 * 448)).clamp(min=1e-30)
        scales = (largest / 6 / whole).clamp(max=448.0).to(torch.float8_e4m3fn).float()
        scales = scales.clamp(min=2.0**-9) * whole
    else:
        top = math.floor(math.log2(FORMATS[name].max))
        scales = torch.exp2(torch.floor(torch.log2(largest.clamp(min=1e-30))) - top)
    x = (blocks / scales).clamp(-FORMATS[name].max, FORMATS[name].max)
    if name == "mxfp8_e4m3":
        return x.to(torch.float8_e4m3fn).float() * scales
    step = torch.where(x.abs() < 2, 0.5, torch.where(x.abs() < 4, 1.0, 2.0))
    return torch.round(x / step) * step * scales


class _Product(torch.autograd.Function):
    """x @ w.T of matrices, with each of the three products in formats of its own."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w: Tensor, formats: dict[str, tuple[str, ...]], scale: float
    ) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.formats, ctx.scale = formats, scale
        left, right = formats.get("forward", ("float32", "float32"))
        return rounded(x, left, 1) @ rounded(w, right, 1).t()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, w = ctx.saved_tensors
        # A loss scale, which float16 has and the rest does not feel: a power of two.
        g = gradients[0] * ctx.scale
        left, right = ctx.formats.get("grad_input", ("float32", "float32"))
        of_x = rounded(g, left, 1) @ rounded(w, right, 0) if ctx.needs_input_grad[0] else None
        left, right = ctx.formats.get("grad_weight", ("float32", "float32"))
        of_w = rounded(g, left, 0).t() @ rounded(x, right, 0)
        return None if of_x is None else of_x / ctx.scale, of_w / ctx.scale, None, None


def emulate(model: nn.Module, formats: Formats, scale: float) -> None:
    """Have the layers of a model multiply in these formats."""
    for name, module in model.named_modules():
        if name in formats and isinstance(module, nn.Linear):
            module.forward = _linear(module, formats[name], scale)  # type: ignore[method-assign]
        elif name in formats and isinstance(module, nn.Conv2d):
            module.forward = _convolution(module, formats[name], scale)  # type: ignore[method-assign]


def _linear(
    layer: nn.Linear, formats: dict[str, tuple[str, ...]], scale: float
) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        y = _Product.apply(x.reshape(-1, x.shape[-1]), layer.weight, formats, scale)
        return (y + layer.bias).view(*x.shape[:-1], -1)

    return forward


def _convolution(
    layer: nn.Conv2d, formats: dict[str, tuple[str, ...]], scale: float
) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        # Patches with channels last, which a kernel of a GPU sums over in blocks.
        patches = functional.unfold(x, layer.kernel_size, padding=layer.padding)
        size = math.prod(layer.kernel_size)
        patches = patches.view(len(x), x.shape[1], size, -1).permute(0, 3, 2, 1)
        weight = layer.weight.flatten(2).transpose(1, 2).flatten(1)
        y = _Product.apply(patches.flatten(2).flatten(0, 1), weight, formats, scale)
        return (y + layer.bias).view(len(x), *x.shape[2:], -1).permute(0, 3, 1, 2)

    return forward


def one_step_cheaper(plan: Plan) -> Formats:
    """Return the formats of a plan, each product in the one that the plan says to be the next cheaper."""
    return {
        layer.module: {
            p.product: tuple((p.cheaper.split(" x ") * 2)[:2]) if p.cheaper else p.formats
            for p in layer.products
        }
        for layer in plan.layers
    }


# The models


class Block(nn.Module):
    """A block of a GPT."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Attend, then transform."""
        batch, length, _ = x.shape
        parts = self.qkv(self.norms[0](x)).view(batch, length, 3, 4, WIDTH // 4)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


class Gpt(nn.Module):
    """Two blocks over bytes of 96 kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(96, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 96)

    def forward(self, text: Tensor) -> Tensor:
        """Return logits."""
        return self.head(self.norm(self.blocks(self.letters(text) + self.places.weight)))


class Mixer(nn.Module):
    """An MLP-mixer over patches of four pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Linear(4, 64)
        self.norms = nn.ModuleList(nn.LayerNorm(64) for _ in range(4))
        self.tokens = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(2)
        )
        self.channels = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)) for _ in range(2)
        )
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        x = functional.unfold(x, 2, stride=2).transpose(1, 2)
        x = self.patches(x)
        for n in range(2):
            x = x + self.tokens[n](self.norms[2 * n](x).transpose(1, 2)).transpose(1, 2)
            x = x + self.channels[n](self.norms[2 * n + 1](x))
        return self.head(x.mean(1))


def cnn() -> nn.Module:
    """Return a small convolutional network."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


Batches = tuple["Callable[[torch.Generator], tuple[Tensor, Tensor]]", tuple["Tensor", "Tensor"]]


def text() -> Batches:
    """Return batches of Python's sources, and a large one of those that are held out."""
    library = Path(sysconfig.get_paths()["stdlib"])
    raw = "".join(path.read_text(errors="replace") for path in sorted(library.glob("[a-h]*.py")))
    kinds = torch.tensor([min(max(ord(c) - 31, 0), 95) for c in raw])
    split = int(0.95 * len(kinds))

    def cut(part: Tensor, generator: torch.Generator, size: int) -> tuple[Tensor, Tensor]:
        begin = torch.randint(len(part) - LENGTH - 1, (size,), generator=generator)
        both = torch.stack([part[b : b + LENGTH + 1] for b in begin.tolist()])
        return both[:, :-1], both[:, 1:]

    held = cut(kinds[split:], torch.Generator().manual_seed(0), 128)
    return lambda generator: cut(kinds[:split], generator, BATCH), held


def digits() -> Batches:
    """Return batches of handwritten digits, and those that are held out."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - not for the GPT

    found = load_digits()
    x = torch.tensor(found.images, dtype=torch.float32).unsqueeze(1) / 16
    y = torch.tensor(found.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]

    def batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        which = torch.randint(1400, (64,), generator=generator)
        return x[which], y[which]

    return batch, (x[1400:], y[1400:])


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Batches]]] = {
    "gpt": (Gpt, text),
    "cnn": (cnn, digits),
    "mixer": (Mixer, digits),
}


def train(
    name: str,
    seed: int,
    data: Batches,
    formats: Formats | None = None,
    scale: float = 1.0,
    watch: Any = None,
) -> float:
    """Train, and return the loss on what was held out.

    Args:
        name: Of the model.
        seed: Of its weights and batches.
        data: Its data.
        formats: Emulated formats; float32 without.
        scale: Loss scale of gradients within products.
        watch: Called with the model and the optimizer, to attach a monitor.
    """
    torch.manual_seed(seed)
    model = MODELS[name][0]()
    if formats is not None:
        emulate(model, formats, scale)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    if watch is not None:
        watch(model, optimizer)
    generator = torch.Generator().manual_seed(seed)
    batch, held = data
    for step in range(STEPS[name]):
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1.0, 2 * (1 - step / STEPS[name]))
        optimizer.zero_grad()
        x, y = batch(generator)
        functional.cross_entropy(model(x).flatten(0, -2), y.flatten()).backward()
        optimizer.step()
    with torch.no_grad():
        return float(functional.cross_entropy(model(held[0]).flatten(0, -2), held[1].flatten()))


def compare(name: str, seeds: int) -> list[dict[str, Any]]:
    """Train a model in float32, by each plan, and one step below each; return the losses."""
    data = MODELS[name][1]()
    monitors: list[Any] = []

    def attach(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        monitors.append(
            ampwatch.monitor(
                model, optimizer=optimizer, run=name, serve=False, overhead_budget=0.5, lab=True
            )
        )

    known: dict[tuple[str, int], float] = {}

    def emulated(formats: Formats, seed: int, scale: float) -> float:
        key = f"{formats} {scale}", seed
        if key not in known:
            known[key] = train(name, seed, data, formats, scale)
        return known[key]

    exact = [train(name, seed, data, watch=attach if not seed else None) for seed in range(seeds)]
    rows = []
    for title, arguments in PLANS.items():
        plan = lab.plan(monitors[0], **arguments)
        print(plan)
        chosen: Formats = {
            layer.module: {p.product: p.formats for p in layer.products if p.formats}
            for layer in plan.layers
        }
        cheaper = one_step_cheaper(plan)
        planned = [emulated(chosen, s, plan.loss_scale) for s in range(seeds)]
        below = [emulated(cheaper, s, plan.loss_scale) for s in range(seeds)]
        row = {
            "model": name,
            "plan": title,
            "arguments": arguments,
            "steps": sorted({s for phase in plan.phases for s in phase.steps}),
            "flops_by_format": plan.flops_by_format(),
            "least_db": min(p.sqnr_db for p in plan.products if p.sqnr_db is not None),
            "float32": exact,
            "by_the_plan": planned,
            "one_step_cheaper": below,
            **_summary(exact, planned, below),
        }
        print(
            {k: row[k] for k in ("model", "plan", "plan_off", "cheaper_off", "noise")}, flush=True
        )
        rows.append(row)
    monitors[0].close()
    return rows


def _summary(exact: list[float], planned: list[float], below: list[float]) -> dict[str, float]:
    """Return means of the differences to float32 of the same seed, and the deviation among seeds."""
    return {
        "noise": statistics.stdev(exact),
        "plan_off": statistics.fmean(p - e for p, e in zip(planned, exact, strict=True)),
        "cheaper_off": statistics.fmean(b - e for b, e in zip(below, exact, strict=True)),
    }


def main() -> None:
    """Train all, and write the losses."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    began = time.monotonic()
    rows = [row for name in args.models.split(",") for row in compare(name, args.seeds)]
    result = {
        "seeds": args.seeds,
        "seconds": round(time.monotonic() - began, 1),
        "torch": torch.__version__,
        "rows": rows,
    }
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
