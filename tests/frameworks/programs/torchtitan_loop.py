"""A loop as torchtitan has it: bfloat16 by FSDP2's policy, each block checkpointed and compiled; no scaler."""

from __future__ import annotations

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from shared import Boost, Course, Net, batches, loss_of, start_gloo, watch

rank = start_gloo()
mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
model = Net()
Boost.planted = 1e20
# A hook that a compiled block places is not called: the head is not compiled.
course = Course(model, infinite="head.weight", at_forward=True)
policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
for name, block in model.blocks.named_children():
    wrapped = checkpoint_wrapper(block, preserve_rng_state=False)
    wrapped.compile(backend="aot_eager", fullgraph=True)
    model.blocks.register_module(name, wrapped)
    fully_shard(wrapped, mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh, mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 5))
watch(model)
for x, y in batches(rank):
    course.begins()
    optimizer.zero_grad()
    for part in range(2):  # two micro-batches
        model.set_requires_gradient_sync(part == 1)
        (loss_of(model(x.chunk(2)[part]), y.chunk(2)[part]) / 2).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    optimizer.step()
    schedule.step()
    course.ended(None)
course.write(model)
torch.distributed.destroy_process_group()
