"""timm: a small ViT, NativeScaler with clipping, an average of the weights."""

from __future__ import annotations

import torch
from timm.models.vision_transformer import VisionTransformer
from timm.utils import ModelEmaV3, NativeScaler

from shared import (
    BATCH,
    GROWTH_INTERVAL,
    INIT_SCALE,
    STEPS,
    Boost,
    Course,
    settle,
    watch,
)

settle()
model = VisionTransformer(
    img_size=16, patch_size=8, embed_dim=32, depth=2, num_heads=2, num_classes=4
)
model.blocks[1].mlp.drop1 = Boost()
course = Course(model, "blocks.1.mlp.drop1", "blocks.1.mlp.fc2.weight")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = NativeScaler("cpu")
scaler._scaler = torch.amp.GradScaler("cpu", init_scale=INIT_SCALE, growth_interval=GROWTH_INTERVAL)
average = ModelEmaV3(model, decay=0.9)
watch(model, scaler._scaler)
generator = torch.Generator().manual_seed(1)
for step in range(STEPS):
    x = torch.randn(BATCH // 2, 3, 16, 16, generator=generator)
    y = torch.randint(0, 4, (BATCH // 2,), generator=generator)
    course.begins()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters())
    average.update(model, step=step)
    course.ended(scaler.state_dict()["scale"])
course.write(torch.nn.ModuleList([model, average.module]), "timm")
