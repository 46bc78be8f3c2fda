"""The place where a training waits for its next batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ampwatch.training.hooks.events import BatchArrived, BatchAwaited
from ampwatch.training.hooks.taps import listen
from ampwatch.training.private import LOADER_ITERATOR, LOADER_WORKERS

if TYPE_CHECKING:
    from ampwatch.training.hooks.bus import Bus


def place_batches(bus: Bus, handles: list[Any]) -> None:
    """Note when a batch of a ``DataLoader`` is awaited, and when it is there."""
    # Where the first DataLoader is made its module has been imported: by torch itself.
    if LOADER_ITERATOR is None:
        return

    def before(loader: Any, _args: Any, _kwargs: Any) -> None:
        # From where PyTorch has put it: a class of the user's may have a property of the name.
        workers = vars(loader).get(LOADER_WORKERS, -1)
        bus.note(BatchAwaited, workers)

    def after(_loader: Any, _args: Any, _kwargs: Any) -> None:
        bus.note(BatchArrived)

    def failed(_loader: Any) -> None:
        bus.note(BatchArrived)

    handles.append(listen(LOADER_ITERATOR, "__next__", before=before, after=after, failed=failed))
