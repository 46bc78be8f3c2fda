"""Tensor parallelism: all parameters are DTensors, each layer is split over the ranks."""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from shared import Course, Net, loop, new_scaler, start_gloo, watch

start_gloo()
mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
model = Net()
course = Course(model, at_forward=True)
whole = {"embed": ColwiseParallel(output_layouts=Replicate())}
whole["head"] = ColwiseParallel(output_layouts=Replicate())
parallelize_module(model, mesh, whole)
for block in model.blocks:
    parallelize_module(block, mesh, {"fc1": ColwiseParallel(), "fc2": RowwiseParallel()})
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = new_scaler()
watch(model, scaler)
loop(course, model, optimizer, scaler)
course.write(model)
torch.distributed.destroy_process_group()
