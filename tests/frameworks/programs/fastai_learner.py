"""fastai: a Learner with its MixedPrecision callback, whose scaler and autocast are the CPU's."""

from __future__ import annotations

from typing import Any

import torch
from fastai.callback.core import Callback
from fastai.callback.fp16 import MixedPrecision
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader
from fastai.learner import Learner

from shared import BATCH, Course, Net, examples, loss_of, new_scaler, settle, watch


class OnCPU(MixedPrecision):
    def before_fit(self) -> None:
        super().before_fit()
        self.autocast = torch.autocast("cpu", dtype=torch.float16)
        self.learn.scaler = new_scaler()


class Followed(Callback):
    order = 20  # after MixedPrecision, which makes the scaler
    run_valid = False

    def before_fit(self) -> None:
        watch(self.learn.model, self.learn.scaler)

    def before_batch(self) -> None:
        course.begins()

    def after_batch(self) -> None:
        course.ended(self.learn.scaler.get_scale())


settle()
model = Net()
course = Course(model)
loaders = [
    DataLoader(data, bs=BATCH, shuffle=False, num_workers=0)
    for data in (examples(), torch.utils.data.Subset(examples(), range(BATCH)))
]
data: Any = DataLoaders(*loaders, device=torch.device("cpu"))
learner = Learner(data, model, loss_func=loss_of, lr=1e-3, cbs=[OnCPU(), Followed()])
with learner.no_bar(), learner.no_logging():
    learner.fit(1)
course.write(model, "fastai")
