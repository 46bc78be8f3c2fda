"""skorch: a NeuralNet whose training step scales the loss."""

from __future__ import annotations

from typing import Any

import skorch
import torch

from shared import BATCH, Course, Net, examples, loss_of, new_scaler, settle, watch

settle()
bare = Net()
course = Course(bare)
scaler = new_scaler()


class Criterion(torch.nn.Module):
    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return loss_of(output, target)


class Scaled(skorch.NeuralNet):
    def train_step(self, batch: Any, **fit_params: Any) -> dict[str, Any]:
        self._set_training(training=True)
        x, y = batch
        self.optimizer_.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            output = self.infer(x, **fit_params)
            loss = self.get_loss(output, y, X=x, training=True)
        scaler.scale(loss).backward()
        scaler.step(self.optimizer_)
        scaler.update()
        return {"loss": loss, "y_pred": output}


class Followed(skorch.callbacks.Callback):
    def on_train_begin(self, net: Any, **_: Any) -> None:
        watch(net.module_, scaler)

    def on_batch_begin(self, *_: Any, **__: Any) -> None:
        course.begins()

    def on_batch_end(self, *_: Any, **__: Any) -> None:
        course.ended(scaler.get_scale())


net = Scaled(
    bare,
    criterion=Criterion,
    optimizer=torch.optim.AdamW,
    lr=1e-3,
    batch_size=BATCH,
    max_epochs=1,
    train_split=None,
    iterator_train__shuffle=False,
    callbacks=[Followed()],
    callbacks__print_log=None,
)
net.fit(examples(), None)
course.write(bare, "skorch")
