"""Places where the ranks of a training talk: what they begin, and what they wait for."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch

from ampwatch.training.hooks.events import (
    CollectiveBegan,
    CollectiveWaited,
    CommunicationArrived,
    CommunicationAwaited,
    CommunicationAwaitedWithin,
)
from ampwatch.training.hooks.taps import listen
from ampwatch.training.model.tensors import all_tensors_in
from ampwatch.training.private import BEGINS_GROUP, ENDS_GROUP, graph_task

if TYPE_CHECKING:
    from ampwatch.training.hooks.bus import Bus


def place_communication(bus: Bus, handles: list[Any]) -> None:
    """Note when a communication is waited for, and when it is done."""
    if not torch.distributed.is_available():
        return

    def before(_work: Any, _args: Any, _kwargs: Any) -> None:
        is_within = graph_task() != -1
        bus.note(CommunicationAwaitedWithin if is_within else CommunicationAwaited)

    def after(_work: Any, *_: Any) -> None:
        bus.note(CommunicationArrived)

    work = torch.distributed.Work
    handles.append(listen(work, "wait", before=before, after=after, failed=after))


def _targets(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Return the tensors that a collective writes: the first of its arguments that has any.

    No schema says so. What is sent comes second, or is written itself.
    """
    each = (all_tensors_in((value,)) for value in (*args, *kwargs.values()))
    return next(filter(None, each), [])


READS_ONLY = frozenset({"send", "barrier"})
"""Methods of a process group that return a handle, and write nothing."""


def _begins_collective(name: str, method: Any) -> bool:
    """Whether a method of ``ProcessGroup`` returns a handle to wait for, as its signature says."""
    signature = str(getattr(method, "__doc__", None) or "")
    is_public = not name.startswith("__") and name not in READS_ONLY
    return is_public and "-> c10d::Work" in signature.replace(
        "torch._C._distributed_c10d.", "c10d::"
    )


class _Collectives:
    """Sees the collectives that Python begins.

    Args:
        bus: Where events go.
    """

    def __init__(self, bus: Bus) -> None:
        self._began = bus.channel(CollectiveBegan)
        self._waited = bus.channel(CollectiveWaited)
        # What is begun between the two calls of a coalescing group has one handle, that of the last.
        self._coalescing: dict[int, list[weakref.ref[torch.Tensor]]] = {}

    def put_on(self, handles: list[Any]) -> None:
        """Listen to all methods that return a handle, and to its own."""
        group, work = torch.distributed.ProcessGroup, torch.distributed.Work
        for name, method in list(vars(group).items()):
            if name == BEGINS_GROUP:
                handles.append(listen(group, name, after=self._opened))
            elif name == ENDS_GROUP:
                handles.append(listen(group, name, returned=self._closed))
            elif _begins_collective(name, method):
                handles.append(listen(group, name, returned=self._returned))
        handles.append(listen(work, "wait", after=self._after_wait))

    def _returned(self, group: Any, result: object, args: Any, kwargs: Any) -> None:
        targets = _targets(args, kwargs)
        together = self._coalescing.get(id(group))
        if together is not None:
            # Weakly: an exception of the user's may have kept the end from coming.
            together += map(weakref.ref, targets)
        else:
            self._begin(targets, result)

    def _opened(self, group: Any, _args: Any, _kwargs: Any) -> None:
        self._coalescing[id(group)] = []

    def _closed(self, group: Any, result: object, _args: Any, _kwargs: Any) -> None:
        together = self._coalescing.pop(id(group), ())
        self._begin([t for reference in together if (t := reference()) is not None], result)

    def _begin(self, targets: list[torch.Tensor], handle: object) -> None:
        if targets and isinstance(handle, torch.distributed.Work):
            self._began.emit(CollectiveBegan(targets, handle))

    def _after_wait(self, handle: Any, _args: Any, _kwargs: Any) -> None:
        self._waited.emit(CollectiveWaited(handle))


def place_collectives(bus: Bus, handles: list[Any]) -> None:
    """Hear which collectives Python begins, and which it has waited for."""
    # The methods of the group and not the functions of torch.distributed: FSDP, and whoever has
    # imported those by name, come through here as well. C++ does not; DDP waits inside of backward.
    if torch.distributed.is_available():
        _Collectives(bus).put_on(handles)
