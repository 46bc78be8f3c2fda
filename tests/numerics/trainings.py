"""Three small trainings, and the tensors that matmuls of their last step read or write."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH, LENGTH, LETTERS = 64, 64, 96


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        parts = self.qkv(self.norms[0](x)).view(batch, length, 3, 4, WIDTH // 4)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


class _Gpt(nn.Module):
    """Two blocks over characters."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(LETTERS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(_Block(), _Block())
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, LETTERS)

    def forward(self, text: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.letters(text) + self.places.weight)))


def gpt(steps: int = 40) -> dict[str, Tensor]:
    """Train on a text in which each letter says something of the next."""
    model = _Gpt()
    follows = torch.randint(LETTERS, (LETTERS, 3))

    def loss() -> Tensor:
        letters = [torch.randint(LETTERS, (16,))]
        for _ in range(LENGTH):
            letters.append(follows[letters[-1], torch.randint(3, (16,))])
        text = torch.stack(letters, 1)
        return functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    return _tensors_of_last_step(model, loss, steps)


def cnn(steps: int = 40) -> dict[str, Tensor]:
    """Train on noisy pictures of ten patterns."""
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1),
        nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1024, 128), nn.ReLU(),
        nn.Linear(128, 10),
    )  # fmt: skip
    patterns = torch.randn(10, 1, 8, 8)

    def loss() -> Tensor:
        which = torch.randint(10, (64,))
        return functional.cross_entropy(model(patterns[which] + torch.randn(64, 1, 8, 8)), which)

    return _tensors_of_last_step(model, loss, steps)


def mlp(steps: int = 60) -> dict[str, Tensor]:
    """Train on a sine of a projection."""
    model = nn.Sequential(
        nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 1)
    )
    direction = torch.randn(64, 1)

    def loss() -> Tensor:
        x = torch.randn(256, 64)
        return functional.mse_loss(model(x), torch.sin(x @ direction))

    return _tensors_of_last_step(model, loss, steps)


def _tensors_of_last_step(
    model: nn.Module, loss: Callable[[], Tensor], steps: int
) -> dict[str, Tensor]:
    """Train, and return weights, their gradients, inputs and gradients of outputs, by name."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(steps - 1):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    optimizer.zero_grad()
    found: dict[str, Tensor] = {}

    def keep(name: str, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        found[f"input {name}"] = inputs[0].detach().clone()
        output.register_hook(lambda g: found.__setitem__(f"output gradient {name}", g.clone()))

    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            module.register_forward_hook(lambda _m, i, o, name=name: keep(name, i, o))
    loss().backward()
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 and parameter.grad is not None:
            found[f"weight {name}"] = parameter.detach().clone()
            found[f"gradient {name}"] = parameter.grad.clone()
    return found
