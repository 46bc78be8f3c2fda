"""accelerate: prepare, accumulate over two batches; fp16 on a CPU by a scaler put in by hand."""

from __future__ import annotations

import os
from typing import Any

import accelerate
import torch
from accelerate.tracking import GeneralTracker, on_main_process

from shared import (
    BATCH,
    LOG_EVERY,
    MODE,
    TRACKED,
    Course,
    Net,
    examples,
    loss_of,
    new_scaler,
    settle,
    watch,
)


class Recorder(GeneralTracker):
    name, requires_logging_directory, tracker = "recorder", False, None

    @on_main_process
    def log(self, values: dict[str, float], step: int, **_: Any) -> None:
        course.log(values, step)


settle()
accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2, log_with=[Recorder()])
accelerator.init_trackers("project")
accelerator.state._mixed_precision = "fp16"
accelerator.native_amp = True
accelerator.scaler = new_scaler()
bare = Net()
course = Course(bare)
model, optimizer, data = accelerator.prepare(
    bare,
    torch.optim.AdamW(bare.parameters(), lr=1e-3),
    torch.utils.data.DataLoader(examples(), batch_size=BATCH // 2),
)
if MODE == TRACKED and os.environ.get("PROGRAM_WATCH") == "edit":
    import ampwatch

    ampwatch.integrations.accelerate.track(accelerator)
else:
    watch(accelerator)
for x, y in data:
    course.begins()
    with accelerator.accumulate(model):
        accelerator.backward(loss_of(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
    if accelerator.sync_gradients:
        course.ended(accelerator.scaler.get_scale(), skipped=optimizer.step_was_skipped)
        if course.step % LOG_EVERY == 0:
            accelerator.log({"loss": 0.0}, step=course.step)
accelerator.end_training()
course.write(bare, "accelerate")
