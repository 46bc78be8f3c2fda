"""The label ``dtype``: one of a few words, so that it stays bounded."""

from __future__ import annotations

from ampwatch.numerics.formats import FORMATS, PLAIN

_OF_OPS = [fmt.name for fmt in PLAIN]
_OF_KERNELS = [fmt.kernel_label for fmt in FORMATS.values()]

DTYPES = (*dict.fromkeys([*_OF_OPS, *_OF_KERNELS]), "int8")
"""Values of the label ``dtype``; ``OTHER_DTYPE`` stands for every other one."""

OTHER_DTYPE = "other"

NO_DTYPE = "unknown"
"""Value for a kernel whose name says no dtype: to Prometheus an empty label is no label."""


def dtype_label(dtype: str) -> str:
    """Return a dtype as one of the few words of its label."""
    if not dtype:
        return NO_DTYPE
    return dtype if dtype in DTYPES else OTHER_DTYPE
