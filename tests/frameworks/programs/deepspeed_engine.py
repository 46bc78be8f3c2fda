"""DeepSpeed: an engine with its fp16 optimizer on a CPU; argument: the stage of ZeRO.

DeepSpeed asks its accelerator whether it can do float16, which that of a CPU denies.
"""

from __future__ import annotations

import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
for variable, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1")):
    os.environ.setdefault(variable, value)

import socket
import sys

if "MASTER_PORT" not in os.environ:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ["MASTER_PORT"] = str(free.getsockname()[1])

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator

from shared import GROWTH_INTERVAL, Course, Net, batches, loss_of, rank, settle, watch

type(get_accelerator()).is_fp16_supported = lambda _: True
deepspeed.ops.__compatible_ops__.clear()  # else it compiles its own all-reduce first
deepspeed.utils.logging.logger.setLevel("ERROR")
settle()
bare = Net()
course = Course(bare)
engine, _, _, _ = deepspeed.initialize(
    model=bare,
    model_parameters=bare.parameters(),
    optimizer=torch.optim.AdamW(bare.parameters(), lr=1e-3, eps=1e-6),
    dist_init_required=True,
    config={
        "train_micro_batch_size_per_gpu": 16,
        "fp16": {
            "enabled": True,
            "initial_scale_power": 12,
            "loss_scale_window": GROWTH_INTERVAL,
            "hysteresis": 1,
        },
        "zero_optimization": {"stage": int(sys.argv[1])},
        "steps_per_print": 1_000_000,
    },
)
if sys.argv[1] != "0":
    # ZeRO alone ends a training at a scale of 1; the fault is to last as long everywhere.
    engine.optimizer.loss_scaler.raise_error_at_min_scale = False
watch(engine)
before = engine.skipped_steps
for x, y in batches(rank()):
    course.begins()
    loss = loss_of(engine(x.half()), y)
    engine.backward(loss)
    engine.step()
    course.ended(float(engine.optimizer.loss_scale), skipped=engine.skipped_steps > before)
    before = engine.skipped_steps
course.write(bare, "deepspeed")
torch.distributed.destroy_process_group()
