"""Helm in small: the few forms of Go's templates that the chart has, rendered as those of Jinja.

Helm is not to be had where the tests run. Version 3.8.1 of it has made the same objects of the chart.
"""

from __future__ import annotations

import json
import re
from typing import Any

import jinja2
import yaml

CHART = "deploy/helm/ampwatch/"


def rendered(files: dict[str, str], values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the objects of the chart in a deployment.

    Args:
        files: Text by path.
        values: What replaces defaults, at the first level.
    """
    given = {
        "Values": yaml.safe_load(files[f"{CHART}values.yaml"]) | values,
        "Release": {"Namespace": "ampwatch"},
        "Files": {path.removeprefix(CHART): text for path, text in files.items()},
    }
    environment = jinja2.Environment()
    environment.filters |= {
        "toJson": json.dumps,
        "fromYaml": yaml.safe_load,
        "default": lambda value, other: value or other,
        "printf": lambda value, form: form % value,
        "required": lambda value, _: value,
        "trimSuffix": lambda text, end: text.removesuffix(end),
    }
    return [
        thing
        for path, text in files.items()
        if path.startswith(f"{CHART}templates/")
        for thing in yaml.safe_load_all(environment.from_string(_as_jinja(text)).render(given))
    ]


def _as_jinja(text: str) -> str:
    opened = list[str]()

    def tag(match: re.Match[str]) -> str:
        what, _, rest = match[1].partition(" ")
        if what == "/*":
            return ""
        if what == "end":
            return f"{{%- end{opened.pop()} %}}"
        if what == "if":
            opened.append("if")
            return f"{{%- if {_expression(rest)} %}}"
        if what == "range":
            opened.append("for")
            names, _, over = rest.rpartition(" := ")
            each = "name, value in %s | dictsort" if names else "it in %s"
            return f"{{%- for {each % _expression(over)} %}}"
        return f"{{{{ {_expression(match[1])} }}}}"

    return re.sub(r"\{\{-? (.*?) ?\}\}", tag, text)


def _expression(text: str) -> str:
    """Return a pipeline: a value, and functions that take it with arguments of their own."""
    value, *functions = re.split(r" \| (?![^(]*\))", text)
    calls = []
    for function in functions:
        name, *given = re.findall(r'\(.*\)|"[^"]*"|\S+', function)
        given = [f"({_expression(g[1:-1])})" if g[0] == "(" else g for g in given]
        calls.append(f" | {name}({', '.join(given)})")
    value = re.sub(r'^\.Files\.Get (".*")$', r"Files[\1]", value)
    return ("it" if value == "." else value.lstrip(".$")) + "".join(calls)
