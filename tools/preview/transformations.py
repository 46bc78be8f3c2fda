"""The transformations that the dashboards use, as Grafana does them; any other one is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tools.preview.frames import Field, Frame

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
        transform = _TRANSFORMS.get(step["id"])
        if transform is None:
            msg = f"expected one of the transformations {', '.join(_TRANSFORMS)}, got {step['id']!r}; add it to tools/preview/transformations.py"
            raise ValueError(msg)
        frames = transform(frames, step.get("options", {}))
    return frames


def _merge(frames: list[Frame], _: Options) -> list[Frame]:
    """Join frames into one table: rows that agree in every field that all frames have become one."""
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
    for row in (row for frame in frames for row in frame.rows()):
        alike = by_key.setdefault(tuple(row[name] for name in shared), [])
        for other in alike:
            if all(other.get(n) is None or other[n] == v for n, v in row.items()):
                other.update(row)
                break
        else:
            alike.append(dict(row))
            merged.append(alike[-1])
    fields = [
        Field(name, column.kind, [row.get(name) for row in merged])
        for name, column in kinds.items()
    ]
    return [Frame(frames[0].ref_id, fields)]


def _organize(frames: list[Frame], options: Options) -> list[Frame]:
    """Fields left out, put in order, renamed."""
    excluded = {name for name, out in options.get("excludeByName", {}).items() if out}
    order = options.get("indexByName", {})
    names = options.get("renameByName", {})
    result = []
    for frame in frames:
        named = [
            (name, column)
            for name, column in zip(frame.names, frame.fields, strict=True)
            if name not in excluded
        ]
        named.sort(key=lambda pair: order.get(pair[0], len(order)))
        fields = [Field(names.get(n) or n, f.kind, f.values, f.labels) for n, f in named]
        result.append(Frame(frame.ref_id, fields))
    return result


_TRANSFORMS: dict[str, Transform] = {"merge": _merge, "organize": _organize}
