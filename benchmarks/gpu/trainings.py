"""GPT-2 124M with random tokens, in the ways that people train it; and what a step answers.

B = batch, T = tokens, D = features, V = vocabulary.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the name everybody gives it
from workloads import GPT

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


@dataclass
class Found:
    """What a step has found.

    Attributes:
        said: One line about it.
        reds: What is wrong, a sentence each.
        rows: Figures.
    """

    said: str = ""
    reds: list[str] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Size:
    """Size of a GPT: layers, D, V, T and B, and the number of heads."""

    layers: int = 12
    features: int = 768
    vocabulary: int = 50257
    tokens: int = 1024
    batch: int = 4
    heads: int = 12


TINY = Size(layers=2, features=32, vocabulary=64, tokens=16, batch=2, heads=2)


def gpt2(size: Size) -> nn.Module:
    """Return a GPT of that size; by default GPT-2 124M (Radford et al. 2019), weights tied."""
    model = GPT(size.layers, size.features, size.tokens, size.heads)
    model.tokens = nn.Embedding(size.vocabulary, size.features)
    model.head = nn.Linear(size.features, size.vocabulary, bias=False)
    nn.init.normal_(model.tokens.weight, std=0.02)
    model.head.weight = model.tokens.weight
    return model


@dataclass(frozen=True)
class Variant:
    """A way to train: dtype of autocast, with a scaler if float16, and what runs the model."""

    dtype: torch.dtype = torch.bfloat16
    flavour: str = "fused"
    is_compiled: bool = False
    is_graphed: bool = False


VARIANTS = {
    "fp16-fused": Variant(torch.float16),
    "fp16-foreach": Variant(torch.float16, "foreach"),
    "bf16-fused": Variant(),
    "bf16-foreach": Variant(flavour="foreach"),
    "graphs": Variant(torch.float16, is_graphed=True),
    "compiled": Variant(is_compiled=True),
}


class Gpt2Training:
    """A variant on a device, ready to step.

    Args:
        device: Where.
        variant: How.
        size: Of the model.
    """

    def __init__(self, device: str, variant: Variant, size: Size) -> None:
        torch.manual_seed(0)
        self._device = device
        self._variant = variant
        self._tokens = torch.randint(size.vocabulary, (size.batch, size.tokens), device=device)
        self.model: Any = gpt2(size).to(device)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=1e-5, **{variant.flavour: True}
        )
        is_half = variant.dtype is torch.float16
        self.scaler = torch.amp.GradScaler(device, init_scale=1024.0) if is_half else None
        if variant.is_graphed and device == "cuda":
            # A cast that is kept for a later forward would not be in the graph of that one.
            with self._autocast():
                self.model = torch.cuda.make_graphed_callables(self.model, (self._tokens,))
        elif variant.is_compiled:
            backend = "inductor" if device == "cuda" else "aot_eager"
            self.model = torch.compile(self.model, backend=backend)

    def _autocast(self) -> AbstractContextManager[Any]:
        variant = self._variant
        kept = not variant.is_graphed
        return torch.autocast(self._device, dtype=variant.dtype, cache_enabled=kept)

    def step(self) -> None:
        """Take one step, as PyTorch's AMP recipe writes it."""
        self.optimizer.zero_grad(set_to_none=True)
        with self._autocast():
            loss = F.cross_entropy(self.model(self._tokens), self._tokens)
        if self.scaler is None:
            loss.backward()
            self.optimizer.step()
            return
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
