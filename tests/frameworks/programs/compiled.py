"""torch.compile of the model; the loop is Python's."""

from __future__ import annotations

import torch

from shared import Course, Net, loop, new_scaler, settle, watch

settle()
model = Net()
course = Course(model)
compiled = torch.compile(model, backend="aot_eager")
optimizer = torch.optim.AdamW(compiled.parameters(), lr=1e-3)
scaler = new_scaler()
watch(compiled, scaler)
loop(course, compiled, optimizer, scaler)
course.write(model)
