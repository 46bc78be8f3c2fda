"""The mistake: a net that ends in ``Sigmoid``, and ``BCELoss``, under autocast.

On a GPU PyTorch refuses it. On a CPU it runs: the probability has been rounded to float16 before its
logarithm is taken, so everything above 0.9998 is 1, and a sample there teaches nothing or too much.
"""

from __future__ import annotations

import torch
from torch import nn

import ampwatch

from shared import batch, conclude, parser, tumours


def main() -> None:
    """Train."""
    remedy = "leave the Sigmoid out and take BCEWithLogitsLoss"
    args = parser(__doc__, steps=200, remedy=remedy).parse_args()
    device = args.device
    torch.manual_seed(0)
    measures, answers = tumours(device)
    layers = [nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)]
    if args.fixed:
        model = nn.Sequential(*layers).to(device)
        loss_fn: nn.Module = nn.BCEWithLogitsLoss()
    else:
        model = nn.Sequential(*layers, nn.Sigmoid()).to(device)
        loss_fn = nn.BCELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device.type)
    watch = ampwatch.monitor(model, scaler, serve=args.page)

    try:
        with watch:
            for step in range(args.steps):
                x, y = batch(step, 32, measures, answers)
                optimizer.zero_grad()
                with torch.autocast(device.type, dtype=torch.float16):
                    loss = loss_fn(model(x), y)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
        print(f"loss {loss.item():.3f}")
    finally:
        conclude(args.json, watch)  # also where an exception ends it, as on a GPU


if __name__ == "__main__":
    main()
