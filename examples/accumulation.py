"""Gradient accumulation, clipping and a learning-rate schedule, each at its place. Nothing to report.

What the order is about: the scale changes once per effective batch, gradients are clipped when they
are unscaled, and the schedule waits where the optimizer was skipped.
"""

from __future__ import annotations

import torch
from torch import nn

import ampwatch

from shared import batch, conclude, digits, parser

MICRO_BATCHES = 4


def main() -> None:
    """Train."""
    args = parser(__doc__, steps=200).parse_args()
    device = args.device
    torch.manual_seed(0)
    images, labels = digits(device)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10)
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=args.steps + 1)
    loss_fn = nn.CrossEntropyLoss()
    scaler = torch.amp.GradScaler(device.type)
    watch = ampwatch.monitor(model, scaler, serve=args.page)

    for step in range(args.steps):
        for micro_batch in range(MICRO_BATCHES):
            x, y = batch(step * MICRO_BATCHES + micro_batch, 16, images, labels)
            with torch.autocast(device.type, dtype=torch.float16):
                loss = loss_fn(model(x), y) / MICRO_BATCHES
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if not watch.last_step.skipped:
            schedule.step()

    print(f"loss {MICRO_BATCHES * loss.item():.3f}")
    conclude(args.json, watch)


if __name__ == "__main__":
    main()
