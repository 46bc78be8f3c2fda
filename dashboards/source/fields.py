"""Appearance of values: thresholds, words in place of numbers, overrides for single fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grafana_foundation_sdk.models import dashboard as model

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

GOOD, NOTE, WARN, BAD, NEUTRAL = "green", "blue", "orange", "red", "text"
"""The colours of the thresholds; each stands beside a word or a number, never alone."""


@dataclass(frozen=True)
class Step:
    """From ``value`` on a field has ``color``."""

    value: float
    color: str


def thresholds(first: str, *steps: Step) -> model.ThresholdsConfig:
    """Return thresholds that begin with ``first``; Grafana wants no value for that one.

    It is also the colour of no value at all: what is bad from 0 on begins with ``NEUTRAL``.
    """
    return model.ThresholdsConfig(
        mode=model.ThresholdsMode.ABSOLUTE,
        steps=[
            model.Threshold(value=None, color=first),
            *(model.Threshold(value=step.value, color=step.color) for step in steps),
        ],
    )


PLAIN = thresholds(NEUTRAL)
"""Thresholds of values of which none is good or bad by itself."""


def words(meaning: Mapping[float | str, tuple[str, str]]) -> model.ValueMapping:
    """Return a mapping of values to a text and a colour, in the order given."""
    options = {
        (f"{value:g}" if isinstance(value, int | float) else value): model.ValueMappingResult(
            text=text, color=color, index=index
        )
        for index, (value, (text, color)) in enumerate(meaning.items())
    }
    return model.ValueMap(options=options)


def spans(
    *named: tuple[float, float | None, str], color: str = NEUTRAL
) -> tuple[model.ValueMapping, ...]:
    """Return mappings of values from one number to another to a text.

    Args:
        named: Smallest value, largest value (none: whatever is larger), text.
        color: Their colour.
    """
    return tuple(
        model.RangeMap(
            options=model.DashboardRangeMapOptions(
                from_val=low,
                to=high,
                result=model.ValueMappingResult(text=text, color=color, index=index),
            )
        )
        for index, (low, high, text) in enumerate(named)
    )


@dataclass(frozen=True)
class Override:
    """Settings that differ for the fields of a panel whose name matches.

    Args:
        field: Name of the field, or a regular expression between slashes.
        properties: Grafana's property ids with their values, as ``{"unit": "s"}``.
    """

    field: str
    properties: Mapping[str, Any]

    def build(self) -> model.DashboardFieldConfigSourceOverrides:
        """Return it as the SDK has it."""
        by = "byRegexp" if self.field.startswith("/") else "byName"
        return model.DashboardFieldConfigSourceOverrides(
            matcher=model.MatcherConfig(id_val=by, options=self.field),
            properties=[
                model.DynamicConfigValue(id_val=name, value=value)
                for name, value in self.properties.items()
            ],
        )


def color(field: str, fixed: str) -> Override:
    """Return an override that gives a field a colour of its own."""
    return Override(field, {"color": {"mode": "fixed", "fixedColor": fixed}})


def limit_line(field: str, fixed: str) -> Override:
    """Return an override that draws a series as a limit: dashed, without a fill."""
    return Override(
        field,
        {
            "color": {"mode": "fixed", "fixedColor": fixed},
            "custom.lineStyle": {"fill": "dash", "dash": [10, 10]},
            "custom.fillOpacity": 0,
            "custom.lineWidth": 2,
        },
    )


def described(*, shows: str, good: str, act: str, metrics: Iterable[str]) -> str:
    """Return the description of a panel, in the order in which it is needed at night.

    Args:
        shows: What the panel shows.
        good: What it looks like when all is well.
        act: What to do when it does not.
        metrics: Names of the metrics it reads.
    """
    names = ", ".join(f"`{name}`" for name in metrics)
    return f"{shows}\n\n**Good:** {good}\n\n**Otherwise:** {act}\n\nMetric: {names}"
