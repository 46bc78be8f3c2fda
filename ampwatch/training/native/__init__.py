"""The part of ampwatch that is C: an extension module, built once, when ampwatch is installed.

It is in the wheel, made by ``pip install`` from the sources where a C compiler and the headers of
Python are, and on a checkout by ``make setup`` (`tools/native.py`). Where it is not, PyTorch measures
in its stead, and what hands on calls and events is Python; no training starts a compiler.
"""

from __future__ import annotations

from typing import Any

try:
    from ampwatch.training.native import _core
except ImportError:
    # Not there, of another processor, or for another libc.
    core: Any = None
else:
    core = _core

__all__ = ["core"]
