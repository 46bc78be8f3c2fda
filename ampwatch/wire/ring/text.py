"""Text on the wire: cut to fit where it is written, harmless where it is read."""

from __future__ import annotations

import json
import re
from itertools import islice
from typing import Any, NoReturn

# Control characters except tab and newline, those that turn the direction of text (a
# line then reads as another one), and lone surrogates (there is no UTF-8 for them).
_HARMFUL = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def cut_text(value: Any, length: int, entries: int) -> Any:
    """Return a text, or a dict or tuple with its texts, without what is beyond the limits.

    Args:
        value: Text, a dict or a tuple; anything else is returned as it is.
        length: Longest text. Unit: characters.
        entries: Most entries of a dict.
    """
    if type(value) is str and len(value) <= length and value.isascii():
        return value  # nearly every text, at a tenth of the time
    if isinstance(value, str):
        cut = value if len(value) <= length else value[: length - 1] + "…"
        # Lone surrogates (undecodable file names) become "?" rather than cost the record.
        return cut.encode(errors="replace").decode()
    if isinstance(value, dict):
        first = islice(value.items(), entries)
        return {cut_text(name, length, 0): cut_text(item, length, 0) for name, item in first}
    if isinstance(value, tuple):
        return tuple(cut_text(item, length, entries) for item in value)
    return value


def harmless(value: Any) -> Any:
    """Return a text, or a dict or tuple with its texts, with nothing that a terminal would obey."""
    if type(value) is str:  # enumerations of text are left as they are
        return _HARMFUL.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, dict):
        return {harmless(name): harmless(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return getattr(value, "_make", tuple)(map(harmless, value))  # those with names keep them
    return value


def cut_name(name: str, length: int) -> str:
    """Return ``name`` without what cannot be printed, and without its middle if it is long."""
    if len(name) > length:
        half = length // 2
        name = f"{name[:half]}…{name[1 - half :]}"
    if name.isprintable():
        return name
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name)


def check_names(*names: str) -> None:
    """Refuse names with characters that cannot be printed, which ``cut_name`` replaces.

    Raises:
        ValueError: If one cannot be printed.
    """
    for name in names:
        if not name.isprintable():
            refuse("printable characters", name)


def parse_json(text: str | bytes) -> Any:
    """Return what JSON of anybody says.

    Raises:
        ValueError: If it is no JSON, or nests deeper than the parser's stack, at one byte a level.
    """
    try:
        return json.loads(text)
    except RecursionError:
        msg = "expected JSON, got one that nests too deeply"
        raise ValueError(msg) from None


def refuse(expected: str, given: object) -> NoReturn:
    """Raise the one error of everything malformed.

    Raises:
        ValueError: Always.
    """
    msg = f"expected {expected}, got {given!r:.80}"
    raise ValueError(msg)
