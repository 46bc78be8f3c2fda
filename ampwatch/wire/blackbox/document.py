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
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

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
from ampwatch.wire.blackbox.box import Box
from ampwatch.wire.records import (
    DevicePhasesRecord,
    Finding,
    LayerRecord,
    Operand,
    OperandRecord,
    OptimizerRecord,
    RangeRecord,
    RunIdentity,
    RunState,
    SamplingRecord,
    SensorFailureRecord,
    Severity,
    SkipClass,
    StepPhase,
    StepRecord,
    Topic,
    Tried,
)
from ampwatch.wire.records.fields import MAX_COUNT
from ampwatch.wire.ring.text import harmless, parse_json, refuse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ampwatch.wire.records import Phases

FORMAT = "ampwatch-report"
VERSION = 1

MAX_BYTES = 64 << 20
"""A document larger than this is refused. That of a rank has 0.1 to 1 MB."""

_NO_ROWS: dict[str, Any] = {"columns": [], "rows": []}
"""A table that is left out."""

_AS_IT_IS = frozenset({bool, int, str, type(None)})
"""What is the same in Python and in JSON."""

_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

R = TypeVar("R")


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
        return [_read_box(rank) for rank in _list(document.get("ranks"), 4096)]
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
    # Left out where there are none: reports of before had no such member, and those of a run
    # without failures stay as they were, byte for byte.
    if box.failures:
        members["failures"] = [_fields(record) for record in box.failures]
    if box.device_phases:
        members["device_phases"] = _table(DevicePhasesRecord, box.device_phases)
    if box.layers:
        members["layers"] = [_fields(record) for record in box.layers]
    return members


def _of_finding(finding: Finding) -> dict[str, Any]:
    # Older releases, and scripts, read all of the advice in one member.
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
    if isinstance(value, (SkipClass, Topic, Operand)):
        return value.label
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, (ExponentHistogram, BlockHistogram, BlockLevel, OperandRecord)):
        return _fields(value)
    return value


# Reading


def _read_box(value: object) -> Box:
    given = _object(value)
    sampling = given.get("sampling")
    return Box(
        identity=_read(RunIdentity, given["identity"]),
        state=RunState(given["state"]),
        reason=_text(given["reason"]),
        traceback=_text(given["traceback"]),
        written_ns=_count(given["written_ns"]),
        written_by=_text(given["written_by"]),
        facts={_text(k): _text(v) for k, v in _object(given["facts"]).items()},
        settings={_text(k): _setting(v) for k, v in _object(given["settings"]).items()},
        findings=[_finding(f) for f in _list(given["findings"], 4096)],
        steps=_rows(StepRecord, given["steps"]),
        optimizers=_rows(OptimizerRecord, given["optimizers"]),
        ranges=[_read(RangeRecord, r) for r in _list(given["ranges"], 4096)],
        sampling=None if sampling is None else _read(SamplingRecord, sampling),
        notes=[_text(note) for note in _list(given["notes"], 256)],
        ended_ns=_count(given.get("ended_ns", 0)),
        failures=[_read(SensorFailureRecord, f) for f in _list(given.get("failures", []), 256)],
        device_phases=_rows(DevicePhasesRecord, given.get("device_phases", _NO_ROWS)),
        layers=[_read(LayerRecord, r) for r in _list(given.get("layers", []), 4096)],
    )


def _rows(kind: type[R], value: object) -> list[R]:
    table = _object(value)
    columns = [_text(column) for column in _list(table["columns"], 256)]
    rows = _list(table["rows"], 1 << 20)
    # By the name of the column, not by its place: a later release may add columns anywhere.
    return [_read(kind, dict(zip(columns, _list(row, 256), strict=True))) for row in rows]


def _read(kind: type[R], value: object) -> R:
    # Fields that this release does not know are passed over, so that a newer report can be read.
    given = {**_ADDED.get(kind, {}), **_object(value)}
    return kind(**{name: _CHECKS[kept](given[name]) for name, kept in kind.__annotations__.items()})


def _finding(value: object) -> Finding:
    given = _object(value)
    # Older releases have put what was tried into the advice, as words.
    return _read(Finding, {"kind_advice": given["advice"], **given})


def _tried(value: object) -> tuple[Tried, ...]:
    given = [harmless(_object(one)) for one in _list(value, 16)]
    return tuple(convert([one[name] for name in Tried._fields], Tried) for one in given)


def _object(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        refuse("a JSON object", value)
    return value


def _list(value: object, most: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        refuse(f"a list of at most {most}", value)
    return value


def _text(value: object) -> str:
    return str(harmless(value)) if isinstance(value, str) else refuse("text", value)


def _label(value: object) -> str:
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= 255:
        refuse("1 to 255 printable characters", value)
    return value


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value <= MAX_COUNT:
        refuse("a count that fits into 64 bits", value)
    return value


def _integer(value: object) -> int:
    """Check an integer that may be -1, for "not known"."""
    return value if value == -1 and type(value) is int else _count(value)


def _number(value: object) -> float:
    if isinstance(value, str):
        return _WORDS[value] if value in _WORDS else refuse("a number", value)
    # bool first: it is an int of Python, and ``true`` is no measurement.
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        refuse("a number", value)
    return float(value)


def _flag(value: object) -> bool:
    return value if isinstance(value, bool) else refuse("true or false", value)


def _setting(value: object) -> str | int | float:
    if isinstance(value, str) and value not in _WORDS:
        return _text(value)
    return value if type(value) is int else _number(value)


def _named(names: Mapping[str, Any]) -> Callable[[object], Any]:
    def checked(value: object) -> Any:
        return names[value] if value in names else refuse(", ".join(names), value)  # type: ignore[index]

    return checked


def _counts(length: int) -> Callable[[object], tuple[int, ...]]:
    def checked(value: object) -> tuple[int, ...]:
        items = _list(value, length)
        if len(items) != length:
            refuse(f"{length} counts", value)
        return tuple(_count(item) for item in items)

    return checked


def _phases(value: object) -> Phases:
    items = [_number(item) for item in _list(value, len(StepPhase))]
    if len(items) != len(StepPhase):
        refuse(f"{len(StepPhase)} times", value)
    return tuple(items)  # type: ignore[return-value] # as many as there are phases


def _evidence(value: object) -> dict[str, float]:
    return {_text(name): _number(number) for name, number in _object(value).items()}


def _histogram(
    value: object, lowest: int = MIN_EXPONENT, highest: int = MAX_EXPONENT
) -> ExponentHistogram:
    given = _object(value)
    first = given["first"]
    counts = _list(given["counts"], highest - lowest + 1)
    if type(first) is not int or not (counts == [] or lowest <= first <= highest + 1 - len(counts)):
        refuse(f"bins from {lowest} to {highest}", first)
    return ExponentHistogram(
        first=first if counts else 0,
        counts=tuple(_count(n) for n in counts),
        amax=_number(given["amax"]),
        amin=_number(given["amin"]),
        **{
            k: _count(given[k])
            for k in ("zeros", "nans", "positive_infs", "negative_infs", "numel")
        },
    )


def _operands(value: object) -> list[OperandRecord]:
    return [_read(OperandRecord, one) for one in _list(value, 256)]


def _plain_histogram(value: object) -> ExponentHistogram | None:
    return None if value is None else _histogram(value, *PLAIN_EXPONENTS)


def _blocks(value: object) -> tuple[BlockHistogram, ...]:
    return tuple(_of_size(one) for one in _list(value, len(BLOCK_SIZES)))


def _of_size(value: object) -> BlockHistogram:
    given = _object(value)
    size, top = given["size"], given["top"]
    if size not in BLOCK_SIZES:
        refuse("blocks of 16 or 32 elements", size)
    lowest, highest = PLAIN_EXPONENTS
    if type(top) is not int or not lowest <= top <= highest:
        refuse(f"an exponent from {lowest} to {highest}", top)
    levels = _list(given["levels"], NUM_LEVELS)
    if len(levels) != NUM_LEVELS:
        refuse(f"{NUM_LEVELS} levels", levels)
    return BlockHistogram(size, top, tuple(map(_level, levels)), _count(given["zero_blocks"]))


def _level(value: object) -> BlockLevel:
    given = _object(value)
    return BlockLevel(
        _counts(NUM_DISTANCES)(given["distances"]), _counts(NUM_MANTISSAS)(given["maxima"])
    )


_ADDED: dict[type[Any], dict[str, Any]] = {
    Finding: {"tried": []},
    StepRecord: {
        "phases": [0.0] * len(StepPhase),
        "total_samples": -1,
        "total_tokens": -1,
        "cpu_ns": -1,
        "run_delay_ns": -1,
    },
    RangeRecord: {
        "norm": math.nan,
        "flushed": -1,
        "blocks": [],
        "before_step": -1,
        "before": None,
    },
}
"""Members that files of older releases lack, and what is read for them."""

_CHECKS: dict[str, Callable[[object], Any]] = {
    "Count": _count,
    "CountOrUnknown": _integer,
    "OptimizerIndex": _count,
    "float": _number,
    "bool": _flag,
    "str": _text,
    "Label": _label,
    "dict[str, float]": _evidence,
    "Severity": Severity,
    "tuple[Tried, ...]": _tried,
    "SkipClass": _named({c.label: c for c in SkipClass}),
    "Operand": _named({o.label: o for o in Operand}),
    "list[OperandRecord]": _operands,
    "Topic": _named({t.label: t for t in Topic}),
    "Phases": _phases,
    "tuple[Count, Count, Count, Count]": _counts(4),
    "tuple[Count, Count, Count, Count, Count, Count]": _counts(6),
    "ExponentHistogram": _histogram,
    "tuple[BlockHistogram, ...]": _blocks,
    "ExponentHistogram | None": _plain_histogram,
}
"""Check of a field's value, by the type that the field is declared with."""
