"""The newest calls of the watched models, kept until their steps are judged, within a limit of memory."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from ampwatch.training.replay.kept_calls import KeptCall, RandomNumbers, own_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn

    from ampwatch.training.hooks.events import RootCalled
    from ampwatch.training.memory import HeldBytes, MemoryBudget
    from ampwatch.training.model.home import Home

MAX_CALLS = 64
"""Calls of models that are kept of one iteration. One with more is not replayed."""

TOO_LARGE = "its inputs take more than the setting `memory_bytes`"

TOO_FAR_BEHIND = "the device was too far behind for the setting `memory_bytes`"

TOO_MANY = "its calls take more than the setting `memory_bytes`, or are too many"


NO_FORWARD = (
    "no forward of a watched model that records gradients was seen yet; ask again after a step"
)


class _Kept(NamedTuple):
    """The calls of one iteration, and the bytes that they keep from being freed."""

    step: int
    calls: Sequence[KeptCall]
    nbytes: int


class NewestCalls:
    """Keeps the newest call of each model, with its step, for a budget that may be asked for.

    What it keeps of a batch is freed when the model is called again.
    """

    def __init__(self) -> None:
        self._calls: dict[int, tuple[int, KeptCall]] = {}
        self.why_none = NO_FORWARD

    def keep(self, step: int, call: KeptCall, model: nn.Module) -> None:
        """Keep a call, and let go of the one before."""
        known, key = self._calls, id(model)
        # In the place of the newest: a dictionary keeps the order in which keys came.
        known.pop(key, None)
        if known:
            for other, (_, older) in list(known.items()):
                if older.is_orphan:
                    del known[other]
        known[key] = step, call

    def let_go(self, why: str = NO_FORWARD) -> None:
        """Keep none of them, for a reason in words."""
        self._calls.clear()
        self.why_none = why

    def __iter__(self) -> Iterator[KeptCall]:
        """Iterate over the calls."""
        return iter([call for _, call in self._calls.values()])

    def of(self, model: nn.Module | None) -> tuple[int, KeptCall] | None:
        """Return step and call of a model, of the one that was called last where none is named."""
        if model is not None:
            return self._calls.get(id(model))
        return next(reversed(list(self._calls.values())), None)


class CallKeeper:
    """Keeps what the models are called with, until it is known whether their iteration has failed.

    Args:
        home: The devices of the training.
        memory: What may be held.
        count: Counts an iteration that is not kept, for a reason in words.

    Attributes:
        newest: The newest call of each model, judged or not.
        random: The states of random numbers in which calls were made.
    """

    def __init__(self, home: Home, memory: MemoryBudget, count: Callable[[str], None]) -> None:
        self._home = home
        self._memory = memory
        self._count = count
        self._room = 0
        self._step = -1
        self._open: list[KeptCall] = []
        self._open_bytes = self._kept_bytes = 0
        self._is_over = False
        self._kept: deque[_Kept] = deque()
        self.newest = NewestCalls()
        self.random = RandomNumbers()

    def update_room(self) -> None:
        """Take note of what memory is left: samples may take more, or less."""
        self._room = min(self._memory.left())

    def own_bytes(self) -> HeldBytes:
        """Return the bytes that are held here and by nobody else."""
        kept = [call for kept in self._kept for call in kept.calls]
        return own_bytes([*kept, *self._open, *self.newest])

    def keep(self, step: int, event: RootCalled) -> None:
        """Keep a call.

        Raises:
            ReplayRefusedError: If it cannot be kept.
        """
        if step != self._step:
            # Of iterations that were well, and of whose ends nobody was notified.
            self._step, self._is_over = step, False
            self.take_open()
        draws = self.random.at_call(self._home.devices)
        call = KeptCall(event.module, event.args, event.kwargs, draws)
        self.newest.keep(step, call, event.module)
        if not self._is_over:
            self._open.append(call)
            self._open_bytes += call.nbytes
            if self._kept_bytes + self._open_bytes > self._room or len(self._open) > MAX_CALLS:
                self._keep_within_budget()

    def _keep_within_budget(self) -> None:
        """Let go of the oldest calls, and of those of this iteration if they alone are too many.

        What the training holds anyway, as its loop holds the batch, does not count.
        """
        if not self._memory.is_kept():
            self.newest.let_go(TOO_LARGE)
        while self._kept and not self._memory.is_kept():
            self._let_go_of_oldest()
            self._count(TOO_FAR_BEHIND)
        if len(self._open) > MAX_CALLS or not self._memory.is_kept():
            self._is_over = True
            self._open.clear()
            self._count(TOO_MANY)
        else:
            # Asked once for as many bytes: a loop may hold a large batch in each iteration.
            self._room = max(self._room, self._kept_bytes + self._open_bytes)

    def _let_go_of_oldest(self) -> None:
        self._kept_bytes -= self._kept.popleft().nbytes

    @property
    def last(self) -> KeptCall | None:
        """The last call of the open iteration."""
        return self._open[-1] if self._open else None

    @property
    def first(self) -> KeptCall | None:
        """The first call of the open iteration."""
        return self._open[0] if self._open else None

    def take_open(self) -> Sequence[KeptCall]:
        """Return the calls of the open iteration, and keep them no longer."""
        calls, self._open, self._open_bytes = tuple(self._open), [], 0
        return calls

    def close(self, step: int) -> None:
        """End the open iteration."""
        nbytes = self._open_bytes
        calls = self.take_open()
        if calls:
            self._kept.append(_Kept(step, calls, nbytes))
            self._kept_bytes += nbytes
        self._is_over = False

    def of(self, step: int) -> Sequence[KeptCall]:
        """Return the calls of an iteration that has ended."""
        return next((kept.calls for kept in self._kept if kept.step == step), ())

    def let_go(self, judged: int) -> None:
        """Keep the calls of iterations up to this one no longer."""
        while self._kept and self._kept[0].step <= judged:
            self._let_go_of_oldest()

    def clear(self) -> None:
        """Keep nothing."""
        self._open.clear()
        self._kept.clear()
        self.newest.let_go()
        self._open_bytes = self._kept_bytes = 0
