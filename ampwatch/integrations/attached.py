"""The monitor that a callback of a framework makes, lends from its user, and ends; and what such callbacks share."""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING, Any

import ampwatch
from ampwatch import actions
from ampwatch.errors import AmpwatchError
from ampwatch.guard import Log
from ampwatch.settings import Settings
from ampwatch.training.arguments import check_flag
from ampwatch.training.monitor import monitor_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ampwatch.wire.records import Finding, Severity

logger = Log()

_of_callbacks: weakref.WeakSet[ampwatch.Monitor] = weakref.WeakSet()
"""Monitors that callbacks have made: where one is found, a second callback has nothing to do."""


class Callback:
    """What the callbacks of frameworks share: a class of their framework is the other base of each.

    Args:
        name: Name of the module, for the log.
        keys: The keys to log; all that are known with ``None``.
        serve: As of ``ampwatch.monitor``.
        settings: Settings of the monitors.

    Raises:
        SettingsError: If a setting, ``serve`` or an ``AMPWATCH_*`` variable is not usable: here, where
            it is written down, and not in the middle of the framework.

    Attributes:
        watch: The monitor of the training that runs, or of the last one.
    """

    def __init__(
        self, name: str, keys: Iterable[str] | None, settings: dict[str, Any], *, serve: bool
    ) -> None:
        super().__init__()
        Settings.resolve(dict(settings), warns=False)
        self.watch: ampwatch.Monitor | None = None
        self._name = name
        self._keys = None if keys is None else frozenset(keys)
        self._settings = {"serve": check_flag("serve", serve), **settings}
        self._answers: list[tuple[Callable[[Finding], None], dict[str, Any]]] = []
        self._is_mine = False
        self._announced: set[str] = set()
        # Called with the finding in place of ``actions.stop()``, where the framework has a way of
        # its own to end a training.
        self._stops: Callable[[Finding], None] | None = None
        self._stop = False

    def on_finding(
        self,
        callback: Callable[[Finding], None],
        *,
        min_severity: Severity | str | None = None,
        kinds: Iterable[str] | None = None,
    ) -> None:
        """Have the monitor of each training call ``callback``: as ``on_finding`` of a monitor."""
        answer = (callback, {"min_severity": min_severity, "kinds": kinds})
        if self._is_open:
            self._subscribe(*answer)
        self._answers.append(answer)

    @property
    def _stops_asked_for(self) -> bool:
        """Whether ``actions.stop()`` is among the answers: the same on all ranks."""
        return any(_is_stop(callback) for callback, _ in self._answers)

    @property
    def _is_open(self) -> bool:
        """Whether a training is watched."""
        return self.watch is not None and not self.watch.closed

    def _attach(self, model: Any, scaler: Any, step: int) -> None:
        """Watch a training that begins at ``step``, unless it is watched already."""
        # A training that was given up without a word: of a batch that did not fit, for one.
        self._detach()
        mine = monitor_of(*(model if isinstance(model, list) else [model]), scaler)
        if mine is not None and mine in _of_callbacks:
            self._say(
                "expected one callback of ampwatch in a training, got a second one; it does nothing"
            )
            return
        try:
            if mine is None:
                self.watch = ampwatch.monitor(model, scaler, step=step, **self._settings)
                _of_callbacks.add(self.watch)
            else:
                self.watch = mine
                self._say(
                    "this training has a monitor of its own: its numbers are logged, and settings of"
                    " the callback are not used"
                )
            self._is_mine = mine is None
            for answer in self._answers:
                self._subscribe(*answer)
        except AmpwatchError as error:
            self._say(f"training goes on, and the callback does not watch it: {error}")

    def _metrics(self) -> dict[str, float]:
        """Return what is to be logged of the newest iteration; nothing where nothing is watched."""
        return self._chosen(
            self.watch.metrics() if self.watch is not None and self._is_open else {}
        )

    def _summary(self) -> dict[str, float]:
        """Return what is to be logged of the whole training; nothing where nothing is watched."""
        return self._chosen(
            self.watch.summary() if self.watch is not None and self._is_open else {}
        )

    def _chosen(self, numbers: dict[str, float]) -> dict[str, float]:
        if self._keys is None:
            return numbers
        return {key: value for key, value in numbers.items() if key in self._keys}

    def _detach(self, error: BaseException | None = None) -> None:
        """End the monitor, as failed where the training has; a user's own stays open."""
        if self.watch is None or not self._is_mine or self.watch.closed:
            return
        kind = None if error is None else type(error)
        self.watch.__exit__(kind, error, None if error is None else error.__traceback__)

    def _say(self, words: str, *, level: int = logging.WARNING) -> None:
        """Log one sentence, once."""
        if words not in self._announced:
            self._announced.add(words)
            logger.log(level, "%s: %s", self._name, words)

    def _say_what_is_not_seen(self, without: str, *, is_half: bool) -> None:
        """Say of a training whose loss nothing scales what that means; in float16 with what there is not."""
        if self.watch is None or not self._is_open or self.watch.is_scaled:
            return
        if is_half:
            self._say(f"{without}: steps are watched, the loss scale is not")
        else:
            self._say("no loss is scaled here: steps are watched", level=logging.INFO)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the monitor behind where the callback is copied or sent to another process."""
        return self.__dict__ | {"watch": None, "_is_mine": False}

    def _subscribe(self, callback: Callable[[Finding], None], chosen: dict[str, Any]) -> None:
        if self.watch is None:
            return
        if self._stops is not None and _is_stop(callback):
            # Its own choice of severity, which a function does not have.
            least = chosen["min_severity"] or type(actions.stop()).min_severity
            callback, chosen = self._stops, chosen | {"min_severity": least}
        self.watch.on_finding(callback, **chosen)

    def _note_stop(self, _: Finding) -> None:
        self._stop = True


def _is_stop(callback: object) -> bool:
    return isinstance(callback, type(actions.stop()))
