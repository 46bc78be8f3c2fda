"""Companions of a training: nothing, ampwatch, or what people use today.

Each is attached as its own documentation says. Most of them cannot be taken off again, and
``DebugUnderflowOverflow`` raises at the first infinite activation: each has a process of its own.
"""

from __future__ import annotations

import os
import tempfile
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import ampwatch
from ampwatch.training.iteration.governor import OPENING

if TYPE_CHECKING:
    from turns import Stopwatch
    from workloads import Training


class Companion:
    """Nothing: what a bare training is accompanied by, and what the others begin with.

    Attributes:
        package: What has to be installed.
        settle_steps: Steps after which the first look, imports and allocations are over.
    """

    package = "torch"
    settle_steps = 2

    def attach(self, training: Training, stopwatch: Stopwatch) -> None:
        """Come along from the next step on."""

    def after_step(self) -> None:
        """A step has been taken: what the user's loop calls there."""

    def spent_ns(self) -> int:
        """Return its own account of what it has cost so far; 0 without one. Unit: ns."""
        return 0

    def detach(self) -> None:
        """The training is over."""


class Ampwatch(Companion):
    """``ampwatch.monitor(model, scaler)``, with its ring and a daemon that reads it.

    Args:
        level: How much is watched.
    """

    package = "ampwatch"
    settle_steps = OPENING + 8

    def __init__(self, level: str) -> None:
        self.level = level

    def attach(self, training: Training, stopwatch: Stopwatch) -> None:
        """Watch, by a clock that stands still while other processes have their turn.

        Its budget is a share of the time of the training, which is not to grow by theirs.
        """
        self._watch = ampwatch.monitor(
            training.model, training.scaler, level=self.level, run="benchmark"
        )
        self._watch._session._context.clock.monotonic_ns = stopwatch.ns

    def spent_ns(self) -> int:
        """Return what ampwatch says it has cost so far.

        Raises:
            RuntimeError: If it has switched off a sensor: what is left is too cheap.
        """
        cost = self._watch._session.cost()
        if cost.sensor_errors:
            msg = "expected all sensors at work, got one that was switched off; see the log above"
            raise RuntimeError(msg)
        return cost.overhead_ns

    def detach(self) -> None:
        """Close the monitor."""
        self._watch.close()


class UnderflowOverflow(Companion):
    """``DebugUnderflowOverflow`` of Transformers: smallest and largest magnitude in each forward."""

    package = "transformers"

    def attach(self, training: Training, stopwatch: Stopwatch) -> None:  # noqa: ARG002 - of all
        """Register its hooks."""
        import_module("transformers.debug_utils").DebugUnderflowOverflow(training.model)


class Wandb(Companion):
    """``wandb.watch``: histograms of gradients, offline.

    Args:
        log_freq: Steps between histograms; wandb's default if ``None``.
    """

    package = "wandb"

    def __init__(self, log_freq: int | None = None) -> None:
        self._options = {} if log_freq is None else {"log_freq": log_freq}

    def attach(self, training: Training, stopwatch: Stopwatch) -> None:  # noqa: ARG002 - of all
        """Open an offline run in a temporary directory and watch the model."""
        self._place = tempfile.TemporaryDirectory(prefix="wandb-benchmark-")
        os.environ |= {
            "WANDB_MODE": "offline",
            "WANDB_SILENT": "true",
            "WANDB_ERROR_REPORTING": "false",
            "WANDB_CACHE_DIR": self._place.name,
            "WANDB_CONFIG_DIR": self._place.name,
            "WANDB_DATA_DIR": self._place.name,
        }
        self._run = import_module("wandb").init(project="benchmark", dir=self._place.name)
        self._run.watch(training.model, **self._options)
        self._steps = 0

    def after_step(self) -> None:
        """Log: that is what sends the histograms off. A constant, as a loss would have to be read."""
        self._steps += 1
        self._run.log({"trained": self._steps})

    def detach(self) -> None:
        """Finish the run and throw it away."""
        self._run.finish()
        self._place.cleanup()


class Anomaly(Companion):
    """``torch.autograd.set_detect_anomaly(True)``: every gradient checked for NaN."""

    def attach(self, training: Training, stopwatch: Stopwatch) -> None:  # noqa: ARG002 - of all
        """Switch it on, for the process."""
        torch.autograd.set_detect_anomaly(True)


class FiniteOps(Companion):
    """A dispatch mode that asks of the output of each op whether it is finite, as people write it.

    It reads the answer at once: on a device that is a sync per op.
    """

    def attach(self, training: Training, stopwatch: Stopwatch) -> None:  # noqa: ARG002 - of all
        """Put the mode on, for the process."""
        self._mode = _FiniteMode()
        self._mode.__enter__()


class _FiniteMode(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.nonfinite = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                self.nonfinite += not torch.isfinite(tensor).all()
        return out


class TensorBoard(Companion):
    """``SummaryWriter.add_histogram`` of the gradient of each parameter.

    It raises where a gradient is infinite or NaN; the scales of the workloads keep them finite.

    Args:
        every: Steps between histograms.
    """

    package = "tensorboard"

    def __init__(self, every: int) -> None:
        self._every = every

    def attach(self, training: Training, stopwatch: Stopwatch) -> None:  # noqa: ARG002 - of all
        """Open a writer in a temporary directory."""
        self._place = tempfile.TemporaryDirectory(prefix="tensorboard-benchmark-")
        module = import_module("torch.utils.tensorboard")
        self._writer: Any = module.SummaryWriter(self._place.name)
        self._parameters = list(training.model.named_parameters())
        self._steps = 0

    def after_step(self) -> None:
        """Write the histograms if it is time."""
        self._steps += 1
        if self._steps % self._every:
            return
        for name, parameter in self._parameters:
            if parameter.grad is not None:
                self._writer.add_histogram(name, parameter.grad, self._steps)

    def detach(self) -> None:
        """Close the writer and throw away what it wrote."""
        self._writer.close()
        self._place.cleanup()
