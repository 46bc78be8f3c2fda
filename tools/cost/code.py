"""The code that runs in a watched step, and a digest of it that words do not change.

A table of costs holds for the code that was measured. The digest tells whether that is this code, without
the history of the repository, which a checkout for CI may not have.
"""

from __future__ import annotations

import ast
import hashlib
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]

PATHS = (
    "ampwatch/diagnosis",
    "ampwatch/guard.py",
    "ampwatch/numerics",
    "ampwatch/settings.py",
    "ampwatch/state",
    "ampwatch/training",
    "ampwatch/wire/blackbox",
    "ampwatch/wire/records",
    "ampwatch/wire/ring",
)
"""What a watched step runs, and the settings that say how often. `tests/tools/test_cost.py` watches one."""

SETUP = (
    "ampwatch/diagnosis/kinds/__main__.py",
    "ampwatch/diagnosis/kinds/tables.py",
    "ampwatch/training/announcement.py",
    "ampwatch/training/arguments.py",
    "ampwatch/training/attach",
    "ampwatch/training/inject",
    "ampwatch/training/launcher.py",
    "ampwatch/training/loggers",
)
"""What of these paths runs before a training, or when somebody asks for it, and in no step that is timed."""

_COMMENT = re.compile(rb"//[^\n]*|/\*.*?\*/", re.DOTALL)
_IGNORED_FIELDS = frozenset({"ctx", "kind", "returns", "type_comment", "type_params"})
"""Fields of syntax trees that say nothing of what runs, or that not every Python has."""


def sources(root: Path = ROOT) -> list[Path]:
    """Return the files of Python and C that a watched step may run, sorted."""
    apart = [root / path for path in SETUP]
    return sorted(
        file
        for path in PATHS
        for file in _files(root / path)
        if not any(file == a or a in file.parents for a in apart)
    )


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return [file for file in path.rglob("*") if file.suffix in {".py", ".c", ".h"}]


def digest(root: Path = ROOT) -> str:
    """Return a digest of the code that a watched step may run.

    Comments, docstrings, annotations of functions and texts with a space in them, which are for people, do not
    change it. It is the same by any Python.

    Cost: some 0.6 s; every file is parsed.
    """
    whole = hashlib.sha256()
    for file in sources(root):
        code = (
            python_code(file.read_text(encoding="utf-8"))
            if file.suffix == ".py"
            else b" ".join(_COMMENT.sub(b" ", file.read_bytes()).split())
        )
        whole.update(file.relative_to(root).as_posix().encode() + b"\0" + code + b"\0")
    return whole.hexdigest()


def python_code(text: str) -> bytes:
    """Return what a module of Python does, in a form of its own that words do not change."""
    return "\n".join(_tree(ast.parse(text))).encode()


def _tree(node: Any) -> Iterator[str]:
    if isinstance(node, list):
        yield "["
        for each in node:
            if not _is_text(each):
                yield from _tree(each)
        yield "]"
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.AST):
        yield type(node).__name__
        for name in node._fields:
            value = getattr(node, name, None)
            if value is not None and value != [] and name not in _IGNORED_FIELDS:
                yield name
                yield from _tree(value)
    else:
        yield "words" if isinstance(node, str) and any(map(str.isspace, node)) else repr(node)


def _is_text(node: Any) -> bool:
    """Tell whether a statement is a text alone, as docstrings are."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def origin() -> dict[str, Any]:
    """Return where the code that is about to be measured comes from: commit, changes, digest."""
    changed = _git("status", "--porcelain", "--", *PATHS)
    return {
        "commit": _git("rev-parse", "--short=10", "HEAD") or "unknown",
        "changed": bool(changed),
        "digest": digest(),
    }


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - arguments of this file
            ["git", *arguments],  # noqa: S607 - the user's git
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
