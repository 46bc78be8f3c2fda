"""Calls that end an iteration, of a scaler that is not torch's."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from ampwatch.training.hooks.events import EndCalled, EndReturned
from ampwatch.training.hooks.taps import listen
from ampwatch.training.scalers.loss_scaler import Reader

if TYPE_CHECKING:
    from ampwatch.training.hooks.bus import Bus
    from ampwatch.training.scalers.loss_scaler import LossScaler


class Ends:
    """Emits ``EndCalled`` and ``EndReturned`` for the calls that a ``LossScaler`` names.

    Of calls within one another the outermost counts: an optimizer of several steps each of them.

    Args:
        bus: Gets the events.
        scaler: The scaler.
        handles: What takes it off is added here.

    Cost: 0.5 us a call, and what the scaler's own functions take.
    """

    def __init__(self, bus: Bus, scaler: LossScaler, handles: list[Any]) -> None:
        self._bus = bus
        self._called, self._returned = bus.channel(EndCalled), bus.channel(EndReturned)
        self._reader = Reader(scaler)
        self._depth = 0
        for owner, method, raises in scaler.calls:
            handles.append(
                listen(
                    type(owner),
                    method,
                    instance=owner,
                    before=self._before,
                    returned=self._after if raises is None else self._passed,
                    failed=partial(self._failed, raises),
                )
            )

    def _before(self, _owner: Any, _args: Any, _kwargs: Any) -> None:
        self._depth += 1
        if self._depth == 1:
            self._called.emit(EndCalled(self._reader.scale()))

    def _after(self, _owner: Any, result: object, _args: Any, _kwargs: Any) -> None:
        # The answer of an inner call is nobody's: the outer one may go on to another one.
        self._leave(self._reader.outcome(result) if self._depth == 1 else None)

    def _passed(self, _owner: Any, _result: object, _args: Any, _kwargs: Any) -> None:
        self._leave(None)

    def _failed(self, raises: type[BaseException] | None, _owner: Any) -> None:
        is_skip = raises is not None and isinstance(sys.exc_info()[1], raises)
        self._leave(True if is_skip else None)

    def _leave(self, outcome: object) -> None:
        # Put on within a call, its return is heard without its beginning.
        self._depth = max(0, self._depth - 1)
        if self._depth == 0 and outcome is not None:
            self._returned.emit(EndReturned(self._reader.scale(), outcome))
            if self._bus.at_boundary:
                self._bus.settle()
