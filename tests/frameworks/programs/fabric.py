"""Lightning Fabric: a loop of one's own, with the precision plugin's scaler."""

from __future__ import annotations

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.precision import MixedPrecision

from shared import BATCH, Course, Net, examples, loss_of, new_scaler, settle, watch

settle()
scaler = new_scaler()
fabric = Fabric(
    accelerator="cpu", devices=1, plugins=[MixedPrecision("16-mixed", "cpu", scaler=scaler)]
)
fabric.launch()
bare = Net()
course = Course(bare)
model, optimizer = fabric.setup(bare, torch.optim.AdamW(bare.parameters(), lr=1e-3))
data = fabric.setup_dataloaders(torch.utils.data.DataLoader(examples(), batch_size=BATCH))
watch(model, fabric.strategy.precision)
for x, y in data:
    course.begins()
    loss = loss_of(model(x), y)
    fabric.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    course.ended(scaler.get_scale())
course.write(bare, "lightning")
