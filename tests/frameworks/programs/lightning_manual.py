"""Lightning's manual optimisation: training_step itself runs backward and steps the optimizer."""

from __future__ import annotations

import warnings
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.precision import MixedPrecision

from shared import BATCH, Course, Net, callbacks, examples, loss_of, new_scaler, settle

warnings.filterwarnings("ignore")


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()
        self.automatic_optimization = False

    def training_step(self, batch: Any, _: int) -> None:
        x, y = batch
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss_of(self.net(x), y))
        optimizer.step()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Followed(pl.Callback):
    def on_train_batch_start(self, *_: Any) -> None:
        course.begins()

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        course.ended(trainer.precision_plugin.scaler.get_scale())


settle()
model = Module()
course = Course(model, "net." + Net.overflows_in, "net." + Net.infinite)
trainer = pl.Trainer(
    accelerator="cpu",
    devices=1,
    max_epochs=1,
    plugins=[MixedPrecision("16-mixed", "cpu", scaler=new_scaler())],
    callbacks=[Followed(), *callbacks("lightning")],
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, torch.utils.data.DataLoader(examples(), batch_size=BATCH))
course.write(model, "lightning")
