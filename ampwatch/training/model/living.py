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
    wanted = _classes(base)
    return [x for x in gc.get_objects() if id(type(x)) in wanted]


def referring_to(thing: object, base: type) -> list[Any]:
    """Return the instances of ``base`` and its subclasses of which an attribute is ``thing``.

    Cost: one pass over the collector's objects, or two, about 0.05 us each.
    """
    wanted = _classes(base)
    referrers = gc.get_referrers(thing)
    # Attributes lie in the object itself, or in a dict that alone refers to them.
    attributes = [x for x in referrers if type(x) is dict]
    if attributes:
        referrers += gc.get_referrers(*attributes)
    return list({id(x): x for x in referrers if id(type(x)) in wanted}.values())


def _classes(base: type) -> set[int]:
    # By identity: isinstance() asks the object for __class__, and lazy proxies among the collector's
    # objects may import modules or raise when they are asked.
    classes: set[int] = set()
    queue = [base]
    while queue:
        kind = queue.pop()
        if id(kind) not in classes:
            classes.add(id(kind))
            # Called on ``type``: a metaclass may have a ``__subclasses__`` of its own.
            queue.extend(type.__subclasses__(kind))
    return classes
