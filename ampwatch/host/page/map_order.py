"""The order in which modules stand in a model, told from their names and from their calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def model_order(names: Sequence[str], called: Mapping[str, int]) -> list[int]:
    """Return the order in which modules stand in the model, as far as it is known.

    Those with outputs stand in the order in which they are called, siblings that are numbered by
    their number, and each of them with all that is in it.
    """
    first: dict[str, tuple[int, int]] = {}
    for index, name in enumerate(names):
        # What is never called itself stands where the first of its own is.
        own = (0, called[name]) if name in called else (1, index)
        for path in _paths(name):
            first[path] = min(first.get(path, own), own)

    def key(index: int) -> list[tuple[int, int, int, str]]:
        return [_among_siblings(path, first[path]) for path in _paths(names[index])]

    return sorted(range(len(names)), key=key)


def _among_siblings(path: str, first: tuple[int, int]) -> tuple[int, int, int, str]:
    last = path.rpartition(".")[2]
    if last.isdecimal():
        return 0, 0, int(last), last
    return (1, *first, last)


def _paths(name: str) -> list[str]:
    """Return the names of a module and of all that it is in, from the outside; the root has none."""
    parts = name.split(".") if name else []
    return [".".join(parts[: i + 1]) for i in range(len(parts))]
