"""FSDP1: ``FullyShardedDataParallel`` of each block and of the model, with ShardedGradScaler."""

from __future__ import annotations

import torch
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from shared import (
    GROWTH_INTERVAL,
    INIT_SCALE,
    Block,
    Course,
    Net,
    loop,
    start_gloo,
    watch,
)

rank = start_gloo()
model = Net()
course = Course(model, at_forward=True)
sharded = FullyShardedDataParallel(
    model,
    auto_wrap_policy=ModuleWrapPolicy({Block}),
    device_id=torch.device("cpu"),
    use_orig_params=True,
)
optimizer = torch.optim.AdamW(sharded.parameters(), lr=1e-3)
scaler = ShardedGradScaler(device="cpu", init_scale=INIT_SCALE, growth_interval=GROWTH_INTERVAL)
watch(sharded, scaler)
loop(course, sharded, optimizer, scaler, rank)
course.write(sharded.module)
torch.distributed.destroy_process_group()
