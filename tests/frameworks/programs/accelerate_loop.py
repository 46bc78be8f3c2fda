"""accelerate: prepare, accumulate over two batches; fp16 on a CPU by a scaler put in by hand."""

from __future__ import annotations

import accelerate
import torch

from shared import BATCH, Course, Net, examples, loss_of, new_scaler, settle, watch

settle()
accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
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
watch(model, accelerator.scaler)
for x, y in data:
    course.begins()
    with accelerator.accumulate(model):
        accelerator.backward(loss_of(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
    if accelerator.sync_gradients:
        course.ended(accelerator.scaler.get_scale(), skipped=optimizer.step_was_skipped)
course.write(bare, "accelerate")
