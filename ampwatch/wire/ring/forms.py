"""The JSON objects of the ring: their fields, and what each may hold.

A form maps the name of each field to the check of its value. Reading is strict, since
another user's process may have written the bytes: exactly the fields of the form,
of the declared types, counts that fit into 64 bits, text that is valid Unicode and
harmless on a terminal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, NoReturn

from ampwatch.wire.records import RunState, Severity

Form = Mapping[str, Callable[[object], object]]

_MAX_COUNT = 2**63 - 1
_MAX_NAME = 255

_CUTS = ((4096, 256), (1024, 64), (256, 32), (64, 16), (16, 4))
"""Longest text (characters) and most entries of a dict, tried in turn until an object
fits. The last fits into 8 slots whatever a finding says: 10 texts and 4 names at 6
bytes a character at most, and the numbers."""

# Control characters except tab and newline, those that turn the direction of text (a
# line then reads as another one), and lone surrogates (there is no UTF-8 for them).
_HARMFUL = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def to_json(source: object, form: Form, limit: int) -> bytes:
    """Return the attributes of ``source`` that ``form`` names as a JSON object in UTF-8.

    Long text is cut until the object fits: most of a finding is better than none.

    Args:
        source: The record, finding or identity.
        form: Which attributes.
        limit: Longest result; what 8 slots hold, or more. Unit: bytes.

    Raises:
        AttributeError, TypeError, RuntimeError: If ``source`` is not of that form.
        ValueError: If its numbers alone do not fit.
    """
    for text, entries in _CUTS:
        value = {name: _cut(getattr(source, name), text, entries) for name in form}
        words = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        # Lone surrogates (undecodable file names) become "?" rather than cost the record.
        encoded = words.encode(errors="replace")
        if len(encoded) <= limit:
            return encoded
    msg = f"expected fields that can be cut to {limit} bytes, got {len(encoded)} bytes"
    raise ValueError(msg)


def from_json(encoded: bytes, form: Form) -> dict[str, Any]:
    """Return the fields of a JSON object that has those of ``form`` and no others.

    Raises:
        ValueError: If it is anything else.
    """
    try:
        value = json.loads(encoded.decode())
    except RecursionError:
        refuse("a flat JSON object", encoded)
    if not isinstance(value, dict) or value.keys() != form.keys():
        refuse(f"a JSON object of {', '.join(form)}", encoded)
    return {name: check(value[name]) for name, check in form.items()}


def refuse(expected: str, given: object) -> NoReturn:
    """Raise the one error of everything malformed.

    Raises:
        ValueError: Always.
    """
    msg = f"expected {expected}, got {given!r:.80}"
    raise ValueError(msg)


def _cut(value: Any, text: int, entries: int) -> Any:
    if isinstance(value, str):
        return value if len(value) <= text else value[: text - 1] + "…"
    if isinstance(value, dict):
        first = islice(value.items(), entries)
        return {_cut(name, text, 0): _cut(item, text, 0) for name, item in first}
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        refuse("text", value)
    return _HARMFUL.sub("\N{REPLACEMENT CHARACTER}", value)


def _name(value: object) -> str:
    """Check a text that becomes a label: short, on one line, nothing invisible."""
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= _MAX_NAME:
        refuse(f"1 to {_MAX_NAME} printable characters", value)
    return value


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value <= _MAX_COUNT:
        refuse("a count that fits into 64 bits", value)
    return value


def _number(value: object) -> float:
    if type(value) is float:
        return value
    if type(value) is not int or abs(value) > _MAX_COUNT:
        refuse("a number that fits into 64 bits", value)
    return float(value)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        refuse("true or false", value)
    return value


def _end_state(value: object) -> RunState:
    if value not in (RunState.FINISHED, RunState.FAILED):
        refuse("finished or failed", value)
    return RunState(value)


def _entries_of(check: Callable[[object], object]) -> Callable[[object], object]:
    def checked(value: object) -> dict[str, object]:
        if not isinstance(value, dict):
            refuse("a JSON object", value)
        return {_text(name): check(item) for name, item in value.items()}

    return checked


IDENTITY: Form = {
    "run": _name,
    "rank": _count,
    "local_rank": _count,
    "world_size": _count,
    "pid": _count,
    "host": _name,
    "started_ns": _count,
    "version": _name,
}
FACTS: Form = {"facts": _entries_of(_text)}
FINDING: Form = {
    "kind": _text,
    "severity": Severity,
    "where": _text,
    "summary": _text,
    "advice": _text,
    "op": _text,
    "phase": _text,
    "dtype": _text,
    "first_step": _count,
    "last_step": _count,
    "count": _count,
    "evidence": _entries_of(_number),
    "root": _flag,
    "caused_by": _text,
    "source": _text,
}
END: Form = {"state": _end_state, "reason": _text, "time_ns": _count}
