"""The part of ampwatch that is C: an extension module, built once, when ampwatch is installed.

It is in the wheel, made by ``pip install`` from the sources where a C compiler and the headers of
Python are, and on a checkout by ``make setup`` (`tools/native.py`). Where it is not, PyTorch measures
in its stead, and what hands on calls and events is Python; no training starts a compiler.
"""

from __future__ import annotations

import time
from types import BuiltinFunctionType
from typing import Any

try:
    from ampwatch.training.native import _core
except ImportError:
    # Not there, of another processor, or for another libc.
    core: Any = None
else:
    core = _core

timed: Any = core if isinstance(time.perf_counter_ns, BuiltinFunctionType) else None
"""The extension module for what reads the clock: C reads that of the system, so it is ``None`` where a
program has put a function of its own in the place of Python's."""

__all__ = ["core", "timed"]
