"""Companions of a training: nothing, ampwatch, or what people use today.

Each is attached as its own documentation says. Most of them cannot be taken off again, and
``DebugUnderflowOverflow`` raises at the first infinite activation: each has a process of its own.
"""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.profiler import profile, schedule, tensorboard_trace_handler
from torch.utils._python_dispatch import TorchDispatchMode

import ampwatch

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

    def report(self) -> str:
        """Return what it answers when it is asked how the training was."""
        return ""

    def detach(self) -> None:
        """The training is over."""


class Ampwatch(Companion):
    """``ampwatch.monitor(model, scaler)``, with its ring and a daemon that reads it.

    Args:
        level: How much is watched.
    """

    package = "ampwatch"
    settle_steps = 40

    def __init__(self, level: str) -> None:
        self.level = level

    def attach(self, training: Training, stopwatch: Stopwatch) -> None:
        """Watch, with a budget that does not grow while other processes have their turn.

        It is a share of the time of the training.
        """
        self._watch = ampwatch.monitor(
            training.model, training.scaler, level=self.level, run="benchmark"
        )
        governor = self._watch._session._context.governor
        pass_by = governor.pass_by

        def pass_by_here(duration_s: float, num: int) -> None:
            pass_by(duration_s - stopwatch.take_away_s(), num)

        governor.pass_by = pass_by_here

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

    def report(self) -> str:
        """Return its report."""
        return self._watch.report()

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
        place = tempfile.mkdtemp(prefix="wandb-")
        os.environ |= {
            "WANDB_MODE": "offline",
            "WANDB_SILENT": "true",
            "WANDB_ERROR_REPORTING": "false",
            "WANDB_CACHE_DIR": place,
            "WANDB_CONFIG_DIR": place,
            "WANDB_DATA_DIR": place,
        }
        self._run = import_module("wandb").init(project="benchmark", dir=place)
        self._run.watch(training.model, **self._options)
        self._steps = 0

    def after_step(self) -> None:
        """Log: that is what sends the histograms off. A constant, as a loss would have to be read."""
        self._steps += 1
        self._run.log({"trained": self._steps})

    def detach(self) -> None:
        """Finish the run."""
        self._run.finish()


class Anomaly(Companion):
    """``torch.autograd.set_detect_anomaly(True)``: every gradient checked for NaN."""

    def attach(self, training: Training, stopwatch: Stopwatch) -> None:  # noqa: ARG002 - of all
        """Switch it on, for the process."""
        torch.autograd.set_detect_anomaly(True)


class Dispatch(Companion):
    """A ``TorchDispatchMode`` that does nothing: what seeing each op in Python costs at least."""

    def attach(self, training: Training, stopwatch: Stopwatch) -> None:  # noqa: ARG002 - of all
        """Put it on, for the process."""
        _NoOp().__enter__()


class _NoOp(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


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
        place = tempfile.mkdtemp(prefix="tensorboard-")
        module = import_module("torch.utils.tensorboard")
        self._writer: Any = module.SummaryWriter(place)
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
        """Close the writer."""
        self._writer.close()


class Profiler(Companion):
    """``torch.profiler`` on a schedule: some steps of fifty, written as a trace for TensorBoard."""

    def attach(self, training: Training, stopwatch: Stopwatch) -> None:  # noqa: ARG002 - of all
        """Start it, with a temporary directory for its traces."""
        place = tempfile.mkdtemp(prefix="profiler-")
        self._profile = profile(
            schedule=schedule(wait=45, warmup=2, active=3),
            on_trace_ready=tensorboard_trace_handler(place),
        )
        self._profile.start()

    def after_step(self) -> None:
        """Tell it that a step has ended."""
        self._profile.step()

    def report(self) -> str:
        """Return its table of ops."""
        return str(self._profile.key_averages().table(sort_by="cpu_time_total", row_limit=20))

    def detach(self) -> None:
        """Stop it."""
        self._profile.stop()


class TraceML(Companion):
    """TraceML: times of the phases of a step and memory, with the aggregator that collects them."""

    package = "traceml-ai"

    def attach(self, training: Training, stopwatch: Stopwatch) -> None:  # noqa: ARG002 - of all
        """Start an aggregator, connect to it, and open the first step."""
        place = tempfile.mkdtemp(prefix="traceml-")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        session = {"logs_dir": place, "session_id": "benchmark"}
        words = [f"--{name.replace('_', '-')}={value}" for name, value in session.items()]
        self._aggregator = subprocess.Popen(
            [
                str(Path(sys.executable).with_name("traceml")),
                "serve",
                *words,
                f"--aggregator-port={port}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        atexit.register(self._aggregator.kill)  # should the training die
        self._api = import_module("traceml_ai.api")
        self._api.init(
            **session,
            aggregator_host="127.0.0.1",
            aggregator_port=port,
            connect_timeout_sec=60,
            on_missing_aggregator="raise",
        )
        self._model = training.model
        self._open()

    def _open(self) -> None:
        self._step = self._api.trace_step(self._model)
        self._step.__enter__()

    def after_step(self) -> None:
        """Close this step and open the next one."""
        self._step.__exit__(None, None, None)
        self._open()

    def report(self) -> str:
        """Return its summary."""
        return str(self._api.final_summary(timeout_sec=20))

    def detach(self) -> None:
        """End the aggregator."""
        self._step.__exit__(None, None, None)
        self._aggregator.terminate()
        try:
            self._aggregator.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._aggregator.kill()
            self._aggregator.wait()


class Inspect(Companion):
    """NVIDIA DL Framework Inspect: statistics of what each leaf module puts out, and of its gradient.

    Outside of Transformer Engine it does nothing by itself: hooks hand it the tensors.
    """

    package = "nvdlfw-inspect"
    CONFIG = """\
benchmark:
  enabled: True
  layers:
    layer_name_regex_pattern: .*
  LogTensorStats:
    enabled: True
    tensors_struct:
      - tensor: activation
        stats: [min, max, mean, std]
        freq: 1
      - tensor: gradient
        stats: [min, max, mean, std]
        freq: 1
"""

    def attach(self, training: Training, stopwatch: Stopwatch) -> None:  # noqa: ARG002 - of all
        """Initialise it and register the hooks."""
        place = tempfile.mkdtemp(prefix="inspect-")
        config = Path(place, "config.yaml")
        config.write_text(self.CONFIG, encoding="utf-8")
        self._api = import_module("nvdlfw_inspect.api")
        self._api.initialize(config_file=str(config), log_dir=place)
        for name, module in training.model.named_modules():
            if not list(module.children()):
                module.register_forward_hook(self._hook(name))

    def _hook(self, name: str) -> Any:
        def log(tensor: torch.Tensor, tensor_name: str) -> None:
            self._api.log_tensor_stats(
                name, tensor=tensor, tensor_name=tensor_name, skip_reduction=True
            )

        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            log(output.detach(), "activation")
            if output.requires_grad:
                output.register_hook(lambda gradient: log(gradient, "gradient"))

        return hook

    def after_step(self) -> None:
        """Tell it that a step has ended."""
        self._api.step()

    def detach(self) -> None:
        """End it."""
        self._api.end_debug()


COMPANIONS: dict[str, Companion] = {
    "bare": Companion(),
    "bare again": Companion(),
    "ampwatch light": Ampwatch("light"),
    "ampwatch standard": Ampwatch("standard"),
    "ampwatch deep": Ampwatch("deep"),
    "a dispatch mode that does nothing": Dispatch(),
    "TraceML": TraceML(),
    "torch.profiler, 3 steps in 50": Profiler(),
    "wandb.watch": Wandb(),
    "wandb.watch(log_freq=1)": Wandb(log_freq=1),
    "TensorBoard add_histogram, every 50th step": TensorBoard(every=50),
    "TensorBoard add_histogram": TensorBoard(every=1),
    "DebugUnderflowOverflow": UnderflowOverflow(),
    "set_detect_anomaly(True)": Anomaly(),
    "nvdlfw-inspect": Inspect(),
}
"""What is compared, by the name that it has in tables."""
