"""The tables that Grafana makes of answers: frames of named columns."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tools.preview.prometheus import Series
    from tools.preview.questions import Question

TIME = "time"
NUMBER = "number"
STRING = "string"

_PLACEHOLDER = re.compile(r"\{\{\s*(\w+)\s*\}\}")


@dataclass(slots=True)
class Field:
    """Column of a table.

    Attributes:
        name: As transformations and overrides refer to it.
        kind: ``time`` (in ms since 1970), ``number`` or ``string``.
        values: One per row; ``None`` where there is nothing.
        labels: Of the series it came from.
    """

    name: str
    kind: str
    values: list[Any]
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Frame:
    """Table of an answer.

    Attributes:
        ref_id: Letter of the query it came from.
        fields: Its columns, of one length.
    """

    ref_id: str
    fields: list[Field]

    def __len__(self) -> int:
        return len(self.fields[0].values) if self.fields else 0

    @property
    def names(self) -> list[str]:
        """The names of the fields; those of the same name are counted, as Grafana does."""
        plain = [f.name for f in self.fields]
        seen: dict[str, int] = {}
        names = []
        for name in plain:
            seen[name] = seen.get(name, 0) + 1
            names.append(f"{name} {seen[name]}" if plain.count(name) > 1 else name)
        return names

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows by the names of the fields."""
        columns = [f.values for f in self.fields]
        return [dict(zip(self.names, row, strict=True)) for row in zip(*columns, strict=True)]

    def pick(self, order: Iterable[int]) -> Frame:
        """Return the frame with these of its rows."""
        order = list(order)
        return Frame(
            self.ref_id,
            [Field(f.name, f.kind, [f.values[i] for i in order], f.labels) for f in self.fields],
        )


def frames(question: Question, answer: Sequence[Series], *, alone: bool = True) -> list[Frame]:
    """Return the frames of an answer, in the format that the target asks for.

    Args:
        question: What was asked.
        answer: What came back.
        alone: Whether no other query of the panel is a table; else the column is ``Value #A``.
    """
    form = question.model.get("format", "time_series")
    if form == "table":
        return [_table(question, answer, alone=alone)] if answer else []
    if form == "heatmap":
        return [_heatmap(question, answer)] if answer else []
    return [_series(question, series, answer) for series in answer]


def _table(question: Question, answer: Sequence[Series], *, alone: bool) -> Frame:
    names: dict[str, None] = {}
    for series in answer:
        names.update(dict.fromkeys(sorted(series.labels)))
    rows = [(series.labels, at, value) for series in answer for at, value in series.samples]
    return Frame(
        question.ref_id,
        [
            Field("Time", TIME, [at * 1e3 for _, at, _ in rows]),
            *(Field(n, STRING, [labels.get(n) for labels, _, _ in rows]) for n in names),
            Field(
                "Value" if alone else f"Value #{question.ref_id}", NUMBER, [v for _, _, v in rows]
            ),
        ],
    )


def _series(question: Question, series: Series, beside: Sequence[Series]) -> Frame:
    times, values = _with_gaps(series.samples, question.interval.step)
    name = legend(question.model.get("legendFormat", ""), series.labels, beside)
    return Frame(
        question.ref_id,
        [Field("Time", TIME, times), Field(name, NUMBER, values, series.labels)],
    )


def _with_gaps(
    samples: Sequence[tuple[float, float]], step: float
) -> tuple[list[float], list[float | None]]:
    """Return times in ms and values, with a ``None`` where samples are missing."""
    times: list[float] = []
    values: list[float | None] = []
    for at, value in samples:
        if times and at * 1e3 - times[-1] > 1.5e3 * step:
            times.append(times[-1] + 1e3 * step)
            values.append(None)
        times.append(at * 1e3)
        values.append(value)
    return times, values


def legend(pattern: str, labels: dict[str, str], beside: Sequence[Series]) -> str:
    """Return the name of a series.

    Args:
        pattern: The ``legendFormat``; empty or ``__auto`` for labels that tell series apart.
        labels: Of the series.
        beside: All series of the answer.
    """
    if pattern not in ("", "__auto"):
        return _PLACEHOLDER.sub(lambda match: labels.get(match[1], ""), pattern)
    differing = {
        k: v
        for k, v in labels.items()
        if len(beside) > 1 and any(s.labels.get(k) != v for s in beside)
    }
    shown = differing or {k: v for k, v in labels.items() if k != "__name__"}
    pairs = ", ".join(f'{k}="{v}"' for k, v in shown.items() if k != "__name__")
    return f"{labels.get('__name__', '')}{{{pairs}}}" if pairs else labels.get("__name__", "Value")


def _heatmap(question: Question, answer: Sequence[Series]) -> Frame:
    """Return buckets that are no longer cumulative, by their upper bounds."""
    ordered = sorted(answer, key=lambda s: float(s.labels.get("le", "nan").replace("+Inf", "inf")))
    times = sorted({at for series in answer for at, _ in series.samples})
    below = [0.0] * len(times)
    fields = [Field("Time", TIME, [at * 1e3 for at in times])]
    for series in ordered:
        found = dict(series.samples)
        counts: list[float | None] = []
        for i, at in enumerate(times):
            here = found.get(at)
            if here is None or math.isnan(here):
                counts.append(None)
                continue
            counts.append(max(0.0, here - below[i]))
            below[i] = max(below[i], here)
        name = legend(question.model.get("legendFormat", "{{le}}"), series.labels, answer)
        fields.append(Field(name, NUMBER, counts, series.labels))
    return Frame(question.ref_id, fields)
