"""An EfficientNet on images like those of CIFAR-10, in float32, bfloat16 and float16. One of them stops learning.

Its last feature map is averaged by GeM, the generalised mean: the mean of the cubes, and the cube root
of that. A channel that is nearly silent has a mean that float32 and bfloat16 hold, and that is zero in
float16. The slope of a root at zero is infinite.

Without ``--data`` the images are made up: ten textures in noise, 32 x 32 in three colours.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import ampwatch

from efficientnet import MBConv
from shared import batch, conclude, parser

BATCH = 32
PIXELS = 3 * 32 * 32
CLASSES = 10

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class GeM(nn.Module):
    """Pool each channel by the root of the mean of its cubes: between the mean and the largest.

    Args:
        in_float32: Whether to leave autocast for it.
    """

    def __init__(self, *, in_float32: bool) -> None:
        super().__init__()
        self.in_float32 = in_float32

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Take shape (B, C, H, W), return (B, C)."""
        if not self.in_float32:
            return self.pool(x)
        with torch.autocast(x.device.type, enabled=False):
            return self.pool(x.float())

    def pool(self, x: torch.Tensor) -> torch.Tensor:
        """Pool in the dtype of ``x``."""
        x = x.clamp(min=1e-6)  # no root of what is negative
        return (x * x * x).mean((2, 3)).pow(1 / 3)


def efficientnet(width: int, *, gem_in_float32: bool) -> nn.Sequential:
    """Return a small EfficientNet for images of 32 x 32, the same one each time."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, width, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.SiLU(),
        MBConv(width, width, expand=1, stride=1),
        MBConv(width, 2 * width, expand=4, stride=2),
        MBConv(2 * width, 2 * width, expand=4, stride=1),
        MBConv(2 * width, 3 * width, expand=4, stride=2),
        nn.Conv2d(3 * width, 10 * width, 1, bias=False),
        nn.BatchNorm2d(10 * width),
        nn.SiLU(),
        GeM(in_float32=gem_in_float32),
        nn.Linear(10 * width, CLASSES),
    )


def cifar(directory: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Read CIFAR-10 in its binary version: files of rows, each a label and 32 x 32 pixels per colour.

    Args:
        directory: Where ``data_batch_1.bin`` and the others are.
    """
    files = sorted(directory.glob("data_batch_*.bin"))
    if not files:
        msg = f"expected data_batch_1.bin of CIFAR-10 in {directory}, found none"
        raise SystemExit(msg)
    content = bytearray(b"".join(file.read_bytes() for file in files))
    rows = torch.frombuffer(content, dtype=torch.uint8).view(-1, 1 + PIXELS)
    return rows[:, 1:].reshape(-1, 3, 32, 32) / 127.5 - 1, rows[:, 0].long()


def textures(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Make up images of ten classes, each with waves of its own length and direction, in noise."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    angle = (labels * (torch.pi / CLASSES)).view(-1, 1, 1, 1)
    across, down = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
    phase = 2 * torch.pi * torch.rand(count, 3, 1, 1, generator=generator)
    waves = torch.sin(0.7 * (across * angle.cos() + down * angle.sin()) + phase)
    return (waves + torch.randn(count, 3, 32, 32, generator=generator)) / 2, labels


def main() -> None:
    """Train in one precision after the other."""
    options = parser(__doc__, steps=60, remedy="pool in float32")
    options.add_argument("--width", type=int, default=8, help="channels of the stem (%(default)s)")
    options.add_argument("--data", type=Path, metavar="DIR", help="CIFAR-10, binary version")
    args = options.parse_args()
    images, labels = cifar(args.data) if args.data else textures(BATCH * 100)
    images = images.to(args.device, memory_format=torch.channels_last)
    labels = labels.to(args.device)
    device = args.device.type

    watches = []
    for name, dtype in DTYPES.items():
        model = efficientnet(args.width, gem_in_float32=args.fixed)
        model = model.to(device, memory_format=torch.channels_last)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        scaler = torch.amp.GradScaler(device, enabled=dtype is torch.float16)
        losses = []
        with ampwatch.monitor(model, scaler, run=f"cifar-{name}", serve=args.page) as watch:
            for step in range(args.steps):
                x, y = batch(step, BATCH, images, labels)
                optimizer.zero_grad()
                with torch.autocast(device, dtype, enabled=dtype is not torch.float32):
                    loss = functional.cross_entropy(model(x), y)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                losses.append(loss.detach())
        first, last = losses[0].item(), torch.stack(losses[-10:]).mean().item()
        print(f"{name}: loss {first:.2f} at first, {last:.2f} in the last ten steps")
        watches.append(watch)
    print()
    conclude(args.json, *watches)


if __name__ == "__main__":
    main()
