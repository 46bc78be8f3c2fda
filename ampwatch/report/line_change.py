"""The remedy that was tried, as a difference of the line at fault.

A difference is code that somebody will paste, so there is one only where the source shows that it is what was
tried: autocast off in one module, and its input in float32.
"""

from __future__ import annotations

import ast
import linecache
from pathlib import Path
from typing import TYPE_CHECKING

from ampwatch.wire.records import Measure

if TYPE_CHECKING:
    from ampwatch.wire.records import Finding

MAX_BYTES = 2**20
"""Size of a file that is parsed. Unit: B."""

MAX_LINE = 90
"""Characters of a line that is shown; of a longer one there is no difference."""

_OPERATORS = {
    "add": ast.Add,
    "bmm": ast.MatMult,
    "div": ast.Div,
    "mm": ast.MatMult,
    "mul": ast.Mult,
    "pow": ast.Pow,
    "sub": ast.Sub,
}
"""The operator by which a line may call an op. Else it calls a function, or a method, of its name."""


def change_of(finding: Finding) -> tuple[str, ...]:
    """Return the remedy as lines that begin with ``-`` or ``+``; none where it would not be what was tried.

    It reads the file at fault, so it is for where the training runs: elsewhere there mostly is no such file.

    Args:
        finding: One whose first cure is its module in float32.
    """
    cure = finding.cure
    path, _, number = finding.source.rpartition(":")
    if cure is None or cure.measure is not Measure.MODULE_IN_FLOAT32 or not number.isdecimal():
        return ()
    if not cure.module or cure.module != finding.where:
        return ()
    return _change(path, int(number), cure.module.rpartition(".")[2], finding.op)


def _change(path: str, number: int, name: str, op: str) -> tuple[str, ...]:
    tree = _parsed(path)
    statement = None if tree is None else _statement_at(tree, number)
    if tree is None or statement is None or not _imports_torch(tree):
        return ()
    source = linecache.getline(path, number).rstrip()
    line = source[statement.col_offset : statement.end_col_offset]
    # Nothing else on the line: neither what it is a part of, nor a second statement.
    is_alone = not source[: statement.col_offset].strip() and source.endswith(line)
    if not is_alone or not line.isascii() or len(line) > MAX_LINE:
        return ()
    if (given := _given_to(statement.value, name)) is not None:
        start = given.col_offset - statement.col_offset
        wide = f"{line[:start]}{given.id}.float(){line[start + len(given.id) :]}"
        return (f"- {line}", f"+ {_region(given.id)}", f"+     {wide}")
    if (read := _argument_of_forward(tree, statement, op)) is not None:
        return (
            f"- {line}",
            f"+ {_region(read)}",
            f"+     {read} = {read}.float()",
            f"+     {line}",
        )
    return ()


def _parsed(path: str) -> ast.Module | None:
    try:
        # A report is read without trust: nothing is opened but a Python file.
        if path.endswith(".py") and Path(path).is_file() and Path(path).stat().st_size <= MAX_BYTES:
            linecache.checkcache(path)
            return ast.parse("".join(linecache.getlines(path)))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        pass
    return None


def _statement_at(tree: ast.Module, number: int) -> ast.Assign | ast.Return | None:
    """Return what a line does, if it is an assignment or a return, and whole."""
    found = [
        n
        for n in ast.walk(tree)
        if isinstance(n, (ast.Assign, ast.Return)) and n.lineno == n.end_lineno == number
    ]
    return found[0] if len(found) == 1 else None


def _region(tensor: str) -> str:
    return f"with torch.autocast({tensor}.device.type, enabled=False):"


def _imports_torch(tree: ast.Module) -> bool:
    imports = (n for n in tree.body if isinstance(n, ast.Import))
    return any(alias.name == "torch" and alias.asname is None for n in imports for alias in n.names)


def _given_to(value: ast.expr | None, name: str) -> ast.Name | None:
    """Return what a line gives to the module, if calling it with that is all it does."""
    if not isinstance(value, ast.Call) or value.keywords or len(value.args) != 1:
        return None
    (given,) = value.args
    is_module = isinstance(value.func, ast.Attribute) and value.func.attr == name
    return given if is_module and isinstance(given, ast.Name) and given.id.isascii() else None


def _argument_of_forward(tree: ast.Module, statement: ast.stmt, op: str) -> str | None:
    """Return the one argument of the ``forward`` that is only this line, if the op reads it itself."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef) or function.name != "forward":
            continue
        has_docstring = ast.get_docstring(function, clean=False) is not None
        arguments = function.args
        names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        is_whole = function.body[has_docstring:] == [statement] and not function.decorator_list
        if (
            not is_whole
            or names[:1] != ["self"]
            or len(names) != 2
            or arguments.vararg
            or arguments.kwarg
        ):
            continue
        return names[1] if any(_reads(n, op, names[1]) for n in ast.walk(statement)) else None
    return None


def _reads(node: ast.AST, op: str, name: str) -> bool:
    """Whether a node is the op, with a variable as an operand: then that is a tensor of floats."""
    operands: list[ast.expr] = []
    if isinstance(node, ast.BinOp) and type(node.op) is _OPERATORS.get(op):
        operands = [node.left, node.right]
    elif (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == op
    ):
        operands = [node.func.value, *node.args]
    return any(isinstance(operand, ast.Name) and operand.id == name for operand in operands)
