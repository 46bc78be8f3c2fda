"""The mistake: weights that were learnt in bfloat16 are fine-tuned in float16.

bfloat16 reaches as far as float32, so that nothing has held the sums inside the model down: the norms that
follow make up for their size. In float16 they are infinite, in each step, and the loss is NaN.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

import ampwatch

from shared import batch, conclude, digits, parser

BATCH, WIDTH, HIDDEN, BLOCKS = 128, 64, 256, 3
LARGE = 24.0
"""Standard deviation of the weights at the beginning: a stand-in for what grows in a million steps."""


class FeedForward(nn.Module):
    """The feed-forward block of a T5: a norm, two layers, and what came in added to it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.wi = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.wo = nn.Linear(HIDDEN, WIDTH, bias=False)
        nn.init.normal_(self.wi.weight, std=LARGE)
        nn.init.normal_(self.wo.weight, std=LARGE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return shape (B, ``WIDTH``)."""
        return x + self.wo(functional.relu(self.wi(self.norm(x))))


class Classifier(nn.Module):
    """Blocks between the pixels and a head."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(FeedForward() for _ in range(BLOCKS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits, shape (B, ``classes``)."""
        return self.head(self.norm(self.blocks(images.flatten(1))))


def pretrained(images: torch.Tensor, labels: torch.Tensor, steps: int) -> Classifier:
    """Return a model that has learnt from these digits, in bfloat16."""
    model = Classifier(classes=5).to(images.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(steps):
        x, y = batch(step, BATCH, images, labels)
        with torch.autocast(images.device.type, dtype=torch.bfloat16):
            loss = functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def main() -> None:
    """Fine-tune."""
    options = parser(__doc__, steps=60, remedy="fine-tune in bfloat16, as it was learnt")
    options.add_argument("--pretraining", type=int, default=60, help="steps of it (%(default)s)")
    args = options.parse_args()
    device = args.device
    torch.manual_seed(0)
    images, labels = digits(device)
    old = labels < 5

    model = pretrained(images[old], labels[old], args.pretraining)
    model.head = nn.Linear(WIDTH, 5).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loss_fn = nn.CrossEntropyLoss()
    dtype = torch.bfloat16 if args.fixed else torch.float16
    scaler = torch.amp.GradScaler(device.type, enabled=dtype is torch.float16)
    watch = ampwatch.monitor(model, scaler, serve=args.page)

    for step in range(args.steps):
        x, y = batch(step, BATCH, images[~old], labels[~old] - 5)
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=dtype):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    print(f"loss {loss.item():.3f}")
    conclude(args.json, watch)


if __name__ == "__main__":
    main()
