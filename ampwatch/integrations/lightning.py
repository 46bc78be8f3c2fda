"""A callback for the Trainer of Lightning, by the name of ``lightning`` or of ``pytorch_lightning``.

::

    trainer = Trainer(..., callbacks=[ampwatch.integrations.lightning.AmpwatchCallback()])

Fabric has no loop of its own that a callback could follow; there it is one line after ``setup``::

    watch = ampwatch.monitor(model, fabric.strategy.precision)
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from ampwatch.guard import Guard
from ampwatch.integrations.attached import Callback

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
"""One code under two names, each with a ``Callback`` of its own."""


def _base() -> Any:
    """Return a class that is a callback of each of the packages that the program uses."""
    used = [name for name in PACKAGES if name in sys.modules]
    if not used:
        used = [name for name in PACKAGES if find_spec(name.partition(".")[0]) is not None][:1]
    if not used:
        msg = f"expected {' or '.join(PACKAGES)}, found neither; pip install 'ampwatch[lightning]'"
        raise ImportError(msg)
    return type("Callback", tuple(import_module(name).Callback for name in used), {})


_Callback = _base()


class AmpwatchCallback(Callback, _Callback):  # type: ignore[misc, valid-type] # made of what is installed
    """Watches each ``fit()`` of a Trainer, and logs the numbers with those of the LightningModule.

    The GradScaler is that of the Trainer's precision plugin. Each ``log_every_n_steps`` steps
    ``amp/loss_scale``, ``amp/grad_norm`` and the others of docs/loggers.md go to the Trainer's loggers,
    and stand in ``trainer.logged_metrics`` and ``trainer.callback_metrics``. A training that ends by
    an exception ends as failed. Automatic and manual optimization.

    ``on_finding(actions.stop())`` sets ``trainer.should_stop``, so that ``fit()`` ends as by early stopping. Of
    several processes all end in the same step, the next one that is logged.

    Its arguments, and what they raise, are those of ``Callback``: ``keys`` to log, ``serve``, and any
    setting by name.
    """

    _module, _title = "ampwatch.integrations.lightning", "the callback of Lightning"

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to watch."""
        self._guard.run(self._begin, trainer, pl_module)

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        """Log the numbers, where the Trainer logs, and end the training, where a finding asks for it."""
        self._guard.run(self._after_batch, trainer)

    def on_train_end(self, trainer: Any, *_: Any) -> None:
        """Log the numbers of the whole training."""
        self._log_guard.run(self._log_summary, trainer)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002 - its names are the Trainer's
        """End the monitor as failed."""
        self._guard.run(self._detach, exception)

    def on_fit_end(self, *_: Any) -> None:
        """End the monitor."""
        self._guard.run(self._detach)

    def teardown(self, *_: Any, **__: Any) -> None:
        """End the monitor, however the training has ended."""
        self._guard.run(self._detach)

    def __getstate__(self) -> dict[str, Any]:
        """Leave behind what belongs to the training that runs."""
        return super().__getstate__() | {"_log_guard": None}

    def _begin_anew(self) -> None:
        super()._begin_anew()
        # A logger that raises is no reason not to end the monitor.
        self._log_guard = Guard("what the callback of Lightning logs")
        self._logged_at = -1

    def _begin(self, trainer: Any, pl_module: Any) -> None:
        self._stop, self._logged_at = False, -1
        self._stops = self._note_stop
        plugin = trainer.precision_plugin
        self._attach(pl_module, getattr(plugin, "scaler", None), trainer.global_step)
        without = f"expected a GradScaler in {type(plugin).__name__}, as with precision 16-mixed, got none"
        is_half = getattr(plugin, "precision", "").startswith("16")
        self._say_what_is_not_seen(without, is_half=is_half)

    def _after_batch(self, trainer: Any) -> None:
        loop = trainer.fit_loop.epoch_loop
        # As Lightning's own callbacks: from its first batch on the step has the index that its
        # loggers count by, and the batches that only accumulate log nothing.
        step = loop._batches_that_stepped  # noqa: SLF001 - as in its LearningRateMonitor
        is_logged = bool(trainer.log_every_n_steps) and (step + 1) % trainer.log_every_n_steps == 0
        if self._stops_asked_for and (is_logged or trainer.world_size == 1):
            decided = self._stop
            if trainer.world_size > 1:
                decided = trainer.strategy.reduce_boolean_decision(decided, all=False)
            trainer.should_stop = trainer.should_stop or decided
        if (is_logged or trainer.should_stop) and not loop._should_accumulate():  # noqa: SLF001
            self._log_guard.run(self._log, trainer, self._metrics(), step)
            self._logged_at = step

    def _log_summary(self, trainer: Any) -> None:
        loop = trainer.fit_loop.epoch_loop
        step = max(loop._batches_that_stepped - 1, 0)  # noqa: SLF001 - as above
        numbers = self._summary()
        if self._logged_at == step:  # nobody wants two points at one step
            numbers = {k: v for k, v in numbers.items() if k not in self._metrics()}
        self._log(trainer, numbers, step)

    def _log(self, trainer: Any, numbers: dict[str, float], step: int) -> None:
        """Hand the numbers to the loggers.

        Not by ``log_dict`` of the LightningModule, which puts each number into a tensor on the device
        and then waits for the device to have it back.
        """
        if not numbers:
            return
        on_host = {key: torch.tensor(value) for key, value in numbers.items()}
        trainer.callback_metrics.update(on_host)
        trainer.logged_metrics.update(on_host)
        for logger in trainer.loggers:
            logger.log_metrics(metrics=numbers, step=step)
