"""ignite: an Engine with a training step of its own."""

from __future__ import annotations

from typing import Any

import torch
from ignite.engine import Engine, Events

from shared import BATCH, Course, Net, examples, loss_of, new_scaler, settle, watch

settle()
model = Net()
course = Course(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = new_scaler()


def train_step(_: Engine, batch: Any) -> float:
    x, y = batch
    model.train()
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_of(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


trainer = Engine(train_step)
trainer.add_event_handler(Events.STARTED, lambda _: watch(model, scaler))
trainer.add_event_handler(Events.ITERATION_STARTED, lambda _: course.begins())
trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda _: course.ended(scaler.get_scale()))
trainer.run(torch.utils.data.DataLoader(examples(), batch_size=BATCH), max_epochs=1)
course.write(model, "pytorch-ignite")
