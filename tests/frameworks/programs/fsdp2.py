"""FSDP2: ``fully_shard`` of each block and of the model."""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from shared import Course, Net, loop, new_scaler, start_gloo, watch

rank = start_gloo()
mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
model = Net()
course = Course(model, at_forward=True)
for block in model.blocks:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = new_scaler()
watch(model, scaler)
loop(course, model, optimizer, scaler, rank)
course.write(model)
torch.distributed.destroy_process_group()
