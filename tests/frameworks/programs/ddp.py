"""DistributedDataParallel."""

from __future__ import annotations

import torch

from shared import Course, Net, loop, new_scaler, start_gloo, watch

rank = start_gloo()
model = Net()
course = Course(model)
replica = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(replica.parameters(), lr=1e-3)
scaler = new_scaler()
watch(replica, scaler)
loop(course, replica, optimizer, scaler, rank)
course.write(model)
torch.distributed.destroy_process_group()
