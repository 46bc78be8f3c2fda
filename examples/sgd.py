"""Plain SGD with a GradScaler, as the PyTorch documentation writes it. Nothing to report."""

from __future__ import annotations

import torch
from torch import nn

import ampwatch

from shared import batch, conclude, digits, parser


def main() -> None:
    """Train."""
    args = parser(__doc__, steps=300).parse_args()
    device = args.device
    torch.manual_seed(0)
    images, labels = digits(device)
    model = nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 128),
        nn.ReLU(),
        nn.Linear(128, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_fn = nn.CrossEntropyLoss()
    scaler = torch.amp.GradScaler(device.type)
    watch = ampwatch.monitor(model, scaler, serve=args.page)

    for step in range(args.steps):
        x, y = batch(step, 64, images, labels)
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    print(f"loss {loss.item():.3f}")
    conclude(args.json, watch)


if __name__ == "__main__":
    main()
