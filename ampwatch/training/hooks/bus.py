"""The bus: knows torch's callables, and tells sensors of what happens to them.

It owns what every sensor would otherwise ask for itself: which scaler is watched, whether a step
through it is running, whether an optimizer is stepping, whether a call is the outermost one, and
whether a compiler writes down what happens. What it replaces or hooks in torch, and when, is one
list: ``places.PLACES``.
"""

from __future__ import annotations

import re
from types import NoneType
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.amp import GradScaler

from ampwatch.guard import Guard, unbroken
from ampwatch.training.hooks import events
from ampwatch.training.hooks.channel import Channel, Subscriber
from ampwatch.training.hooks.compiling import SETTLED, may_compile
from ampwatch.training.hooks.events import EACH_STEP, ON_DEMAND, SensorFailed
from ampwatch.training.hooks.ownership import Ownership
from ampwatch.training.hooks.sensor import Sensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import nn
    from torch.optim import Optimizer

    from ampwatch.guard import Account
    from ampwatch.training.hooks.place import Handle, Place
    from ampwatch.training.scalers.loss_scaler import LossScaler


def _nothing() -> None:
    pass


class OpenIteration:
    """The open iteration. The ledger moves it on; all others read it.

    Attributes:
        step: Index of the open iteration.
        thread: Identity of the thread that trains, as of the last iteration; 0 before the first.
        take_over: Has the ledger go on with an iteration that was recorded in C until now. Whoever finds
            in the middle of one that it is no quiet one calls it before measuring anything.
    """

    __slots__ = ("step", "take_over", "thread")

    def __init__(self, step: int = 0) -> None:
        self.step = step
        self.thread = 0
        self.take_over: Callable[[], None] = _nothing


AWAKE_AT_FIRST = 64
"""Iterations at the start, and after something out of the ordinary, in which no sensor rests."""

ROUND = 32
"""Iterations of which ``AWAKE`` in a row are seen by the sensors that rest in the others."""

AWAKE = 2
"""What an iteration leaves to the next one shows in two in a row."""

ROUNDS_AT_FIRST = 32
"""Rounds of that length. Those after them have ``LONG_ROUND`` iterations: what is still to come is rarer."""

LONG_ROUND = 4 * ROUND
"""Has no divisor in common with ``SHIFT`` either, and divides what comes before."""

SHIFT = 13
"""Iterations by which those that are seen move on from one round to the next, so that what a
program does in each n-th iteration is seen whatever n is. Has no divisor in common with ``ROUND``."""


def next_awake(step: int) -> int:
    """Return the first iteration from ``step`` on that resting sensors receive."""
    length = ROUND if step < ROUND * ROUNDS_AT_FIRST else LONG_ROUND
    number, place = divmod(step, length)
    awake = number * SHIFT % length
    if place <= awake:
        return step - place + awake
    begin = step - place + length
    return next_awake(begin)


def handler_name(event: type) -> str:
    """Return the name of the method that takes an event: ``step_began`` for ``StepBegan``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", event.__name__).lower()


TORCH_EVENTS: tuple[type, ...] = tuple(
    kind
    for kind in vars(events).values()
    if isinstance(kind, type) and issubclass(kind, tuple) and kind.__module__ == events.__name__
)
"""All events of `events.py`."""


class _Resting(NamedTuple):
    """A channel while sensors rest: with the subscribers of before, and with those that are left."""

    channel: Channel
    before: tuple[Subscriber, ...]
    left: tuple[Subscriber, ...]


def _forget(_kind: Any, _given: Any = 0, _at: int | None = None) -> None:
    """Take a moment that nobody wants."""


def _forget_call(_model: nn.Module, _args: Any, _kwargs: Any) -> None:
    """Take a call of a model that nobody wants."""


class Bus:
    """Hands the events of one training to its sensors.

    Args:
        account: Where the time of all sensors is counted.
        scaler: The watched scaler or ``None``.
        iteration: The open iteration.
        places: What may be replaced or hooked.
        more_events: Events that others emit, besides those of `events.py`.
        models: Returns the watched models that are still there.
        loss_scaler: The watched scaler that is not torch's, or ``None``.

    Attributes:
        account: The account.
        guards: The guards of the sensors, and those that were asked for by name.
        scaler: The watched scaler. Another one may take over while the training runs.
        note: Takes down a moment (``PythonNotes.note``); forgets it unless a sensor has asked for moments.
        note_call: Takes a call of a watched model likewise: model, positional arguments, those by name.
        timing: The guard of the sensor that has asked for moments, ``None`` without one.
        infers_scale: Whether the scale is that which losses were seen to be multiplied by.
        ownership: Says which modules, optimizers and graphs are another training's.
        is_stepping: Whether a step through the watched scaler is running.
        is_optimizer_stepping: Whether any optimizer is stepping.
        may_compile: Whether ``torch.compile`` was called in this process.
        may_rest: Whether sensors may rest in iterations in which nothing of theirs is expected.
        outermost: Identity of the optimizer whose step is running, and not within another one's.
        stepping: Identities of those that step within it, its own included.
        replace_listener: Returns what listens in place of a listener, by the name of what it receives: iterations like
            the one before are taken down without it (``QuietSteps``).
        runs_compiled: Whether compiled code has run while this training is watched, or may have
            without being seen: then no hook may be on all modules, now or later.
    """

    def __init__(
        self,
        account: Account,
        scaler: GradScaler | None,
        iteration: OpenIteration,
        places: Sequence[Place],
        more_events: tuple[type, ...] = (),
        models: Callable[[], Iterable[nn.Module]] = tuple,
        loss_scaler: LossScaler | None = None,
    ) -> None:
        self._events = {handler_name(kind): kind for kind in (*TORCH_EVENTS, *more_events)}
        self.account = account
        self.guards: list[Guard] = []
        self.scaler = scaler
        self.models = models
        self.loss_scaler = loss_scaler
        self.note: Callable[..., object] = _forget
        self.note_call: Callable[[nn.Module, Any, Any], object] = _forget_call
        self.timing: Guard | None = None
        self._timed: frozenset[type] = frozenset()
        self.infers_scale = False
        self.ownership = Ownership(models)
        self._asking = self.guard("ownership", is_thread_safe=True)
        self.is_stepping = False
        self.is_optimizer_stepping = False
        self.outermost: int | None = None
        self.stepping: set[int] = set()
        self.replace_listener: Callable[[str, Callable[..., Any]], Callable[..., Any]] = (
            lambda _, listener: listener
        )
        self.runs_compiled = False
        self.at_boundary: tuple[Callable[[int], None], ...] = ()
        self._iteration = iteration
        self._settled = 0
        # What was compiled before anybody watched may be called for the first time now.
        self._compile_step = iteration.step
        self._sensors: list[tuple[Sensor, Guard]] = []
        self._channels: dict[type, Channel] = {}
        self._others: dict[type, Channel] = {}
        self._places = places
        self._placed: dict[Place, list[Handle]] = {}
        self._is_installed = self._is_removed = False
        self._rest_at = iteration.step + AWAKE_AT_FIRST
        self._wake_at = -1
        self._resting: list[_Resting] = []
        self.may_rest = False
        self.may_compile = may_compile()

    def guard(
        self,
        name: str,
        *,
        is_thread_safe: bool = False,
        account: Account | None = None,
        sweep: Callable[[], None] | None = None,
    ) -> Guard:
        """Return a new guard, which counts among those of this training. See ``Guard``.

        Args:
            name: The sensor's name.
            is_thread_safe: As of ``Guard``.
            account: As of ``Guard``; the training's own by default.
            sweep: Takes off what the sensor has placed for the moment, after it has failed.
        """

        def failed(guard: Guard, error: Exception) -> None:
            try:
                if sweep is not None:
                    sweep()
            finally:
                self.emit(SensorFailed(guard.name, guard.errors, error))

        account = account or self.account
        made = Guard(name, account, is_thread_safe=is_thread_safe, failed=failed)
        self.guards.append(made)
        return made

    def add(self, sensor: Sensor) -> None:
        """Notify a sensor of the events it has methods for, after those that were added before.

        Raises:
            ValueError: If what is to wake the sensor is no event.
        """
        unknown = sensor.waking - self._events.keys()
        if unknown:
            msg = f"`waking` of sensor {sensor.name!r}: expected names of events, got {sorted(unknown)}"
            raise ValueError(msg)
        guard = sensor.guard or self.guard(
            sensor.name, is_thread_safe=sensor.is_thread_safe, sweep=sensor.failed
        )
        self._sensors.append((sensor, guard))
        self._subscribe_to_all(sensor, guard)

    def _subscribe_to_all(self, sensor: Sensor, guard: Guard) -> None:
        for name, event in self._events.items():
            if event not in ON_DEMAND and hasattr(sensor, name) and name not in sensor.deaf_to:
                self._subscribe(sensor, guard, event)

    def _subscribe(self, sensor: Sensor, guard: Guard, event: type) -> None:
        name = handler_name(event)
        subscriber = Subscriber(sensor, guard, getattr(sensor, name), name in sensor.waking)
        channels = [self.channel(event)]
        if sensor.any_scaler:
            channels.append(self.of_other_scalers(event))
        for channel in channels:
            channel.subscribers = (*channel.subscribers, subscriber)
        if self._is_installed:
            self._place()

    def listen(self, sensor: Sensor, event: type) -> None:
        """Tell a sensor that was added of an event on demand, from now on. Idempotent.

        To be called between two iterations: PyTorch walks over its hooks in place.
        """
        if not self.receives(sensor, event):
            guard = next(guard for known, guard in self._sensors if known is sensor)
            self._begin_to_listen(sensor, guard, event)

    @unbroken
    def _begin_to_listen(self, sensor: Sensor, guard: Guard, event: type) -> None:
        try:
            self._subscribe(sensor, guard, event)
        except BaseException:
            # What is seen and not placed would not be placed when it is asked for again.
            self._end_listening(sensor, event)
            raise

    def ignore(self, sensor: Sensor, event: type) -> None:
        """Tell it no more of that event. Idempotent."""
        if self.receives(sensor, event):
            self._end_listening(sensor, event)

    @unbroken
    def _end_listening(self, sensor: Sensor, event: type) -> None:
        channel = self.channel(event)
        channel.subscribers = tuple(s for s in channel.subscribers if s.sensor is not sensor)
        self._take_off_unwanted()

    def receives(self, sensor: Sensor, event: type) -> bool:
        """Whether a sensor is notified of an event."""
        return any(s.sensor is sensor for s in self.channel(event).subscribers)

    @unbroken
    def time(
        self,
        sensor: Sensor,
        note: Callable[..., object],
        note_call: Callable[[nn.Module, Any, Any], object],
    ) -> None:
        """Have the moments of ``sensor.times`` noted from now on.

        Who only wants to know when something happened is not notified of it: a call behind a guard takes
        ten times as long. One sensor of a training can have them.

        Args:
            sensor: The sensor.
            note: Takes down each moment, on the thread on which it happens. Must not raise.
            note_call: Takes each call of a watched model. What it raises switches the sensor off.
        """
        self.timing = next(guard for known, guard in self._sensors if known is sensor)
        self._timed, self.note, self.note_call = sensor.times, note, note_call
        self._place()

    @unbroken
    def time_only(self, events: frozenset[type]) -> None:
        """Have the moments of these events noted from now on, of those that ``time`` was called for.

        Not of such as are hooks of PyTorch's, which it walks over in place: it may be amidst them.
        """
        left, self._timed = self._timed - events, events
        for place in tuple(self._placed):
            if not left.isdisjoint(place.events) and not self._is_wanted(place):
                self._take_off(place)
        self._place()

    def time_no_more(self) -> None:
        """Have no moments noted any more. Idempotent.

        What was placed for them stays until something else is taken off: the sensor may have failed in a
        hook of PyTorch's, which walks over its hooks in place.
        """
        self._timed = frozenset()
        self.note, self.note_call = _forget, _forget_call

    # Rest.

    def begin_iteration(self, step: int) -> None:
        """Have sensors rest in iteration ``step``, or wake them. Cost: 0.1 us, in most iterations."""
        if not self.may_rest:
            return
        if self._resting:
            if step >= self._wake_at:
                self.wake(AWAKE)
        elif step >= self._rest_at:
            self._rest(step)

    @property
    def is_resting(self) -> bool:
        """Whether any sensor rests."""
        return bool(self._resting)

    @property
    def next_turn(self) -> int:
        """Iteration at which sensors that rest are to be woken, or others are to rest."""
        return self._wake_at if self._resting else self._rest_at

    def wake(self, iterations: int = AWAKE_AT_FIRST) -> None:
        """Have no sensor rest in the open iteration and the following ones, ``iterations`` in all."""
        self._rest_at = max(self._rest_at, self._iteration.step + iterations)
        if self._resting:
            self._resume()

    def _rest(self, step: int) -> None:
        # What was placed for them stays: on Python 3.13 and newer a class whose methods were replaced a
        # thousand times has its attributes, and those of all its subclasses, looked up slowly for good.
        resting = [
            sensor for sensor, guard in self._sensors if sensor.rests and guard.run(sensor.may_rest)
        ]
        for event in EACH_STEP:
            channel = self.channel(event)
            before = channel.subscribers
            left = tuple(s for s in before if s.sensor not in resting)
            if len(left) < len(before):
                # Known before they are taken out: what an interrupt has left half-way is put back.
                self._resting.append(_Resting(channel, before, left))
                channel.subscribers = left
        self._wake_at = next_awake(step + 1)

    def _resume(self) -> None:
        rested = {s.sensor for _, before, left in self._resting for s in before if s not in left}
        for channel, before, left in self._resting:
            if channel.subscribers is not left:
                # Somebody has begun to listen meanwhile, or listens no more.
                now = channel.subscribers
                kept = [s for s in before if s not in left or s in now]
                before = self._in_order([*kept, *(s for s in now if s not in kept)])  # noqa: PLW2901
            channel.subscribers = before
        for sensor, guard in self._sensors:
            if sensor in rested and type(sensor).woken is not Sensor.woken:
                guard.run(sensor.woken)
        self._resting.clear()

    def _in_order(self, subscribers: Iterable[Subscriber]) -> tuple[Subscriber, ...]:
        order: dict[object, int] = {one: place for place, (one, _) in enumerate(self._sensors)}
        return tuple(sorted(subscribers, key=lambda one: order[one.sensor]))

    @unbroken
    def exchange(self, old: Sequence[Sensor], new: Iterable[Sensor]) -> None:
        """Have sensors take the place of others. To be called between two iterations.

        Args:
            old: Sensors that were added one after the other. They are notified of nothing any more.
            new: Sensors to be notified in their stead; one whose predecessor of that name has failed is not.
        """
        self.wake()
        place = next(place for place, (one, _) in enumerate(self._sensors) if one in old)
        gone = [guard for one, guard in self._sensors if one in old]
        failed = {guard.name for guard in gone if guard.off}
        before, after = self._sensors[:place], self._sensors[place + len(gone) :]
        self.guards = [guard for guard in self.guards if guard.off or guard not in gone]
        for channel in (*self._channels.values(), *self._others.values()):
            channel.subscribers = tuple(s for s in channel.subscribers if s.sensor not in old)
        for sensor in old:
            Guard(sensor.name, self.account).run(sensor.removed)
        self._sensors = []
        for sensor in new:
            if sensor.name not in failed:
                self.add(sensor)
        added, self._sensors = self._sensors, [*before, *self._sensors, *after]
        for channel in (*self._channels.values(), *self._others.values()):
            channel.subscribers = self._in_order(channel.subscribers)
        self._take_off_unwanted()
        for sensor, guard in added:
            guard.run(sensor.installed)

    def compile_called(self) -> None:
        """Take note that ``torch.compile`` is called."""
        self._compile_step = self._iteration.step
        self.may_compile = True
        self.wake()

    @property
    def is_compiling_settled(self) -> bool:
        """Whether what is compiled has been traced, as far as it is used in each iteration."""
        return self._iteration.step - self._compile_step >= SETTLED

    @property
    def sensors(self) -> tuple[Sensor, ...]:
        """The sensors, in the order in which they are notified of an event."""
        return tuple(sensor for sensor, _ in self._sensors)

    def channel(self, event: type) -> Channel:
        """Return the channel of an event of this training."""
        if event not in self._channels:
            self._channels[event] = Channel(self.account)
        return self._channels[event]

    def of_other_scalers(self, event: type) -> Channel:
        """Return the channel of an event of scalers that are not the watched one."""
        if event not in self._others:
            self._others[event] = Channel(self.account)
        return self._others[event]

    def is_of_another(self, owner: Optimizer | nn.Module) -> bool:
        """Whether an optimizer or a module is another training's. Never raises.

        Cost: nothing to speak of unless another one is watched in this process.
        """
        ownership = self.ownership
        if not ownership.has_others:
            return False
        return bool(self._asking.run(ownership.is_of_another, owner))

    def is_graph_of_another(self, roots: tuple[object, ...]) -> bool:
        """Whether the graph behind some tensors is another training's. Never raises.

        Cost: nothing to speak of unless another one was seen in this process.
        """
        ownership = self.ownership
        if ownership.is_alone:
            return False
        return bool(self._asking.run(ownership.is_graph_of_another, roots))

    def emit(self, event: object) -> None:
        """Hand an event that is not torch's to the sensors: of the iteration."""
        self.channel(type(event)).emit(event)

    def install(self) -> None:
        """Place what the sensors want, and have them begin; if one cannot, nothing stays.

        Raises:
            Exception: What a sensor raises at set-up.
        """
        try:
            if self._is_removed:
                for sensor, guard in self._sensors:
                    self._subscribe_to_all(sensor, guard)
            self._is_installed, self._is_removed = True, False
            self._rest_at = self._iteration.step + AWAKE_AT_FIRST
            self.may_compile = self.may_compile or may_compile()
            self.ownership.begin()
            unbroken(self._place)()
            for sensor, _ in self._sensors:
                sensor.installed()
        except BaseException:
            self.remove()
            raise

    @unbroken
    def remove(self) -> None:
        """Take everything off; no sensor is notified of anything any more. Idempotent.

        Never raises: a sensor that fails at its end is logged like one that fails in a step.
        """
        self._is_installed, self._is_removed = False, True
        self.ownership.end()
        # A callback may close the monitor in the middle of an iteration. The code that called it
        # goes on afterwards, and what it emits must not have a sensor place something again.
        self._resting.clear()
        for channel in (*self._channels.values(), *self._others.values()):
            channel.subscribers = ()
        for place in tuple(self._placed):
            self._take_off(place)
        for sensor, _ in reversed(self._sensors):
            # Its own guard is off after a failure, or held where a sensor's callback closes.
            Guard(sensor.name, self.account).run(sensor.removed)
        self.time_no_more()
        self.at_boundary = ()
        self.is_stepping = self.is_optimizer_stepping = False

    def _place(self) -> None:
        for place in self._places:
            if place not in self._placed and self._is_wanted(place):
                # Known before it is complete: what fails half-way is taken off as well.
                handles = self._placed[place] = []
                try:
                    place.put_on(self, handles)
                except BaseException:
                    self._take_off(place)
                    raise

    @unbroken
    def place_again(self, event: type) -> None:
        """Take off what is placed for an event, whoever listens, and place it as it is to be now.

        To be called between two iterations.
        """
        for place in tuple(self._placed):
            if event in place.events:
                self._take_off(place)
        self._place()

    def _is_wanted(self, place: Place) -> bool:
        return not place.events or any(
            event in self._timed
            or self.channel(event).subscribers
            or any(one.channel is self.channel(event) for one in self._resting)
            or self.of_other_scalers(event).subscribers
            for event in place.events
        )

    def _take_off_unwanted(self) -> None:
        for place in tuple(self._placed):
            if not self._is_wanted(place):
                self._take_off(place)

    def _take_off(self, place: Place) -> None:
        try:
            self._empty(place)
        except BaseException:
            self._empty(place)  # what an interrupt has left
            raise

    def _empty(self, place: Place) -> None:
        handles = self._placed.get(place, [])
        while handles:
            handles[-1].remove()
            handles.pop()
        self._placed.pop(place, None)

    @unbroken
    def follow(self, scaler: GradScaler) -> None:
        """Watch another scaler from now on: it has taken over."""
        before, self.scaler = self.scaler, scaler
        # Of a class of the user's, which may have methods of its own, one instance is listened to.
        is_plain = type(before) in {GradScaler, NoneType} and type(scaler) is GradScaler
        if self._is_installed and not is_plain:
            for place in tuple(self._placed):
                if place.of_scaler:
                    self._take_off(place)
            self._place()

    # The safe point.

    def call_at_boundary(self, closed: Callable[[int], None]) -> None:
        """Call ``closed(step)`` after each iteration; what it raises reaches the user.

        At the end of the user's call that has closed the iteration, outside of every guard, when
        all sensors are done with it: that is ``scaler.update()``, or without an enabled scaler the
        ``step`` of the leading optimizer.
        """
        if not self.at_boundary:
            self._settled = self._iteration.step
        self.at_boundary = (*self.at_boundary, closed)

    def forget_at_boundary(self, closed: Callable[[int], None]) -> None:
        """Call ``closed`` no more. Idempotent."""
        self.at_boundary = tuple(call for call in self.at_boundary if call != closed)

    def settle(self) -> None:
        """Come to the end of a call that may have closed an iteration."""
        if self._iteration.step != self._settled:
            self._settled = self._iteration.step
            for call in self.at_boundary:
                call(self._settled - 1)
