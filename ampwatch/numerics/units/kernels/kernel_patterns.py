"""Patterns of names of users' own kernels, as a setting."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ampwatch.errors import SettingsError
from ampwatch.numerics.formats import FORMATS
from ampwatch.numerics.units.kernels.kernel_name import Unit

if TYPE_CHECKING:
    from collections.abc import Iterable

_SINGLE = [fmt for fmt in FORMATS.values() if fmt.kernel_label == fmt.name]
_LABELS = [fmt.kernel_label for fmt in sorted(_SINGLE, key=lambda fmt: fmt.bits)]
_LABELS += [fmt.kernel_label for fmt in FORMATS.values() if fmt not in _SINGLE]

DTYPES = (*dict.fromkeys(_LABELS), "int8", "complex64", "complex128")
"""The dtypes a kernel can be said to multiply. First those with a label of their own, and of these
what mixed precision is for; then labels that several formats share."""

_FORM = "expected regex=unit or regex=unit:dtype, several separated by semicolons or lines"
_EXAMPLE = "e.g. my_gemm_.*=tensor:bfloat16"


class KernelPattern(NamedTuple):
    """Kernels of a user's own.

    Attributes:
        pattern: Searched for in the whole name, in this case.
        unit: Where they multiply.
        dtype: What they multiply; empty if not stated.
    """

    pattern: re.Pattern[str]
    unit: Unit
    dtype: str


def parse_patterns(patterns: str | Iterable[str]) -> tuple[KernelPattern, ...]:
    """Return the patterns of the setting ``kernel_patterns``, in their order.

    Args:
        patterns: ``regex=unit[:dtype]``: one string with semicolons or line breaks in between,
            or one string for each. The last ``=`` counts, so the regex may contain others.

    Raises:
        SettingsError: If one of them is not of that form.
    """
    entries = re.split(r"[;\n]", patterns) if isinstance(patterns, str) else list(patterns)
    return tuple(_parse(entry.strip()) for entry in entries if entry.strip())


def _parse(entry: str) -> KernelPattern:
    regex, equals, verdict = entry.rpartition("=")
    word, colon, dtype = verdict.strip().partition(":")
    if not equals or not regex.strip():
        msg = f"`kernel_patterns`: {_FORM}, got {entry!r}; {_EXAMPLE}"
        raise SettingsError(msg)
    if word not in [unit.value for unit in Unit]:
        units = ", ".join(unit.value for unit in Unit)
        msg = (
            f"`kernel_patterns`: expected a unit of {units} in {entry!r}, got {word!r}; {_EXAMPLE}"
        )
        raise SettingsError(msg)
    if colon and dtype not in DTYPES:
        msg = f"`kernel_patterns`: expected a dtype of {', '.join(DTYPES)} in {entry!r}, got {dtype!r}; leave out :{dtype} if the dtype varies"
        raise SettingsError(msg)
    try:
        pattern = re.compile(regex.strip())
    # What is no expression is an ``re.error``; one with too large a number, or nested too deeply,
    # is not.
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        msg = f"`kernel_patterns`: expected a regular expression, got {regex.strip()!r} ({error}); put \\ in front of characters that stand for themselves"
        raise SettingsError(msg) from error
    return KernelPattern(pattern, Unit(word), dtype)
