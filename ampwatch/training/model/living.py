"""Objects that still live: behind weak references, or known to the garbage collector."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import weakref
    from collections.abc import Iterable


def alive(references: Iterable[weakref.ref[Any]]) -> list[Any]:
    """Return the objects that weak references still refer to."""
    return [thing for reference in references if (thing := reference()) is not None]


def instances_of(base: type) -> list[Any]:
    """Return the instances of ``base`` and its subclasses that the collector knows.

    Cost: one pass over the collector's objects, about 0.3 us each; some 0.1 s with torch loaded.
    """
    # By the identity of the class: isinstance() asks the object for __class__, and lazy proxies
    # among the collector's objects may import modules or raise when they are asked.
    wanted: set[int] = set()
    queue = [base]
    while queue:
        kind = queue.pop()
        if id(kind) not in wanted:
            wanted.add(id(kind))
            # Called on ``type``: a metaclass may have a ``__subclasses__`` of its own.
            queue.extend(type.__subclasses__(kind))
    return [x for x in gc.get_objects() if id(type(x)) in wanted]
