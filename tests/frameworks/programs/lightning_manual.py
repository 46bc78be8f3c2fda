"""Lightning's manual optimisation: training_step itself runs backward and steps the optimizer.

With ``gan`` there are two, of a generator and a critic: each step of one updates the scaler that they share.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.precision import MixedPrecision

from shared import BATCH, Course, Net, callbacks, examples, loss_of, new_scaler, settle

warnings.filterwarnings("ignore")


IS_GAN = sys.argv[1:] == ["gan"]


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()
        if IS_GAN:
            self.critic = torch.nn.Sequential(
                torch.nn.Linear(4, 32), torch.nn.GELU(), torch.nn.Linear(32, 1)
            )
        self.automatic_optimization = False

    def training_step(self, batch: Any, _: int) -> None:
        x, y = batch
        if not IS_GAN:
            self._take(self.optimizers(), loss_of(self.net(x), y))
            return
        of_net, of_critic = self.optimizers()
        ones = torch.ones(len(x), 1)
        self.toggle_optimizer(of_critic)
        verdicts = torch.cat([self.critic(y), self.critic(self.net(x).detach())])
        self._take(of_critic, loss_of(verdicts, torch.cat([ones, -ones])))
        self.untoggle_optimizer(of_critic)
        course.begins()
        self.toggle_optimizer(of_net)
        self._take(of_net, loss_of(self.critic(self.net(x)), ones))
        self.untoggle_optimizer(of_net)

    def _take(self, optimizer: Any, loss: torch.Tensor) -> None:
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        course.ended(self.trainer.precision_plugin.scaler.get_scale())

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        parts = [self.net, self.critic] if IS_GAN else [self]
        return [torch.optim.AdamW(part.parameters(), lr=1e-3) for part in parts]


class Followed(pl.Callback):
    def on_train_batch_start(self, *_: Any) -> None:
        course.begins()


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
