"""The variables of a dashboard: what can be chosen, and how Grafana writes a choice into a query."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_REFERENCE = re.compile(
    r"\$(?P<plain>\w+)|\[\[(?P<old>\w+)(?::(?P<old_format>\w+))?\]\]"
    r"|\$\{(?P<name>\w+)(?:\.[^:}]+)?(?::(?P<format>[^}]+))?\}"
)
_SPECIAL = re.compile(r"[$^*{}\[\]'+?.()|]")


@dataclass(frozen=True, slots=True)
class Variable:
    """Variable of a dashboard.

    Attributes:
        name: As queries refer to it.
        kind: ``datasource``, ``query``, ``adhoc``, ``custom``, ``constant``, ``interval``, ``textbox``.
        label: As the user sees it.
        query: What gives its values; empty without one.
        regex: What a value has to match; its first group is the value.
        multi: Whether several can be chosen, or all.
        all_value: What stands for all of them; empty if they are listed.
        hidden: Whether the user sees it.
    """

    name: str
    kind: str
    label: str = ""
    query: str = ""
    regex: str = ""
    multi: bool = False
    all_value: str = ""
    hidden: bool = False

    def values(self, found: Sequence[str]) -> list[str]:
        """Return what can be chosen of what was found."""
        if not self.regex:
            return sorted(set(found))
        pattern = re.compile(self.regex.strip("/"))
        matches = (pattern.search(value) for value in found)
        return sorted({m.group(1) if pattern.groups else m.group() for m in matches if m})


def variables(dashboard: Mapping[str, Any]) -> list[Variable]:
    """Return the variables of ``dashboard`` in their order."""
    return [_variable(v) for v in dashboard.get("templating", {}).get("list", [])]


def _variable(model: Mapping[str, Any]) -> Variable:
    query = model.get("query") or ""
    if not isinstance(query, str):
        query = query.get("query", "")
    return Variable(
        name=model["name"],
        kind=model["type"],
        label=model.get("label") or model["name"],
        query=query,
        regex=model.get("regex") or "",
        multi=bool(model.get("multi") or model.get("includeAll")),
        all_value=model.get("allValue") or "",
        hidden=model.get("hide", 0) == 2,  # as Grafana's VariableHide
    )


@dataclass(slots=True)
class Choices:
    """Choice of values for the variables.

    Attributes:
        of: The variables by name.
        values: The values of each that was looked up.
        chosen: What was picked of them; all where there is nothing.
    """

    of: dict[str, Variable]
    values: dict[str, list[str]] = field(default_factory=dict)
    chosen: dict[str, list[str]] = field(default_factory=dict)

    def in_query(self, text: str, built_in: Mapping[str, str]) -> str:
        """Return a query as Prometheus gets it.

        Args:
            text: As the dashboard has it.
            built_in: Values of ``$__interval`` and its kin.
        """
        return self._replace(text, built_in, "regex")

    def in_text(self, text: str, built_in: Mapping[str, str]) -> str:
        """Return a title or the text of a panel as the user reads it."""
        return self._replace(text, built_in, "text")

    def _replace(self, text: str, built_in: Mapping[str, str], usual: str) -> str:
        def value(match: re.Match[str]) -> str:
            name = match["plain"] or match["old"] or match["name"]
            if name in built_in:
                return built_in[name]
            if name not in self.of:
                return match[0]  # as Grafana leaves it
            return self._written(self.of[name], match["old_format"] or match["format"] or usual)

        return _REFERENCE.sub(value, text)

    def _written(self, variable: Variable, form: str) -> str:
        chosen = self.chosen.get(variable.name)
        if chosen is None and form == "text":
            return "All"
        if chosen is None and variable.all_value:
            return variable.all_value
        values = self.values.get(variable.name, []) if chosen is None else chosen
        if form not in _FORMATS:
            msg = f"expected one of the formats {', '.join(_FORMATS)} for ${variable.name}, got {form!r}"
            raise ValueError(msg)
        return _FORMATS[form](values, variable.multi)


def _regex(values: Sequence[str], multi: bool) -> str:  # noqa: FBT001 - one signature for all
    if not multi:
        return "".join(values).replace("\\", "\\\\").replace("'", "\\\\'")
    escaped = [_SPECIAL.sub(r"\\\\\g<0>", v.replace("\\", "\\\\\\\\")) for v in values]
    return escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"


_FORMATS: dict[str, Callable[[Sequence[str], bool], str]] = {
    "regex": _regex,
    "raw": lambda values, _: ",".join(values),
    "csv": lambda values, _: ",".join(values),
    "pipe": lambda values, _: "|".join(values),
    "text": lambda values, _: " + ".join(values),
}
