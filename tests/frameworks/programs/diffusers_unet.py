"""diffusers: its example of an unconditional UNet: accelerate, noise of a scheduler, clipping, an average of the weights."""

from __future__ import annotations

import accelerate
import torch
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.optimization import get_cosine_schedule_with_warmup
from diffusers.training_utils import EMAModel

from shared import STEPS, Boost, Course, loss_of, new_scaler, settle, watch

settle()
accelerator = accelerate.Accelerator(cpu=True)
accelerator.state._mixed_precision = "fp16"
accelerator.native_amp = True
accelerator.scaler = new_scaler()
bare = UNet2DModel(
    sample_size=8,
    in_channels=1,
    out_channels=1,
    layers_per_block=1,
    block_out_channels=(8, 16),
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    norm_num_groups=4,
    attention_head_dim=8,
)
bare.mid_block.resnets[0].dropout = Boost()
course = Course(bare, "mid_block.resnets.0.dropout", "mid_block.resnets.0.conv1.weight")
average = EMAModel(bare.parameters(), decay=0.9)
noises = DDPMScheduler(num_train_timesteps=100)
optimizer = torch.optim.AdamW(bare.parameters(), lr=1e-3)
schedule = get_cosine_schedule_with_warmup(optimizer, 5, 2 * STEPS)
images = torch.randn(STEPS * 4, 1, 8, 8, generator=torch.Generator().manual_seed(1))
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images), batch_size=4)
model, optimizer, data, schedule = accelerator.prepare(bare, optimizer, data, schedule)
watch(accelerator)
for (clean,) in data:
    course.begins()
    noise = torch.randn(clean.shape)
    times = torch.randint(0, 100, (len(clean),))
    with accelerator.accumulate(model):
        prediction = model(noises.add_noise(clean, noise, times), times).sample
        accelerator.backward(loss_of(prediction, noise))
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    average.step(bare.parameters())
    course.ended(accelerator.scaler.get_scale(), skipped=optimizer.step_was_skipped)
accelerator.end_training()
course.write(bare, "diffusers", "accelerate")
