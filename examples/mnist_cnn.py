"""The convolutional net of the MNIST tutorials, in bfloat16, with 420 or 1000 channels.

420 is no multiple of 8, so tensor cores cannot work on it at full speed; 1000 is one. Which op has
how much to do with it is what ``level="deep"`` counts.
"""

from __future__ import annotations

import torch
from torch import nn

import ampwatch

from shared import batch, conclude, digits, parser


def main() -> None:
    """Train."""
    options = parser(__doc__, steps=12, remedy="pad the channels to a multiple of 8")
    options.add_argument(
        "--channels", type=int, default=420, help="of the first layer (%(default)s)"
    )
    args = options.parse_args()
    device = args.device
    channels = -(-args.channels // 8) * 8 if args.fixed else args.channels
    torch.manual_seed(0)
    images, labels = digits(device)
    images = images.to(memory_format=torch.channels_last)
    model = nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(channels, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * 64, 10),
    ).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss_fn = nn.CrossEntropyLoss()
    watch = ampwatch.monitor(model, level="deep", serve=args.page)

    for step in range(args.steps):
        x, y = batch(step, 64, images, labels)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    print(f"{channels} channels, loss {loss.item():.3f}\n")
    print(watch.op_table())
    conclude(args.json, watch)


if __name__ == "__main__":
    main()
