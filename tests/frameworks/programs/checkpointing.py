"""torch.utils.checkpoint around each block."""

from __future__ import annotations

import torch
from torch.utils.checkpoint import checkpoint

from shared import Course, Net, loop, new_scaler, settle, watch


class Checkpointed(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x)


settle()
model = Checkpointed()
course = Course(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = new_scaler()
watch(model, scaler)
loop(course, model, optimizer, scaler)
course.write(model)
