"""The label ``dtype``: one of a few words, so that it stays bounded."""

from __future__ import annotations

DTYPES = (
    "float64",
    "float32",
    "tf32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8",
    "mx",
    "int8",
)
"""Values of the label ``dtype``; ``OTHER_DTYPE`` stands for every other one."""

OTHER_DTYPE = "other"

NO_DTYPE = "unknown"
"""Value for a kernel whose name says no dtype: to Prometheus an empty label is no label."""


def dtype_label(dtype: str) -> str:
    """Return a dtype as one of the few words of its label."""
    if not dtype:
        return NO_DTYPE
    return dtype if dtype in DTYPES else OTHER_DTYPE
