"""Notes of moments: of events, and of the calls of models, with the size of the batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from threading import get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from torch import Tensor, is_grad_enabled
from torch.nn.parallel import DistributedDataParallel

from ampwatch.training.native import timed
from ampwatch.training.private import (
    ACTIVE_REPLICA,
    NoFunctionModes,
    graph_task,
    num_function_modes,
)
from ampwatch.training.sensors.time.splitting import (
    EVALUATES,
    KEEPS_GRADIENTS,
    SUMS_GRADIENTS,
    TRAINS,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sized

    from torch import nn

    from ampwatch.training.iteration.context import Context


class PythonNotes:
    """Takes down moments, as `native/notes.c` does; for where that is not built, or the clock is not the system's.

    Args:
        limit: How many it keeps. Of more the oldest are lost.
        now: The clock. Unit: ns.
    """

    def __init__(self, limit: int, now: Callable[[], int] = perf_counter_ns) -> None:
        self._moments: deque[tuple[int, int, Any, Any]] = deque(maxlen=limit)
        self._now = now

    def note(self, kind: Any, given: Any = 0, at: int | None = None) -> None:
        """Take down a moment.

        Args:
            kind: The kind of event, or what else a sensor notes.
            given: What comes with it: of ``BatchAwaited`` the workers of the loader, of
                ``IterationClosed`` the iteration.
            at: When it happened, if not now.
        """
        self._moments.append((self._now() if at is None else at, get_ident(), kind, given))

    def columns(self) -> tuple[tuple[Any, ...], ...]:
        """Return when (unit: ns), on which thread (``threading.get_ident``), what, and what came with it."""
        return tuple(zip(*tuple(self._moments), strict=True)) or ((), (), (), ())

    def drop(self, num: int) -> None:
        """Forget the first ones; another thread may be about to add to the others."""
        for _ in range(num):
            self._moments.popleft()

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._moments)


def notes_by(now: Callable[[], int], limit: int) -> PythonNotes:
    """Return what takes down moments by a clock: in C where that can be."""
    if timed is None or now is not perf_counter_ns:
        return PythonNotes(limit, now)
    notes: PythonNotes = timed.Notes(limit)
    return notes


MAX_DEPTH = 3
"""Containers within one another in which the batch is looked for."""


class CallNotes:
    """Has the bus note each call of a watched model.

    Apart from the sensor, and with slots: in the middle of a step the caches have forgotten our code and
    what it reads, and an object of many attributes looks each of them up in a dictionary.

    Args:
        context: Shared parts of the training.
        kept: Where moments are kept.
        limit: Of how many values in it there is to be made room.
        make_room: Makes it. Must not raise.

    Attributes:
        num_compiled: Calls that came with compiled code about, of which some may go by unseen.

    Cost: some 3 us a call in the middle of a step, where the caches have forgotten it; less in C.
    """

    __slots__ = (
        "_bus",
        "_communicates",
        "_iteration",
        "_kept",
        "_limit",
        "_make_room",
        "_now",
        "num_compiled",
    )

    def __init__(
        self,
        context: Context,
        kept: Sized,
        limit: int,
        make_room: Callable[[], object],
    ) -> None:
        self._bus = context.bus
        self._now = context.clock.monotonic_ns
        self._iteration = context.iteration
        self._communicates = context.peers.world_size > 1
        self._kept = kept
        self._limit = limit
        self._make_room = make_room
        self.num_compiled = 0

    def noting(self) -> Callable[[nn.Module, Any, Any], object]:
        """Return what notes a call: in C as a rule, for a model that trains on an ordinary tensor."""
        if timed is None or self._communicates or self._now is not perf_counter_ns:
            return self.note
        given = self._bus, self._iteration, self._kept, TRAINS, self.note
        noted: Callable[[nn.Module, Any, Any], object] = timed.CallNotes(given, self._limit).note
        return noted

    def note(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        """Note that forward begins, or an evaluation."""
        bus = self._bus
        now, thread = self._now(), self._iteration.thread
        if (thread and get_ident() != thread) or graph_task() != -1:
            return  # made again within backward, by activation checkpointing
        kind, numel = EVALUATES, 0
        if model.training or is_grad_enabled():
            kind = _sums_gradients() if self._communicates else TRAINS
            first = args[0] if args else None
            if type(first) is Tensor and not num_function_modes():
                numel = first.numel()
            if not numel:
                # Without the function modes and the subclasses of the user, which would see our question.
                with NoFunctionModes():
                    numel = _numel_of((*args, *kwargs.values()), MAX_DEPTH)
        if bus.may_compile:
            self.num_compiled += 1
        bus.note(kind, numel, now)
        if len(self._kept) >= self._limit:
            self._make_room()


def _sums_gradients() -> int:
    """Return what a replica says of the backward to come, which it does while it calls the model."""
    replica: Any = getattr(DistributedDataParallel, ACTIVE_REPLICA, None)
    if replica is None:
        return TRAINS
    return SUMS_GRADIENTS if replica.require_backward_grad_sync else KEEPS_GRADIENTS


def _numel_of(values: Iterable[Any], depth: int) -> int:
    """Return the elements of the first tensor that a model is called with: its batch is as large."""
    for value in values:
        numel = 0
        if isinstance(value, Tensor):
            numel = value.numel()
        elif depth and isinstance(value, Mapping):
            numel = _numel_of(value.values(), depth - 1)
        elif depth and isinstance(value, (list, tuple)):
            numel = _numel_of(value, depth - 1)
        if numel:
            return numel
    return 0
