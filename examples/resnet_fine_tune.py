"""The mistake: a ResNet-18 is fine-tuned under float16 autocast, and nobody scales the loss.

It has learnt the digits 0 to 4 in float32, and is to tell 5 to 9 apart with a new head. It runs, and
the loss falls; but below 6e-8 a gradient is zero in float16, and nobody knows how many are. ampwatch
measures it: an ``info`` while they are large enough by luck, a ``warning`` once they are not.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

import ampwatch

from shared import batch, conclude, digits, parser

WIDTH = 8
"""Channels of the first stage; 64 in the original, for images 28 times as wide."""

STRIDES = (1, 2, 2, 1)
"""Of each stage: from 8 x 8 to 2 x 2."""


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of both ways, shape (B, ``outputs``, H / ``stride``, W / ``stride``)."""
        y = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet18(nn.Module):
    """Four stages of two blocks, between a stem and a head."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        widths = [WIDTH, WIDTH, 2 * WIDTH, 4 * WIDTH, 8 * WIDTH]
        self.stem = nn.Sequential(
            nn.Conv2d(1, WIDTH, 3, padding=1, bias=False), nn.BatchNorm2d(WIDTH), nn.ReLU()
        )
        self.stages = nn.Sequential(
            *(
                nn.Sequential(Block(a, b, stride), Block(b, b, stride=1))
                for a, b, stride in zip(widths[:-1], widths[1:], STRIDES, strict=True)
            )
        )
        self.fc = nn.Linear(widths[-1], classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits, shape (B, ``classes``)."""
        return self.fc(self.stages(self.stem(images)).mean((2, 3)))


def pretrained(images: torch.Tensor, labels: torch.Tensor, steps: int) -> ResNet18:
    """Return a model that has learnt from these digits, in float32."""
    model = ResNet18(classes=5).to(images.device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        x, y = batch(step, 64, images, labels)
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def main() -> None:
    """Fine-tune."""
    options = parser(__doc__, steps=150, remedy="scale the loss with a GradScaler")
    options.add_argument("--pretraining", type=int, default=60, help="steps of it (%(default)s)")
    args = options.parse_args()
    device = args.device
    torch.manual_seed(0)
    images, labels = digits(device)
    images = images.to(memory_format=torch.channels_last)
    old = labels < 5

    model = pretrained(images[old], labels[old], args.pretraining)
    model.fc = nn.Linear(model.fc.in_features, 5).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss_fn = nn.CrossEntropyLoss()
    scaler = torch.amp.GradScaler(device.type) if args.fixed else None
    watch = ampwatch.monitor(model, scaler, serve=args.page)

    for step in range(args.steps):
        x, y = batch(step, 64, images[~old], labels[~old] - 5)
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    print(f"loss {loss.item():.3f}")
    conclude(args.json, watch)


if __name__ == "__main__":
    main()
