"""torchao: the blocks' linear layers in float8, emulated as on any CPU, the rest under autocast."""

from __future__ import annotations

import sys
from dataclasses import replace

import torch
from torchao.float8 import Float8LinearConfig, convert_to_float8_training

from shared import Course, Net, loop, new_scaler, settle, watch

settle()
model = Net()
course = Course(model)
config = replace(Float8LinearConfig.from_recipe_name(sys.argv[1]), emulate=True)
convert_to_float8_training(
    model, config=config, module_filter_fn=lambda _, name: name.startswith("blocks")
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = new_scaler()
watch(model, scaler)
loop(course, model, optimizer, scaler)
course.write(model, "torchao")
