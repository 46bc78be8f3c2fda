"""Appearance of a field: defaults and overrides of its panel, mappings, thresholds, units."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tools.preview import units
from tools.preview.colours import PALETTE, colour
from tools.preview.frames import NUMBER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tools.preview.frames import Field

NO_VALUE = "No data"


@dataclass(slots=True)
class FieldLook:
    """Appearance of one field.

    Attributes:
        name: What the user reads.
        options: Unit, decimals, thresholds, mappings ... with the overrides applied.
        custom: What only its type of panel knows.
        place: Which of the series of the panel it is: gives the colour of the palette.
    """

    name: str
    options: dict[str, Any]
    custom: dict[str, Any] = field(default_factory=dict)
    place: int = 0

    def text(self, value: Any) -> str:
        """Return what is written for ``value``."""
        mapped = self._mapping(value)
        if mapped and mapped.get("text"):
            return str(mapped["text"])
        if value is None or (isinstance(value, float) and math.isnan(value) and not mapped):
            missing = self.options.get("noValue")
            return str(missing) if missing and value is None else "NaN" if value is not None else ""
        if not units.is_number(value):
            return str(value)
        return units.written(value, self.options.get("unit", ""), self.options.get("decimals"))

    def colour(self, value: Any) -> str:
        """Return the colour of ``value``, as CSS has it."""
        mapped = self._mapping(value)
        if mapped and mapped.get("color"):
            return colour(mapped["color"])
        mode = self.options.get("color", {}).get("mode", "palette-classic")
        if mode == "fixed":
            return colour(self.options["color"].get("fixedColor", "text"))
        if mode.startswith("palette-classic"):
            return PALETTE[self.place % len(PALETTE)]
        return self.threshold(value)

    def threshold(self, value: Any) -> str:
        """Return the colour of the highest threshold that ``value`` reaches; without one, the first."""
        found = "green"
        for step, bound in self.thresholds():
            if bound == -math.inf or (units.is_number(value) and value >= bound):
                found = step
        return colour(found)

    def thresholds(self) -> list[tuple[str, float]]:
        """Return colour and lower bound of each threshold; the first one has none below."""
        steps = self.options.get("thresholds", {}).get("steps", [])
        return [
            (s["color"], -math.inf if s.get("value") is None else float(s["value"])) for s in steps
        ]

    def _mapping(self, value: Any) -> Mapping[str, Any] | None:
        for mapping in self.options.get("mappings", []):
            result = _matched(mapping, value)
            if result is not None:
                return result
        return None


def _matched(mapping: Mapping[str, Any], value: Any) -> Mapping[str, Any] | None:
    options = mapping["options"]
    found: Mapping[str, Any] | None
    if mapping["type"] == "value":
        found = options.get(_key(value))
    elif mapping["type"] == "range":
        low, high = options.get("from"), options.get("to")
        inside = (
            units.is_number(value)
            and (low is None or low <= value)
            and (high is None or value <= high)
        )
        found = options["result"] if inside else None
    else:
        msg = f"expected mappings of the type value or range, got {mapping['type']!r}; add it to tools/preview/fields.py"
        raise ValueError(msg)
    return found


def _key(value: Any) -> str:
    """Return a value as JavaScript writes it."""
    if units.is_number(value) and math.isfinite(value) and value == int(value):
        return str(int(value))
    return str(value)


def looks(config: Mapping[str, Any], named: Sequence[tuple[str, Field]]) -> list[FieldLook]:
    """Return how the fields of a panel are shown.

    Args:
        config: The ``fieldConfig`` of the panel.
        named: Name and column of each field, in their order.
    """
    found = []
    place = 0
    for name, column in named:
        options = dict(config.get("defaults", {}))
        custom = dict(options.pop("custom", {}))
        for override in config.get("overrides", []):
            if _applies(override["matcher"], name):
                for given in override["properties"]:
                    _override(options, custom, given["id"], given.get("value"))
        found.append(FieldLook(name, options, custom, place))
        place += column.kind == NUMBER
    return found


def _applies(matcher: Mapping[str, Any], name: str) -> bool:
    rule = matcher["id"]
    options = matcher.get("options")
    if rule == "byName":
        return bool(name == options)
    if rule == "byRegexp":
        return re.search(str(options).strip("/"), name) is not None
    msg = (
        f"expected the matcher byName or byRegexp, got {rule!r}; add it to tools/preview/fields.py"
    )
    raise ValueError(msg)


def _override(options: dict[str, Any], custom: dict[str, Any], name: str, value: Any) -> None:
    if name.startswith("custom."):
        at = custom
        *way, last = name.removeprefix("custom.").split(".")
        for part in way:
            at[part] = dict(at.get(part, {}))
            at = at[part]
        at[last] = value
    else:
        options[name] = value
