"""A box as a document: plain JSON that any language reads, with a version of its own.

A document is one object::

    {"format": "ampwatch-report", "version": 1, "ranks": [{...}, ...]}

with an object for each rank, whose members are those of ``Box``. Rows of a kind stand under
``columns`` and ``rows``, so that names are there once. NaN and infinities, which JSON does
not have, are the strings ``NaN``, ``Infinity`` and ``-Infinity``. docs/report.md describes
every member.

A reader takes documents of its own version and of older ones, and passes over members that
it does not know. Reading trusts nobody: whatever is not of the declared type is refused, and
text is made harmless for a terminal.
"""

from __future__ import annotations

import json
import math
from functools import cache
from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from msgspec import convert

from ampwatch.errors import ReportError
from ampwatch.numerics.blocks import (
    BLOCK_SIZES,
    NUM_DISTANCES,
    NUM_LEVELS,
    NUM_MANTISSAS,
    BlockHistogram,
    BlockLevel,
)
from ampwatch.numerics.exponents import (
    MAX_EXPONENT,
    MIN_EXPONENT,
    PLAIN_EXPONENTS,
    ExponentHistogram,
)
from ampwatch.numerics.written import Labelled
from ampwatch.wire.blackbox.box import Box
from ampwatch.wire.records import (
    DevicePhasesRecord,
    Finding,
    OperandRecord,
    OptimizerRecord,
    StepRecord,
)
from ampwatch.wire.records.fields import MAX_COUNT
from ampwatch.wire.ring.text import harmless, parse_json, refuse

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FORMAT = "ampwatch-report"
VERSION = 1

MAX_BYTES = 64 << 20
"""A document larger than this is refused. That of a rank has 0.1 to 1 MB."""

_TABLES = ("steps", "optimizers", "device_phases")
"""Members whose rows stand under columns."""

_AS_IT_IS = frozenset({bool, int, str, type(None)})
"""What is the same in Python and in JSON."""

_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def to_json(boxes: Iterable[Box], **more: object) -> str:
    """Return a document of these boxes.

    Args:
        boxes: The ranks.
        more: Further members of the document, which a reader passes over.
    """
    ranks = [_box(box) for box in boxes]
    document = {"format": FORMAT, "version": VERSION, **more, "ranks": ranks}
    words = json.dumps(document, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    # File names that cannot be decoded have lone surrogates, for which there is no UTF-8.
    return words.encode(errors="replace").decode()


def from_json(text: str | bytes, source: str) -> list[Box]:
    """Return the boxes of a document.

    Args:
        text: The document.
        source: What to call it in an error.

    Raises:
        ReportError: If it is no document of a version that this release reads.
    """
    try:
        document = parse_json(text)
    except ValueError as error:
        if text.lstrip()[:1] in ("<", b"<"):
            msg = f"expected a report of ampwatch in {source}, got an HTML page made from one; pass the JSON file"
            raise ReportError(msg) from None
        msg = f"expected a report of ampwatch in {source}, got something that is no JSON ({error!s:.80}); it may be cut short"
        raise ReportError(msg) from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        msg = f'expected a report of ampwatch in {source}, got JSON without "format": "{FORMAT}"'
        raise ReportError(msg)
    version = document.get("version")
    # Not ``isinstance``: ``true`` is an int of Python, and would pass as version 1.
    if type(version) is not int or not 1 <= version <= VERSION:
        msg = f"expected a report of version 1 to {VERSION} in {source}, got version {version!r:.20}; read it with the release of ampwatch that wrote it, or a newer one"
        raise ReportError(msg)
    try:
        return [_read_box(rank) for rank in convert(document.get("ranks"), list[Any])]
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        msg = f"expected a whole report in {source}, got one that is damaged: {_why(error)}"
        raise ReportError(msg) from None


def _why(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else f"{error!s:.200}"


# Writing


def _box(box: Box) -> dict[str, Any]:
    sampling = None if box.sampling is None else _fields(box.sampling)
    members = {
        "identity": _fields(box.identity),
        "state": box.state.value,
        "reason": box.reason,
        "traceback": box.traceback,
        "written_ns": box.written_ns,
        "written_by": box.written_by,
        "facts": dict(box.facts),
        "settings": {name: _plain(value) for name, value in box.settings.items()},
        "findings": [_of_finding(finding) for finding in box.findings],
        "steps": _table(StepRecord, box.steps),
        "optimizers": _table(OptimizerRecord, box.optimizers),
        "ranges": [_fields(record) for record in box.ranges],
        "sampling": sampling,
        "notes": list(box.notes),
    }
    if box.ended_ns:
        members["ended_ns"] = box.ended_ns
    # Left out where there are none, as of most runs.
    if box.failures:
        members["failures"] = [_fields(record) for record in box.failures]
    if box.device_phases:
        members["device_phases"] = _table(DevicePhasesRecord, box.device_phases)
    if box.layers:
        members["layers"] = [_fields(record) for record in box.layers]
    return members


def _of_finding(finding: Finding) -> dict[str, Any]:
    # Scripts read all of the advice in one member.
    tried = [one._asdict() for one in finding.tried]
    return {**_fields(finding), "advice": finding.advice, "tried": tried}


def _fields(record: Any) -> dict[str, Any]:
    return {name: _plain(getattr(record, name)) for name in type(record).__match_args__}


def _table(kind: type[Any], records: Sequence[Any]) -> dict[str, Any]:
    columns = kind.__match_args__
    return {"columns": columns, "rows": [*map(_row, map(attrgetter(*columns), records))]}


def _row(values: Iterable[Any]) -> list[Any]:
    # In line: there are thousands of cells, and most of them are as JSON has them.
    return [
        v if type(v) in _AS_IT_IS or (type(v) is float and math.isfinite(v)) else _plain(v)
        for v in values
    ]


def _plain(value: Any) -> Any:
    """Return ``value`` as JSON has it."""
    # JSON has no NaN and no infinity; what Python writes for them no other parser reads.
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, (tuple, list)):
        return _row(value)
    if isinstance(value, Labelled):
        return value.label
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, (ExponentHistogram, BlockHistogram, BlockLevel, OperandRecord)):
        return _fields(value)
    return value


# Reading


def _read_box(value: object) -> Box:
    given = _object(value)
    tables = {name: _rows(given[name]) for name in _TABLES if name in given}
    box = convert(_restored(Box, {**given, **tables}), Box)
    if not (box.identity.run + box.identity.host + box.identity.version).isprintable():
        refuse("printable characters", box.identity)
    for record in box.ranges:
        _check_histogram(record.histogram, MIN_EXPONENT, MAX_EXPONENT)
        if record.before is not None:
            _check_histogram(record.before, *PLAIN_EXPONENTS)
    operands = [operand for layer in box.layers for operand in layer.operands]
    for operand in operands:
        _check_histogram(operand.histogram, MIN_EXPONENT, MAX_EXPONENT)
    for measured in (*(r.blocks for r in box.ranges), *(o.blocks for o in operands)):
        for blocks in measured:
            _check_blocks(blocks)
    return box


def _rows(value: object) -> list[dict[str, Any]]:
    """Return the rows of a table by the names of its columns: a later release may add columns anywhere."""
    table = _object(value)
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]


def _restored(kind: Any, value: Any) -> Any:
    """Return a value as ``convert`` takes one of that type: words of JSON as numbers, text harmless."""
    inner: Any = get_args(kind)
    if isinstance(value, str):
        if value in _WORDS and (kind is float or float in inner):
            return _WORDS[value]
        is_labelled = isinstance(kind, type) and issubclass(kind, Labelled)
        return _labels(kind)[value] if is_labelled else harmless(value)
    if isinstance(value, list):
        if hasattr(kind, "_fields"):
            refuse("a JSON object", value)
        # A tuple of any length, and a list, have members of one type.
        is_fixed = len(inner) == len(value) and get_origin(kind) is tuple and inner[-1] is not ...
        kinds = inner if is_fixed else repeat(inner[0] if inner else Any)
        return [_restored(one, item) for one, item in zip(kinds, value, strict=False)]
    if isinstance(value, dict):
        if get_origin(kind) is dict:
            return {harmless(name): _restored(inner[1], item) for name, item in value.items()}
        # Of ``None`` and something else: there is something.
        kind = inner[0] if inner else kind
        members = {n: _restored(k, value[n]) for n, k in _fields_of(kind).items() if n in value}
        return list(members.values()) if hasattr(kind, "_fields") else members
    return value


@cache
def _fields_of(kind: Any) -> dict[str, Any]:
    """Return the types of the fields of a record, without their bounds; none for what is no record."""
    return get_type_hints(kind) if isinstance(kind, type) else {}


@cache
def _labels(kind: type[Labelled]) -> dict[str, Labelled]:
    return {member.label: member for member in kind}


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        refuse("a JSON object", value)
    return value


def _check_histogram(h: ExponentHistogram, lowest: int, highest: int) -> None:
    if h.counts and not lowest <= h.first <= highest + 1 - len(h.counts):
        refuse(f"bins from {lowest} to {highest}", h.first)
    _check_counts(*h.counts, h.zeros, h.nans, h.positive_infs, h.negative_infs, h.numel)


def _check_blocks(blocks: BlockHistogram) -> None:
    lowest, highest = PLAIN_EXPONENTS
    if blocks.size not in BLOCK_SIZES or not lowest <= blocks.top <= highest:
        refuse("blocks of 16 or 32 elements, and an exponent of a float", blocks)
    form = {(len(level.distances), len(level.maxima)) for level in blocks.levels}
    if len(blocks.levels) != NUM_LEVELS or form != {(NUM_DISTANCES, NUM_MANTISSAS)}:
        refuse(f"{NUM_LEVELS} levels", blocks.levels)
    _check_counts(blocks.zero_blocks)
    for level in blocks.levels:
        _check_counts(*level.distances, *level.maxima)


def _check_counts(*counts: int) -> None:
    if min(counts) < 0 or max(counts) > MAX_COUNT:
        refuse("counts that fit into 64 bits", counts)
