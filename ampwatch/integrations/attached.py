"""The monitor that a callback of a framework makes, lends from its user, and ends; and what such callbacks share."""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING, Any

import ampwatch
from ampwatch import actions
from ampwatch.errors import AmpwatchError
from ampwatch.guard import Guard, Log
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
        keys: The keys to log; all that are known by default.
        serve: As of ``ampwatch.monitor``.
        settings: Any setting of ``ampwatch.settings.Settings`` by name, ``level`` and ``run`` too.

    Raises:
        SettingsError: If a setting, ``serve`` or an ``AMPWATCH_*`` variable is not usable: here, where
            it is written down, and not in the middle of the framework.

    Attributes:
        watch: The monitor of the training that runs, or of the last one.
    """

    _module = "ampwatch.integrations.attached"
    _title = "a callback"
    """What it is called where it has failed."""

    def __init__(
        self, *, keys: Iterable[str] | None = None, serve: bool = True, **settings: Any
    ) -> None:
        super().__init__()
        Settings.resolve(dict(settings), warns=False)
        self._keys = None if keys is None else frozenset(keys)
        self._settings = {"serve": check_flag("serve", serve), **settings}
        self._answers: list[tuple[Callable[[Finding], None], dict[str, Any]]] = []
        self._announced: set[str] = set()
        # Called with the finding in place of ``actions.stop()``, where the framework has a way of
        # its own to end a training.
        self._stops: Callable[[Finding], None] | None = None
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Make anew what belongs to one training in one process."""
        self.watch: ampwatch.Monitor | None = None
        self._is_mine = self._stop = False
        self._guard = Guard(self._title)

    def on_finding(
        self,
        callback: Callable[[Finding], None],
        *,
        min_severity: Severity | str | None = None,
        kinds: Iterable[str] | None = None,
    ) -> None:
        """Have the monitor of each training call ``callback``: as ``on_finding`` of a monitor."""
        answer = (callback, {"min_severity": min_severity, "kinds": kinds})
        if (watch := self._open) is not None:
            self._subscribe(watch, *answer)
        self._answers.append(answer)

    @property
    def _stops_asked_for(self) -> bool:
        """Whether ``actions.stop()`` is among the answers: the same on all ranks."""
        return any(_is_stop(callback) for callback, _ in self._answers)

    @property
    def _open(self) -> ampwatch.Monitor | None:
        """The monitor, while a training is watched."""
        return None if self.watch is None or self.watch.closed else self.watch

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
                self._subscribe(self.watch, *answer)
        except AmpwatchError as error:
            self._say(f"training goes on, and the callback does not watch it: {error}")

    def _metrics(self) -> dict[str, float]:
        """Return what is to be logged of the newest iteration; nothing where nothing is watched."""
        return {} if (watch := self._open) is None else chosen(watch.metrics(), self._keys)

    def _summary(self) -> dict[str, float]:
        """Return what is to be logged of the whole training; nothing where nothing is watched."""
        return {} if (watch := self._open) is None else chosen(watch.summary(), self._keys)

    def _detach(self, error: BaseException | None = None) -> None:
        """End the monitor, as failed where the training has; a user's own stays open."""
        if (watch := self._open) is not None and self._is_mine:
            traceback = None if error is None else error.__traceback__
            watch.__exit__(None if error is None else type(error), error, traceback)

    def _say(self, words: str, *, level: int = logging.WARNING) -> None:
        """Log one sentence, once."""
        if words not in self._announced:
            self._announced.add(words)
            logger.log(level, "%s: %s", self._module, words)

    def _say_what_is_not_seen(self, without: str, *, is_half: bool) -> None:
        """Say of a training whose loss nothing scales what that means; in float16 with what there is not."""
        if (watch := self._open) is None or watch.is_scaled:
            return
        if is_half:
            self._say(f"{without}: steps are watched, the loss scale is not")
        else:
            self._say("no loss is scaled here: steps are watched", level=logging.INFO)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the training behind where the callback is copied or sent to another process."""
        return self.__dict__ | {"watch": None, "_guard": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin_anew()

    def _subscribe(
        self,
        watch: ampwatch.Monitor,
        callback: Callable[[Finding], None],
        chosen: dict[str, Any],
    ) -> None:
        if self._stops is not None and _is_stop(callback):
            # Its own choice of severity, which a function does not have.
            least = chosen["min_severity"] or type(actions.stop()).min_severity
            callback, chosen = self._stops, chosen | {"min_severity": least}
        watch.on_finding(callback, **chosen)

    def _note_stop(self, _: Finding) -> None:
        self._stop = True


def chosen(numbers: dict[str, float], keys: frozenset[str] | None) -> dict[str, float]:
    """Return the numbers that are to be logged; all that are known without keys."""
    return numbers if keys is None else {k: v for k, v in numbers.items() if k in keys}


def _is_stop(callback: object) -> bool:
    return isinstance(callback, type(actions.stop()))
