"""FSDP2: ``fully_shard`` of each block and of the model; with ``policy`` in its own float16, without autocast."""

from __future__ import annotations

import contextlib
import sys

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from shared import Course, Net, loop, new_scaler, start_gloo, watch

rank = start_gloo()
mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
model = Net()
course = Course(model, at_forward=True)
has_policy = sys.argv[1:] == ["policy"]
policy = (
    MixedPrecisionPolicy(torch.float16, torch.float32) if has_policy else MixedPrecisionPolicy()
)
for block in model.blocks:
    fully_shard(block, mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh, mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = new_scaler()
watch(model, scaler)
region = contextlib.nullcontext() if has_policy else None
loop(course, model, optimizer, scaler, rank, region)
course.write(model)
torch.distributed.destroy_process_group()
