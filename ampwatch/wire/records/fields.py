"""Types of the fields of records, for type checkers and for msgspec, which reads records.

Type checkers see ``int`` and ``str``. msgspec refuses what is out of the bounds: another
user's process may have written the bytes, and later code adds, indexes and formats without
checking.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

MAX_COUNT = 2**63 - 1
MAX_NAME = 200
"""Longest name of a module, an op or a kernel. Unit: characters."""

KERNEL_UNITS = ("tensor", "cuda", "unknown", "other", "cpu")
"""Words for what a kernel ran on; ``KernelTotal`` explains them."""

Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
"""A number of things, an index, or a time in ns."""

CountOrUnknown = Annotated[int, Meta(ge=-1, le=MAX_COUNT)]
"""A count; -1 where it is not known."""

LargeCount = Annotated[int, Meta(ge=0)]
"""FLOPs and bytes: those of a run are more than 64 bits hold."""

OptimizerIndex = Annotated[int, Meta(ge=0, le=255)]

Name = Annotated[str, Meta(max_length=MAX_NAME)]

Label = Annotated[str, Meta(min_length=1, max_length=255)]
"""Text that becomes a Prometheus label value or a part of a file name."""

KernelUnit = Annotated[str, Meta(pattern=f"^({'|'.join(KERNEL_UNITS)})$")]
"""One of ``KERNEL_UNITS``."""
