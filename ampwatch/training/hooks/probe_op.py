"""The op that stands for ``watch.probe`` in compiled code: its graph need not break, nor be compiled again.

What is measured is decided when the op runs, and not when it is compiled. It has no output, so it is
marked as one that a compiler must keep.
"""

from __future__ import annotations

import weakref
from itertools import count
from typing import Any

import torch
from torch.fx.node import has_side_effect

_library: Any = torch.library.Library("ampwatch", "DEF")  # type: ignore[no-untyped-call]
_library.define("probe(Tensor x, str name, int number) -> ()")

probe: Any = torch.ops.ampwatch.probe.default
has_side_effect(probe)

_numbers = count()
_probed: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def number_of(owner: object) -> int:
    """Return the number by which compiled code refers to an owner of a method ``probed``."""
    number = next(_numbers)
    _probed[number] = owner
    return number


@torch.library.impl(_library, "probe", "CompositeExplicitAutograd")
def _run(x: torch.Tensor, name: str, number: int) -> None:
    owner = _probed.get(number)
    if owner is not None:
        owner.probed(name, x)


@torch.library.register_fake("ampwatch::probe", lib=_library)  # type: ignore[untyped-decorator]
def _fake(x: torch.Tensor, name: str, number: int) -> None:
    """Do nothing: there is no output."""
