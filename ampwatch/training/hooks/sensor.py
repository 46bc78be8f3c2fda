"""The contract of a sensor: it names the events it wants by its methods, and touches nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ampwatch.guard import Guard


class Sensor:
    """Something that watches one thing in the training process.

    A method with the name of an event (`events.py`) is called with each of that kind, on the
    thread on which it happens and behind the sensor's own guard. A sensor places nothing itself:
    the bus does, and only where a sensor wants the event. It is made from the ``Context`` that all share.

    Attributes:
        name: Short and stable; names the sensor in logs and metrics.
        is_thread_safe: Whether it may be at work in several threads at a time.
        any_scaler: Whether it wants the events of all scalers, not only of the watched one.
        waking: Names of the events that reach it while it is dormant.
        is_dormant: Nothing happens that concerns it; costs less than being called in vain.
        rests: Whether it wants the events of each step (``EACH_STEP``) in some iterations only: what a
            program does wrong in its calls it does again.
        times: Events of which it wants to know when they happen, and no more: see ``Bus.time``.
        batched: Names of the events that it need not be notified of in each iteration where these are alike
            (``QuietSteps``): of a loss and a step through the scaler that went well, and, of the end of one and the
            beginning of the next, the newest of several will do. May change from one event to the next.
        deaf_to: Names of events that it has methods for and does not want in this training.
        guard: Its fail-open boundary, where it does work that no event begins; else the bus
            makes one.
    """

    name: ClassVar[str]
    is_thread_safe: ClassVar[bool] = False
    waking: ClassVar[frozenset[str]] = frozenset()
    any_scaler: bool = False
    is_dormant: bool = False
    rests: bool = False
    times: frozenset[type] = frozenset()
    deaf_to: frozenset[str] = frozenset()
    guard: Guard | None = None

    @property
    def batched(self) -> frozenset[str]:
        """Names of events, as above."""
        return frozenset()

    def installed(self) -> None:
        """Begin; the hooks are placed. At set-up, so what it raises reaches the user."""

    def may_rest(self) -> bool:
        """Whether it may rest now: nothing that it has seen has to be followed further.

        Of what something wakes: while it is dormant.
        """
        return self.is_dormant or not self.waking

    def woken(self) -> None:
        """Begin anew: some iterations have gone by unseen."""

    def not_seen(self) -> Iterable[str]:
        """Return, in sentences, what it did not observe."""
        return ()

    def failed(self) -> None:
        """Take off what was placed for the moment: the sensor has failed, and is off from now on."""

    def removed(self) -> None:
        """Forget everything; the hooks are gone. Idempotent, and called after a failure as well."""
