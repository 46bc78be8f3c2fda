"""The transformations that the dashboards use, as Grafana does them; any other one is refused."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from dashboards.preview.frames import NUMBER, STRING, TIME, Field, Frame
from dashboards.preview.reducing import NAMES, reduced

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Options = Mapping[str, Any]
    Transform = Callable[[list[Frame], Options], list[Frame]]


def transformed(frames: list[Frame], steps: Sequence[Mapping[str, Any]]) -> list[Frame]:
    """Return what the transformations of a panel make of its frames.

    Args:
        frames: Of its queries.
        steps: The ``transformations`` of the panel.

    Raises:
        ValueError: If no dashboard here has used one of them so far.
    """
    for step in steps:
        if step.get("disabled"):
            continue
        transform = _TRANSFORMS.get(step["id"])
        if transform is None:
            msg = f"expected one of the transformations {', '.join(_TRANSFORMS)}, got {step['id']!r}; add it to dashboards/preview/transformations.py"
            raise ValueError(msg)
        only = step.get("filter", {}).get("options")
        chosen = [f for f in frames if only is None or re.fullmatch(str(only).strip("/"), f.ref_id)]
        others = [f for f in frames if not any(f is c for c in chosen)]
        frames = transform(chosen, step.get("options", {})) + others
    return frames


def _merge(frames: list[Frame], _: Options) -> list[Frame]:
    """One table: rows that agree in every field that all frames have become one."""
    frames = [frame for frame in frames if frame.fields]
    if len(frames) < 2:
        return frames
    kinds: dict[str, Field] = {}
    for frame in frames:
        for name, column in zip(frame.names, frame.fields, strict=True):
            kinds.setdefault(name, column)
    shared = [name for name in kinds if all(name in frame.names for frame in frames)]
    merged: list[dict[str, Any]] = []
    by_key: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for frame in frames:
        for row in frame.rows():
            candidates = by_key.setdefault(tuple(row[name] for name in shared), [])
            for other in candidates:
                if all(other.get(n) is None or other[n] == v for n, v in row.items()):
                    other.update(row)
                    break
            else:
                candidates.append(dict(row))
                merged.append(candidates[-1])
    fields = [
        Field(name, column.kind, [row.get(name) for row in merged])
        for name, column in kinds.items()
    ]
    return [Frame(frames[0].ref_id, fields)]


def _join(frames: list[Frame], options: Options) -> list[Frame]:
    """One table with a row for each value of the field that they are joined by."""
    by = options.get("byField") or "Time"
    frames = [frame for frame in frames if by in frame.names]
    if not frames:
        return []
    tables = [{row[by]: row for row in frame.rows()} for frame in frames]
    keys = list(dict.fromkeys(key for table in tables for key in table))
    if options.get("mode", "outer") == "inner":
        keys = [key for key in keys if all(key in table for table in tables)]
    kinds = {name: f for frame in frames for name, f in zip(frame.names, frame.fields, strict=True)}
    if kinds[by].kind == TIME:
        keys.sort()
    fields = [Field(by, kinds[by].kind, keys)]
    for frame, table in zip(frames, tables, strict=True):
        for name, column in zip(frame.names, frame.fields, strict=True):
            if name != by:
                values = [table.get(key, {}).get(name) for key in keys]
                fields.append(Field(name, column.kind, values, column.labels))
    return [Frame(frames[0].ref_id, fields)]


def _organize(frames: list[Frame], options: Options) -> list[Frame]:
    """Fields left out, put in order, renamed."""
    excluded = {name for name, out in options.get("excludeByName", {}).items() if out}
    included = {name for name, wanted in options.get("includeByName", {}).items() if wanted}
    order = options.get("indexByName", {})
    names = options.get("renameByName", {})
    result = []
    for frame in frames:
        named = [
            (name, column)
            for name, column in zip(frame.names, frame.fields, strict=True)
            if name not in excluded and (not included or name in included)
        ]
        named.sort(key=lambda pair: order.get(pair[0], len(order) + len(named)))
        fields = [Field(names.get(n) or n, f.kind, f.values, f.labels) for n, f in named]
        result.append(Frame(frame.ref_id, fields))
    return result


def _sort(frames: list[Frame], options: Options) -> list[Frame]:
    """Rows by one field, those without a value last."""
    result = []
    for frame in frames:
        here = frame
        for by in reversed(options.get("sort", [])):
            if by.get("field") in here.names:
                values = here.fields[here.names.index(by["field"])].values
                here = here.pick(sorted_rows(values, descending=bool(by.get("desc"))))
        result.append(here)
    return result


def sorted_rows(values: Sequence[Any], *, descending: bool) -> list[int]:
    """Return the rows in the order of their values, those without one last."""
    there = [i for i, v in enumerate(values) if v is not None and v == v]  # noqa: PLR0124 - NaN
    there.sort(key=lambda i: values[i], reverse=descending)
    return there + sorted(set(range(len(values))) - set(there))


def _filter_names(frames: list[Frame], options: Options) -> list[Frame]:
    """Only some of the fields."""
    include, exclude = options.get("include"), options.get("exclude")

    def matches(name: str, rule: Mapping[str, Any] | None, *, without: bool) -> bool:
        if not rule:
            return without
        pattern = rule.get("pattern")
        return name in rule.get("names", ()) or bool(
            pattern and re.search(pattern.strip("/"), name)
        )

    return [
        Frame(
            frame.ref_id,
            [
                f
                for name, f in zip(frame.names, frame.fields, strict=True)
                if matches(name, include, without=True)
                and not matches(name, exclude, without=False)
            ],
        )
        for frame in frames
    ]


def _labels_to_fields(frames: list[Frame], options: Options) -> list[Frame]:
    """A column per label, and a frame per series still."""
    wanted = options.get("keepLabels")
    result = []
    for frame in frames:
        labels = {k: v for f in frame.fields for k, v in f.labels.items()}
        columns = [
            Field(k, STRING, [v] * len(frame))
            for k, v in labels.items()
            if k != "__name__" and (not wanted or k in wanted)
        ]
        times = [f for f in frame.fields if f.kind == TIME]
        others = [Field(f.name, f.kind, f.values) for f in frame.fields if f.kind != TIME]
        result.append(Frame(frame.ref_id, [*times, *columns, *others]))
    return _merge(result, {})


def _reduce(frames: list[Frame], options: Options) -> list[Frame]:
    """A row per series, with a column per calculation."""
    calculations = options.get("reducers", ["lastNotNull"])
    if options.get("mode", "seriesToRows") != "seriesToRows":
        msg = f"expected the mode seriesToRows of reduce, got {options['mode']!r}; add it to dashboards/preview/transformations.py"
        raise ValueError(msg)
    columns = [(f, frame) for frame in frames for f in frame.fields if f.kind == NUMBER]
    labels: dict[str, None] = {}
    if options.get("labelsToFields"):
        for column, _ in columns:
            labels.update(dict.fromkeys(k for k in column.labels if k != "__name__"))
    fields = [
        Field("Field", STRING, [f.name for f, _ in columns]),
        *(Field(k, STRING, [f.labels.get(k) for f, _ in columns]) for k in labels),
        *(Field(NAMES[c], NUMBER, [reduced(f.values, c) for f, _ in columns]) for c in calculations),
    ]
    return [Frame("", fields)] if columns else []


def _limit(frames: list[Frame], options: Options) -> list[Frame]:
    """The first rows only."""
    most = int(options.get("limitField", 10))
    return [frame.pick(range(min(most, len(frame)))) for frame in frames]


def _rename(frames: list[Frame], options: Options) -> list[Frame]:
    """Fields renamed by a regular expression."""
    pattern = re.compile(options.get("regex", "").strip("/"))
    replacement = re.sub(r"\$(\d)", r"\\\1", options.get("renamePattern", ""))
    return [
        Frame(
            frame.ref_id,
            [
                Field(pattern.sub(replacement, f.name, count=1), f.kind, f.values, f.labels)
                for f in frame.fields
            ],
        )
        for frame in frames
    ]


_COMPARISONS: dict[str, Callable[[Any, Options], bool]] = {
    "equal": lambda v, o: v is not None and (v == o["value"] or str(v) == str(o["value"])),
    "notEqual": lambda v, o: v is None or (v != o["value"] and str(v) != str(o["value"])),
    "greater": lambda v, o: v is not None and v > float(o["value"]),
    "greaterOrEqual": lambda v, o: v is not None and v >= float(o["value"]),
    "lower": lambda v, o: v is not None and v < float(o["value"]),
    "lowerOrEqual": lambda v, o: v is not None and v <= float(o["value"]),
    "isNull": lambda v, _: v is None,
    "isNotNull": lambda v, _: v is not None and not (isinstance(v, float) and math.isnan(v)),
}


def _filter_values(frames: list[Frame], options: Options) -> list[Frame]:
    """Only the rows, or all but the rows, in which fields have certain values."""
    result = []
    for frame in frames:
        rows = frame.rows()
        tests = [
            (f["fieldName"], _COMPARISONS[f["config"]["id"]], f["config"].get("options", {}))
            for f in options.get("filters", [])
            if f["fieldName"] in frame.names
        ]
        together = all if options.get("match", "any") == "all" else any
        hits = [bool(tests) and together(t(row[n], o) for n, t, o in tests) for row in rows]
        wanted = options.get("type", "include") == "include"
        result.append(frame.pick(i for i, hit in enumerate(hits) if hit == wanted or not tests))
    return result


_TRANSFORMS: dict[str, Transform] = {
    "merge": _merge,
    "joinByField": _join,
    "seriesToColumns": _join,
    "organize": _organize,
    "sortBy": _sort,
    "filterFieldsByName": _filter_names,
    "filterByValue": _filter_values,
    "labelsToFields": _labels_to_fields,
    "reduce": _reduce,
    "limit": _limit,
    "renameByRegex": _rename,
}
