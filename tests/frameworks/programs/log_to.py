"""Logs a training with ``watch.log_to`` to a real logger, and writes down what ampwatch says itself.

``python log_to.py LOGGER DIRECTORY``; the logger "none" is the training without ampwatch.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from shared import Course, Net, batches, loss_of, new_scaler, settle

if TYPE_CHECKING:
    from torch import nn

EVERY = 5


def tensorboard(place: Path, stack: ExitStack) -> Any:
    from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415

    return stack.enter_context(SummaryWriter(str(place)))


def tensorboard_x(place: Path, stack: ExitStack) -> Any:
    from tensorboardX import SummaryWriter  # noqa: PLC0415

    return stack.enter_context(SummaryWriter(str(place)))


def mlflow(place: Path, stack: ExitStack) -> Any:
    import mlflow as module  # noqa: PLC0415

    module.set_tracking_uri(f"sqlite:///{place}/mlflow.db")
    stack.enter_context(module.start_run())
    return module


def wandb(place: Path, stack: ExitStack) -> Any:
    import wandb as module  # noqa: PLC0415

    settings = module.Settings(x_disable_stats=True, console="off", silent=True)
    return stack.enter_context(
        module.init(project="p", mode="offline", dir=str(place), settings=settings)
    )


def trackio(_: Path, stack: ExitStack) -> Any:
    import trackio as module  # noqa: PLC0415

    module.init(project="p", name="r", auto_log_cpu=False, auto_log_gpu=False)
    stack.callback(module.finish)
    return module


def lightning_tensorboard(place: Path, stack: ExitStack) -> Any:
    from lightning.pytorch.loggers import TensorBoardLogger  # noqa: PLC0415

    logger = TensorBoardLogger(place, name="", version="")
    stack.callback(logger.finalize, "success")
    return logger.experiment


def lightning_csv(place: Path, stack: ExitStack) -> Any:
    from lightning.pytorch.loggers import CSVLogger  # noqa: PLC0415

    logger = CSVLogger(place, name="", version="")
    stack.callback(logger.finalize, "success")
    return logger.log_metrics


LOGGERS = {
    "tensorboard": tensorboard,
    "tensorboardX": tensorboard_x,
    "mlflow": mlflow,
    "wandb": wandb,
    "trackio": trackio,
    "lightning_tensorboard": lightning_tensorboard,
    "lightning_csv": lightning_csv,
}


def true_norms(model: nn.Module, scale: float) -> dict[str, float]:
    """Return the norm of each gradient with the scale divided out, computed in float64."""
    return {
        name: float(parameter.grad.double().div(scale).norm())
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def true_exponents(module: nn.Module, scale: float) -> dict[int, int]:
    """Return how many elements of the gradients lie above 2**(e - 1) and up to 2**e, without the scale, by e."""
    elements = torch.cat(
        [p.grad.double().flatten() for p in module.parameters() if p.grad is not None]
    )
    logarithms = elements.div(scale).abs().log2().ceil()
    return Counter(int(e) for e in logarithms[logarithms.isfinite()])


def train(logger: str, sink: Any, *, beside: bool) -> dict[str, Any]:
    """Train, with rows of its own in W&B; ``beside``: with ``wandb.watch`` as well."""
    settle()
    model, scaler = Net(), new_scaler()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    course = Course(model)
    watch = None
    if sink is not None:
        import ampwatch  # noqa: PLC0415

        if beside:
            import wandb as module  # noqa: PLC0415

            module.watch(model, log="gradients", log_freq=1)
        watch = ampwatch.monitor(model, scaler, level="deep")
        watch.log_to(sink, every=EVERY, by_module=True)
    seen = []
    for x, y in batches():
        course.begins()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = loss_of(model(x), y)
        scale = scaler.get_scale()
        scaler.scale(loss).backward()
        norms = true_norms(model, scale)
        exponents = true_exponents(model.head, scale)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        course.ended(scaler.get_scale())
        if watch is not None:
            seen.append(
                {
                    "metrics": watch.metrics(),
                    "norms": watch.gradient_norms(),
                    "true": norms,
                    "exponents": exponents,
                    "scale": scale,
                }
            )
        if logger == "wandb":
            sink.log({"loss": loss.item()}, step=10 * course.step)
    if watch is not None:
        watch.close()
        return {"summary": watch.summary(), "seen": seen, "findings": len(watch.findings)} | (
            written(model, course)
        )
    return written(model, course)


def written(model: nn.Module, course: Course) -> dict[str, Any]:
    """Return what must not depend on who watches."""
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    return {"scales": course.scales, "weights": weights.numpy().tobytes().hex()}


if __name__ == "__main__":
    logger, place = sys.argv[1], Path(sys.argv[2])
    with ExitStack() as stack:
        sink = None if logger == "none" else LOGGERS[logger](place, stack)
        result = train(logger, sink, beside="beside" in sys.argv)
    Path(os.environ["PROGRAM_OUT"]).write_text(json.dumps(result), encoding="utf-8")
