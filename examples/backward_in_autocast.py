"""The mistake: ``backward()`` is called inside the autocast block.

The head computes in float32, because its author wanted it to. Its backward pass runs in the autocast
that is still on, so in float16: half the precision is lost without a word.
"""

from __future__ import annotations

import torch
from torch import nn

import ampwatch

from shared import batch, conclude, digits, parser


class Classifier(nn.Module):
    """Two layers, and a head in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.GELU()
        )
        self.head = nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits, shape (B, 10)."""
        features = self.body(images)
        with torch.autocast(images.device.type, enabled=False):
            return self.head(features.float())


def main() -> None:
    """Train."""
    remedy = "leave the autocast block before backward()"
    args = parser(__doc__, steps=200, remedy=remedy).parse_args()
    device = args.device
    torch.manual_seed(0)
    images, labels = digits(device)
    model = Classifier().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_fn = nn.CrossEntropyLoss()
    scaler = torch.amp.GradScaler(device.type)
    watch = ampwatch.monitor(model, scaler, serve=args.page)

    for step in range(args.steps):
        x, y = batch(step, 64, images, labels)
        with torch.autocast(device.type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
            if not args.fixed:
                scaler.scale(loss).backward()
        if args.fixed:
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    print(f"loss {loss.item():.3f}")
    conclude(args.json, watch)


if __name__ == "__main__":
    main()
