"""What has ended a training: whether it was a number, and which calls it has come out of."""

from __future__ import annotations

import re
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ampwatch.diagnosis.calls.known_errors import refuses_nonfinite
from ampwatch.training.hooks.sources import is_of_user, line_of
from ampwatch.training.kernels.admission import is_of_floats
from ampwatch.training.private import MODULE_CALLS
from ampwatch.training.replay.kept_calls import Draws, KeptCall, ReplayRefusedError
from ampwatch.wire.blackbox.exception import chain_of, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

    from torch import Tensor

    from ampwatch.training.replay.kept_calls import Autocast

MAX_CALLS = 4
"""Calls of one traceback that are made again, from the innermost outwards."""

MAX_BLOCK = 50
"""Lines above a ``raise`` in which its ``if`` is looked for."""

CHECK = re.compile(r"\b(isfinite|isnan|isinf)\b")
"""What a program asks before it ends itself: functions of PyTorch, of ``math`` and of numpy."""


class Ending(NamedTuple):
    """The end of a training by an exception, or by ``sys.exit``.

    Attributes:
        error: The exception; ``None`` without one.
        trail: The frames that it has come through, and their lines, the outermost first.
        is_of_nonfinite: Whether it was raised because a number was not finite.
    """

    error: BaseException | None
    trail: Sequence[tuple[FrameType, int]] = ()
    is_of_nonfinite: bool = False

    @classmethod
    def by(cls, error: BaseException | None) -> Ending:
        """Return the ending by an exception, or by the one of its causes that is about a number."""
        endings = [cls._by_itself(cause) for cause in chain_of(error)]
        return next((one for one in endings if one.is_of_nonfinite), (*endings, cls(None))[0])

    @classmethod
    def _by_itself(cls, error: BaseException) -> Ending:
        trail = list(walk_tb(error.__traceback__))
        innermost = next((one for one in reversed(trail) if is_of_user(one[0])), None)
        if innermost is None:
            return cls(error, trail)
        is_refused = refuses_nonfinite(text_of(error))
        if is_refused and type(error).__name__ == "_LinAlgError":
            # A matrix without a factorization may be finite.
            held = innermost[0].f_locals.values()
            is_refused = any(_num_nonfinite(value) for value in held if is_of_floats(value))
        return cls(error, trail, is_refused or _has_checked(*innermost))

    def suspects(self) -> list[Tensor]:
        """Return the tensors with a graph in variables of the user's that are not finite.

        Cost: one pass over each such tensor, and a sync where it is on a device.
        """
        if not self.is_of_nonfinite:
            return []
        held = [v for f, _ in self.trail if is_of_user(f) for v in f.f_locals.values()]
        return [t for t in held if is_of_floats(t) and t.grad_fn is not None and _num_nonfinite(t)]

    def calls(
        self, regions: Sequence[Autocast], devices: Sequence[torch.device]
    ) -> Iterator[KeptCall]:
        """Yield the calls of modules outside of the watched models that it has come out of, the innermost first.

        Each in ``regions`` and without autocast: the regions that they were in have been left since.

        Args:
            regions: Where autocast was on when the model was called.
            devices: Those whose random numbers may be drawn.
        """
        called = [f for f, _ in reversed(self.trail) if f.f_code is MODULE_CALLS[0]]
        for held in [frame.f_locals for frame in called[:MAX_CALLS]]:
            for autocast in dict.fromkeys([tuple(regions), ()]):
                try:
                    call = KeptCall(held["self"], held["args"], held["kwargs"], Draws.now(devices))
                except ReplayRefusedError:
                    break
                call.outside, call.autocast, call.is_fed = held["self"], autocast, True
                yield call

    def is_same(self, error: BaseException | None) -> bool:
        """Whether an exception of a replay is this one: from the same lines, with the same in their variables."""
        mine = self.error
        if error is None or mine is None or type(error) is not type(mine):
            return False
        again, before = _variables(list(walk_tb(error.__traceback__))), _variables(self.trail)
        return text_of(error) == text_of(mine) and again == before[len(before) - len(again) :]


def _variables(trail: Sequence[tuple[FrameType, int]]) -> list[tuple[str, int, dict[str, Any]]]:
    """Return, for each line of the user's, what its variables hold: dtype, shape, and how much is not finite."""
    return [
        (
            frame.f_code.co_filename,
            line,
            {
                name: (value.dtype, value.shape, _num_nonfinite(value))
                for name, value in frame.f_locals.items()
                if is_of_floats(value)
            },
        )
        for frame, line in trail
        if is_of_user(frame)
    ]


def _num_nonfinite(tensor: Tensor) -> int:
    return int((~torch.isfinite(tensor.detach())).sum())


def _has_checked(frame: FrameType, line: int) -> bool:
    """Whether a line asserts that something is finite, or raises in the block of an ``if`` that asks for it."""
    name = frame.f_code.co_filename
    raised = line_of(name, line)
    statement = raised.split(maxsplit=1)[:1]
    if statement == ["assert"]:
        return CHECK.search(raised) is not None
    for number in range(line - 1, max(line - MAX_BLOCK, 0), -1) if statement == ["raise"] else ():
        above = line_of(name, number)
        if above.strip() and _indent(above) < _indent(raised):
            return above.lstrip().startswith(("if ", "elif ")) and CHECK.search(above) is not None
    return False


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
