"""A plain loop."""

from __future__ import annotations

import torch

from shared import Course, Net, loop, new_scaler, settle, watch

settle()
model = Net()
course = Course(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = new_scaler()
watch(model, scaler)
loop(course, model, optimizer, scaler)
course.write(model)
