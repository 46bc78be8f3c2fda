"""A callback for the Trainer of Hugging Face transformers, and for those that derive from it.

::

    trainer = Trainer(..., callbacks=[ampwatch.integrations.transformers.AmpwatchCallback()])
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback
from transformers.trainer_callback import CallbackHandler

from ampwatch.integrations.attached import Callback

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

MAX_FRAMES = 8
"""Callers among which the Trainer is looked for; it is the second or the third."""


class AmpwatchCallback(Callback, TrainerCallback):  # type: ignore[misc] # its base may not be installed
    """Watches each ``train()`` of a Trainer, and adds the numbers to what it logs.

    The model and the GradScaler are those that the Trainer has prepared. ``amp/loss_scale``,
    ``amp/grad_norm`` and the others of docs/loggers.md stand in each log of the training, so that
    everything in ``report_to`` gets them, and in ``trainer.state.log_history``. A training that ends
    by an exception ends as failed.

    ``on_finding(actions.stop())`` sets ``control.should_training_stop``, so that ``train()`` ends as after
    its last step. Of several processes each would stop alone: there it raises, as it does without a callback.

    Its arguments, and what they raise, are those of ``Callback``: ``keys`` to log, ``serve``, and any
    setting by name.
    """

    _module, _title = "ampwatch.integrations.transformers", "the callback of transformers"
    _wrapped: _Ending | None = None

    def on_init_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002 - its names are the Trainer's
        """Take the first place among the callbacks, before those that report."""
        self._guard.run(self._go_first)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Begin to watch."""
        self._guard.run(self._begin, args, state, kwargs)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:  # noqa: ARG002
        """End the training, where a finding has asked for it."""
        if self._stop:
            control.should_training_stop = True
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
        """Add the numbers to a log of the training."""
        self._guard.run(self._add, state, logs)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """End the monitor."""
        self._guard.run(self.end)

    def end(self, error: BaseException | None = None) -> None:
        """End the monitor, as failed if there is an error. Idempotent."""
        wrapped, self._wrapped = self._wrapped, None
        if wrapped is not None:
            wrapped.remove()
        self._detach(error)

    def __getstate__(self) -> dict[str, Any]:
        """Leave behind what belongs to the training that runs."""
        return super().__getstate__() | {"_wrapped": None}

    def _begin(self, args: Any, state: Any, given: dict[str, Any]) -> None:
        self.end()
        self._stop = False
        self._stops = self._note_stop if getattr(args, "world_size", 1) == 1 else None
        # accelerate's wrapper of the optimizer has the scaler that it steps through.
        scaler = getattr(given.get("optimizer"), "scaler", None)
        self._attach(given.get("model"), scaler, state.global_step)
        without = "the Trainer has made no GradScaler (on a CPU it makes none, even with fp16=True)"
        self._say_what_is_not_seen(without, is_half=getattr(args, "fp16", False))
        trainer = self._go_first()
        if trainer is not None and self._open is not None:
            self._wrapped = _Ending(trainer, self)

    def _go_first(self) -> Any:
        """Move to the front of the callbacks, and return the Trainer; ``None`` if it is not found.

        A Trainer logs by calling its callbacks in order, those of ``report_to`` before those of its
        user. None of them is passed the caller: it is seen from the stack.
        """
        callers = list(_callers())
        handler = next((c for c in callers if isinstance(c, CallbackHandler)), None)
        if handler is None or not any(one is self for one in handler.callbacks):
            self._say(
                "expected to be called by a Trainer's list of callbacks, got another caller: what"
                " reports before this callback lacks its numbers"
            )
            return None
        # The list is being iterated over: what stands behind this callback must stay where it is.
        place = next(i for i, one in enumerate(handler.callbacks) if one is self)
        handler.callbacks.insert(0, handler.callbacks.pop(place))
        return next((c for c in callers if getattr(c, "callback_handler", None) is handler), None)

    def _add(self, state: Any, logs: Any) -> None:
        # Of the training: not of an evaluation, which is about other batches.
        is_last = "train_runtime" in (logs or ())
        if not logs or not (is_last or "loss" in logs):
            return
        numbers = self._summary() if is_last else self._metrics()
        # What the Trainer keeps is a copy, made just before.
        kept = state.log_history[-1] if state.log_history else {}
        if all(kept.get(key) is value for key, value in logs.items()):
            kept.update(numbers)
        logs.update(numbers)


class _Ending:
    """Ends the monitor with the exception by which a training ends; a Trainer calls nobody then.

    Args:
        trainer: The Trainer, in its ``on_train_begin``. What it calls from there on is replaced in
            the instance, and put back when the training ends.
        callback: The callback to end.
    """

    def __init__(self, trainer: Any, callback: AmpwatchCallback) -> None:
        # Up to transformers 4 all of the loop is in one method, which runs already: of the methods
        # that it calls, this is the one in which trainings fail.
        self._name = "_run_epoch" if hasattr(trainer, "_run_epoch") else "training_step"
        self._trainer = trainer
        self._callback = callback
        self._work = getattr(trainer, self._name)
        self._own = vars(trainer).get(self._name)
        setattr(trainer, self._name, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._work(*args, **kwargs)
        except BaseException as error:
            self._callback._guard.run(self._callback.end, error)  # noqa: SLF001 - same module
            raise

    def remove(self) -> None:
        """Put back what was there. Idempotent."""
        if vars(self._trainer).get(self._name) is not self:
            return
        if self._own is None:
            delattr(self._trainer, self._name)
        else:
            setattr(self._trainer, self._name, self._own)


def _callers() -> Iterator[Any]:
    """Yield the objects whose methods are on the stack, the innermost first."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - `inspect` reads source files as well
    for _ in range(MAX_FRAMES):
        if frame is None:
            return
        yield frame.f_locals.get("self")
        frame = frame.f_back
