"""The page of the public names: ``docs/api.md``, printed from their docstrings.

``python -m tools.site.api > docs/api.md``.
"""

from __future__ import annotations

import inspect
import re
import sys
from typing import TYPE_CHECKING, Any

import ampwatch
from ampwatch import actions, lab

if TYPE_CHECKING:
    from collections.abc import Iterator

HEADER = """\
# API

Generated from the docstrings of the public names; change those, then run `make docs`.

All of them are names of `ampwatch`, loaded on first use: `import ampwatch` costs no PyTorch. Times and other quantities are in the
unit that is named; what is not listed here may change in any release.

`ampwatch.integrations` has the callbacks of frameworks: [in your framework](integrations/README.md).
"""

SECTIONS = {
    "Watching": ("monitor", "Monitor", "LastStep"),
    "Findings": ("Finding", "Severity", "SkipClass"),
    "Acting on a finding": ("actions.log", "actions.webhook", "actions.checkpoint", "actions.stop"),
    "Planting a fault": ("inject", "Injection"),
    "Scalers that are not torch's": ("LossScaler",),
    "The laboratory": ("lab.error_budget", "lab.plan"),
}
"""The names with a heading of their own, by section."""

ERRORS = "Errors"
"""The section of the exceptions, in a table."""

MEMBERS = {
    "Monitor": (
        "findings", "on_finding", "report", "op_table", "last_step", "metrics", "summary",
        "gradient_norms", "log_to", "live", "end_iteration", "models", "is_scaled", "url", "closed", "close",
    ),
    "Finding": ("advice", "cure", "key"),
    "Injection": ("active", "remove"),
}  # fmt: skip
"""What is told of the members of a class, beyond its attributes, in this order. Others are for ampwatch itself."""

HELD = {"Monitor": "watch"}
"""What the pages call an object of a class."""

_HEADS = ("Args", "Attributes", "Returns", "Raises", "Cost", "Source", "Example")
_ENTRY = re.compile(r"^(?P<name>[\w*]+): (?P<said>.*)$")
_SIMPLE = (bool, float, int, str, type(None))


def found(name: str) -> Any:
    """Return what a public name stands for."""
    module, _, member = name.rpartition(".")
    return getattr({"actions": actions, "lab": lab}.get(module, ampwatch), member)


def errors() -> list[str]:
    """Return the names of the exceptions, the base of all first."""
    names = [
        n
        for n in dir(ampwatch)
        if inspect.isclass(found(n)) and issubclass(found(n), BaseException)
    ]
    return sorted(names, key=lambda name: (name != "AmpwatchError", name))


def marked(words: str) -> str:
    """Return words of a docstring as Markdown: names in code, pages as links."""
    words = re.sub(r"``([^`]+)``", r"`\1`", words)
    return re.sub(r"(?<![\w/`])docs/([\w-]+)\.md", r"[\1.md](\1.md)", words)


def parsed(docstring: str) -> dict[str, str]:
    """Return the parts of a docstring by their heads, without their indent; the text before them is under ``""``."""
    parts: dict[str, list[str]] = {"": []}
    at = ""
    for line in inspect.cleandoc(docstring).splitlines():
        if line.rstrip(":") in _HEADS and line.endswith(":"):
            at = line[:-1]
            parts[at] = []
        else:
            parts[at].append(line)
    return {head: inspect.cleandoc("\n".join(lines)) for head, lines in parts.items()}


def entries(part: str) -> Iterator[str]:
    """Yield a line for each name of a part, with what is said of it."""
    lines: list[str] = []
    for line in part.splitlines():
        if match := _ENTRY.match(line):
            lines.append(f"- `{match['name']}`: {match['said']}")
        else:
            lines[-1] += f" {line.strip()}"
    yield from map(marked, lines)


def described(docstring: str) -> Iterator[str]:
    """Yield the paragraphs of a docstring as Markdown."""
    for head, part in parsed(docstring).items():
        if head in ("Args", "Attributes", "Raises"):
            yield f"**{head}**"
            yield "\n".join(entries(part))
        elif head:
            yield f"**{head}:** {marked(' '.join(part.split()))}"
        else:
            yield marked(part)


def signature(name: str, it: Any) -> str:
    """Return how a function is called, one argument a line where there are many."""
    called = inspect.signature(it)
    arguments = []
    starred = False
    for argument in called.parameters.values():
        if argument.name == "self":
            continue
        if argument.kind is argument.KEYWORD_ONLY and not starred:
            arguments.append("*")
            starred = True
        # A default without a short form, as a clock, is nothing to write in a call.
        default = argument.default
        if default is not argument.empty and not isinstance(default, _SIMPLE):
            continue
        stars = "**" if argument.kind is argument.VAR_KEYWORD else ""
        given = "" if default is argument.empty else f"={default!r}"
        arguments.append(f"{stars}{argument.name}{given}")
    line = f"{name}({', '.join(arguments)})"
    if len(line) > 100:
        line = f"{name}(\n    " + ",\n    ".join(arguments) + ",\n)"
    return f"```text\n{line}\n```"


def members(name: str) -> Iterator[str]:
    """Yield what is told of the members of a class."""
    for member in MEMBERS.get(name, ()):
        it = inspect.getattr_static(found(name), member)
        yield f"#### `{name}.{member}`"
        if not isinstance(it, property):
            yield signature(f"{HELD.get(name, name.lower())}.{member}", it)
        yield from described(inspect.getdoc(it) or "")


def told(name: str) -> Iterator[str]:
    """Yield what is told of a name."""
    it = found(name)
    yield f"### `ampwatch.{name}`"
    if not inspect.isclass(it):
        yield signature(f"ampwatch.{name}", it)
    yield from described(inspect.getdoc(it) or "")
    yield from members(name)


def table_of_errors() -> str:
    """Return the table of exceptions: what each is to a handler that knows only Python's, and when it is raised."""
    rows = ["| exception | is also | what it says |", "| --- | --- | --- |"]
    for name in errors():
        it = found(name)
        builtin = next((b.__name__ for b in it.__mro__ if b.__module__ == "builtins"), "")
        first = marked((inspect.getdoc(it) or "").partition("\n\n")[0].replace("\n", " "))
        rows.append(f"| `{name}` | `{builtin}` | {first} |")
    return "\n".join(rows)


def page() -> str:
    """Return the page."""
    parts = [HEADER.rstrip()]
    for title, names in SECTIONS.items():
        parts.append(f"## {title}")
        for name in names:
            parts += told(name)
    parts += [f"## {ERRORS}", "All of them are `ampwatch.AmpwatchError`.", table_of_errors()]
    return "\n\n".join(part for part in parts if part) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
