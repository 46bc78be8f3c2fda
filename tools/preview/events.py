"""Annotations of a dashboard: what happened when."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tools.preview.frames import legend

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tools.preview.prometheus import Series
    from tools.preview.questions import Question


class Annotation(NamedTuple):
    """Event that is drawn over the panels.

    Attributes:
        start: Unix time. Unit: s.
        end: Unix time, that of the start if it took no time. Unit: s.
        text: What is said of it.
        colour: Grafana's name of its colour.
    """

    start: float
    end: float
    text: str
    colour: str


def events(question: Question, answer: Sequence[Series]) -> list[Annotation]:
    """Return the events of an annotation: stretches of samples above zero without a gap.

    Args:
        question: What the annotation asks.
        answer: What came back.
    """
    model = question.model
    found = []
    for series in answer:
        text = legend(model.get("textFormat", ""), series.labels, answer)
        start = end = None
        for at, value in series.samples:
            if not value > 0:
                continue
            if end is not None and at - end <= question.interval.step:
                end = at
                continue
            if start is not None and end is not None:
                found.append(Annotation(start, end, text, model.get("iconColor", "blue")))
            start = end = at
        if start is not None and end is not None:
            found.append(Annotation(start, end, text, model.get("iconColor", "blue")))
    return found
