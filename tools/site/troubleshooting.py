"""The page of the doctor's sentences: ``docs/troubleshooting.md``, read from the code of ``ampwatch doctor``.

``python -m tools.site.troubleshooting > docs/troubleshooting.md``. Each call of ``Check`` that says that something is
absent or a problem is a line of the page, whatever has to happen for it. What is filled in only there is in italics.
"""

from __future__ import annotations

import ast
import inspect
import sys
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from ampwatch.doctor import gpu, training

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

HEADER = """\
# Troubleshooting

Generated from the sentences of `ampwatch doctor`; change those, then run `make docs`.

`ampwatch doctor` says what works on a machine, what is absent, and what ought to work and does not. It starts nothing and writes
nothing. Run it with the Python that trains, inside the container if there is one:

```
ampwatch doctor
ampwatch doctor --json | jq '.checks[] | select(.state == "problem")'
```

`absent` is nothing wrong: the machine does not have it. `problem` ought to work. Below is each sentence that is not `ok`, with its
remedy. Words in *italics* are filled in by what was found.

Other questions than those of a machine:

- **The page asks for a token.** `ampwatch url` prints the address with it ([using ampwatch](using.md#one-line)).
- **A run does not appear.** Where a job's processes are ended with the job, start the daemon as a service
  ([how](operate.md#slurm)). With `serve=False` a run has no page.
- **Ranks are taken for one, or each for the only one.** Call `ampwatch.monitor()` after
  `torch.distributed.init_process_group()`, or set `RANK`, `LOCAL_RANK` and `WORLD_SIZE` as torchrun does: before it they are not known.
- **Something is not seen in compiled code, in fused kernels, in other processes.** That is [a limit](diagnosis.md#what-is-not-seen).
- **A panel is empty.** [An empty panel](operate.md#an-empty-panel) lists the reasons.
- **A training has become slower.** [What watching costs](cost.md) says what is usual; `level="light"` costs least, and `AMPWATCH_LEVEL=off`
  nothing.
- **A finding is wrong.** Its page says [how it is seen and what it is not](diagnoses/README.md). Send the report along:
  `ampwatch report --json`.
"""

GROUPS = {
    "Training": ("training",),
    "Rings and reports": ("places",),
    "The daemon": ("daemon",),
    "Terminal, protection": ("examination",),
    "GPUs": ("gpu",),
}
"""The modules of the doctor, by heading."""

TABLES: dict[str, tuple[tuple[str, Mapping[str, str]], ...]] = {
    "Training": (
        ("What PyTorch says where CUDA ought to work", training.TROUBLE),
        ("Messages where the kernel for a device cannot be made ready", training.NEEDED),
    ),
    "GPUs": (
        (
            "Why something of a GPU is not read",
            {reason.text: remedy for reason, remedy in gpu.REMEDIES.items()},
        ),
        (
            "Why a single feature is not",
            {reason.text: remedy for reason, remedy in gpu.OF_FEATURES.items()},
        ),
    ),
}
"""Remedies that the doctor looks up by words, by heading."""

TROUBLE_OF_A_PLACE = ("trouble_with", "_trouble_of")
"""Functions of ``places`` whose words are filled in for *trouble*."""

FILLED_IN = {
    "geteuid": "your uid",
    "st mode": "its mode",
    "st uid": "its uid",
    "remedies": "remedy",
    "environ": "its value",
}
"""Names for what the code calls otherwise."""

DOCTOR = "ampwatch.doctor"

Names = dict[str, str]


@dataclass(frozen=True)
class Line:
    """A sentence of the doctor.

    Attributes:
        name: The capability.
        states: The states that it may be said with, without ``ok``.
        why: The sentence.
        remedy: What to do; empty if there is nothing to do.
    """

    name: str
    states: tuple[str, ...]
    why: str
    remedy: str


def module_text(module: str) -> str:
    """Return the code of a module of the doctor."""
    return inspect.getsource(import_module(f"{DOCTOR}.{module}"))


def lines_of(module: str) -> list[Line]:
    """Return each sentence of a module that says that something is absent or a problem, in order.

    Raises:
        ValueError: If a call of ``Check`` cannot be read.
    """
    tree = ast.parse(module_text(module))
    constants = {
        name: _plain(value)
        for name, value in vars(import_module(f"{DOCTOR}.{module}")).items()
        if isinstance(value, str) and name.isupper()
    }
    found: list[Line] = []
    for function in tree.body:
        if isinstance(function, ast.FunctionDef):
            for given in _calls_of(function, tree) or [{}]:
                found += _lines_in(function, {**constants, **given})
    return list(dict.fromkeys(found))


def _calls_of(function: ast.FunctionDef, tree: ast.Module) -> list[Names]:
    """Return the arguments of each call of a private function that says something, where they are plain text."""
    parameters = [argument.arg for argument in function.args.args]
    calls = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == function.name:
            texts = {
                name: value.value
                for name, value in zip(parameters, node.args, strict=False)
                if isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value
            }
            if texts:
                calls.append(texts)
    return calls


def _lines_in(function: ast.FunctionDef, known: Names) -> Iterator[Line]:
    checks = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Check"
    ]
    for check in sorted(checks, key=lambda node: node.lineno):
        names = _assigned(function.body, known, check.lineno)
        if len(check.args) < 3:
            msg = f"expected a name, a state and a reason in line {check.lineno}, got {ast.unparse(check)}"
            raise ValueError(msg)
        states = _states(check.args[1], function)
        if states:
            name, why, *rest = (
                _words(check.args[i], names) for i in (0, *range(2, len(check.args)))
            )
            yield Line(name, states, why, rest[0] if rest else "")


def _assigned(body: list[ast.stmt], known: Names, before: int) -> Names:
    """Return the texts that names have in a line: those of the assignments above it, the last one of each."""
    names = dict(known)
    inner = [node for statement in body for node in ast.walk(statement)]
    for node in sorted(inner, key=lambda node: getattr(node, "lineno", 0)):
        if getattr(node, "lineno", 0) >= before:
            continue
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if _is_text(node.value):
                names[name] = _words(node.value, names)
            else:
                names.pop(name, None)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
            names[name] = names.get(name, f"*{name}*") + _words(node.value, names)
    return names


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _states(node: ast.expr, function: ast.FunctionDef) -> tuple[str, ...]:
    """Return the states that an expression may be, without ``ok``."""
    if isinstance(node, ast.Name):
        values = [
            each.value
            for each in ast.walk(function)
            if isinstance(each, ast.Assign) and getattr(each.targets[0], "id", "") == node.id
        ]
        return tuple(state for value in values for state in _states(value, function))
    words = [each.attr.lower() for each in ast.walk(node) if isinstance(each, ast.Attribute)]
    return tuple(sorted({word for word in words if word in ("absent", "problem")}))


def _words(node: ast.expr, names: Names) -> str:
    """Return a text of the code for a reader: what is filled in by name, in italics."""
    if isinstance(node, ast.Constant):
        words = _plain(str(node.value))
    elif isinstance(node, ast.JoinedStr):
        words = "".join(_words(part, names) for part in node.values).replace("**", "* *")
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):  # of paths
        words = f"{_words(node.left, names)}/{_words(node.right, names)}"
    elif isinstance(node, ast.FormattedValue):
        words = _words(node.value, names)
    elif isinstance(node, ast.BoolOp):
        words = _words(node.values[-1], names)
    elif isinstance(node, ast.Name) and node.id in names:
        words = names[node.id]
    else:
        name = _name(node)
        words = f"*{FILLED_IN.get(name, name)}*"
    return words


def _plain(words: str) -> str:
    """Return words so that Markdown takes none of them for a mark."""
    return words.replace("*", r"\*").replace("<", "&lt;").replace(">", "&gt;")


def _name(node: ast.expr) -> str:
    """Return a name for what an expression fills in."""
    if isinstance(node, ast.Name):
        return node.id.lower().replace("_", " ")
    if isinstance(node, ast.Attribute):
        return node.attr.strip("_").replace("_", " ")
    if isinstance(node, ast.Subscript):
        return _name(node.slice if isinstance(node.slice, ast.Name) else node.value)
    if isinstance(node, ast.Call):
        is_look_up = isinstance(node.func, ast.Attribute) and node.func.attr == "get"
        return _name(node.func.value if is_look_up else (node.args or [node.func])[0])  # type: ignore[attr-defined]
    if isinstance(node, ast.BinOp):
        return _name(node.left)
    return "..."


def troubles() -> list[str]:
    """Return what may be wrong with a directory, in the doctor's words."""
    tree = ast.parse(module_text("places"))
    returned = [
        node.value
        for function in tree.body
        if isinstance(function, ast.FunctionDef) and function.name in TROUBLE_OF_A_PLACE
        for node in ast.walk(function)
        if isinstance(node, ast.Return) and node.value is not None and _is_text(node.value)
    ]
    return [words for value in returned if (words := _words(value, {}))]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def page() -> str:
    """Return the page."""
    parts = [HEADER.rstrip()]
    for title, modules in GROUPS.items():
        rows = [_row("what", "state", "the doctor says", "what to do"), "| --- | --- | --- | --- |"]
        for module in modules:
            rows += [
                _row(line.name, " or ".join(line.states), line.why, line.remedy)
                for line in lines_of(module)
            ]
        parts += [f"## {title}", "\n".join(rows)]
        if "places" in modules:
            parts += [
                "What may stand for *trouble*, of a ring's place, of the report directory and of the runtime directory:",
                "\n".join(f"- {words}" for words in troubles()),
            ]
        for caption, table in TABLES.get(title, ()):
            rows = [_row("in the words", "what to do"), "| --- | --- |"]
            parts += [
                f"### {caption}",
                "\n".join([*rows, *(_row(*map(_plain, row)) for row in table.items())]),
            ]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
