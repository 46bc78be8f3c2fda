"""torch.func.grad_and_value of a functional call, instead of backward()."""

from __future__ import annotations

import torch

from shared import Course, Net, batches, loss_of, new_scaler, settle, watch

settle()
model = Net()
course = Course(model, at_forward=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = new_scaler()
watch(model, scaler)


def scaled_loss(
    parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor
) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.float16):
        return scaler.scale(loss_of(torch.func.functional_call(model, parameters, (x,)), y))


for x, y in batches():
    course.begins()
    parameters = dict(model.named_parameters())
    gradients, _ = torch.func.grad_and_value(scaled_loss)(parameters, x, y)
    for name, parameter in parameters.items():
        parameter.grad = gradients[name]
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    course.ended(scaler.get_scale())
course.write(model)
