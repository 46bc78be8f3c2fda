"""Lightning's Trainer with precision 16-mixed; arguments: how many processes, which package.

On a CPU the Trainer itself would take bfloat16, so that it is given the plugin.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from typing import Any

import torch

devices = int(sys.argv[1])
package = sys.argv[2]
warnings.filterwarnings("ignore")
pl = importlib.import_module(
    "pytorch_lightning" if package == "pytorch-lightning" else "lightning.pytorch"
)
plugins = importlib.import_module(f"{pl.__name__}.plugins.precision")

from shared import (
    BATCH,
    BESIDE,
    BFLOAT16,
    LOG_EVERY,
    MODE,
    Course,
    Net,
    callbacks,
    examples,
    loss_of,
    new_scaler,
    settle,
    watch,
)


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        x, y = batch
        return loss_of(self.net(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Followed(pl.Callback):
    def on_train_batch_start(self, *_: Any) -> None:
        course.begins()

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        course.ended(1.0 if scaler is None else scaler.get_scale())


class Recorder(pl.loggers.Logger):
    name, version = "recorder", 0

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """There are none."""

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        course.log(metrics, step)


settle()
model = Module()
scaler = new_scaler()
course = Course(model, "net." + Net.overflows_in, "net." + Net.infinite)
trainer = pl.Trainer(
    accelerator="cpu",
    devices=devices,
    strategy="ddp" if devices > 1 else "auto",
    max_epochs=1,
    plugins=[
        plugins.MixedPrecision("bf16-mixed", "cpu")
        if MODE == BFLOAT16
        else plugins.MixedPrecision("16-mixed", "cpu", scaler=scaler)
    ],
    callbacks=[Followed(), *callbacks("lightning")],
    logger=[Recorder()],
    log_every_n_steps=LOG_EVERY,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
data = torch.utils.data.DataLoader(examples(), batch_size=BATCH // devices)
if MODE == BESIDE:
    watch(model, scaler)
try:
    trainer.fit(model, data)
except RuntimeError as error:
    print(f"caught: {error}")
course.write(model, package)
