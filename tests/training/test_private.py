"""Private names of torch: in one file, and what happens where one is missing."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import torch

import ampwatch
from ampwatch.training import private

PACKAGE = Path(ampwatch.__file__).parent


def _private_names(path: Path) -> list[str]:
    """Return the private names below ``torch`` that the code of a file reads."""
    text, found = path.read_text(), list[str]()
    if not re.search(r"torch[\w.]*(\._|.* import .*_)", text):
        return found
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute):
            name = ast.unparse(node)
        elif isinstance(node, ast.ImportFrom):
            name = f"{node.module}.{node.names[0].name}"
        else:
            continue
        if re.match(r"torch\.(\w+\.)*_(?!_)", name):
            found.append(name)
    return found


def test_no_other_file_reads_a_private_name_of_torch() -> None:
    """A torch that has changed is met in one place."""
    files = [path for path in PACKAGE.rglob("*.py") if path.name != "private.py"]
    assert len(files) > 400
    found = {str(path.relative_to(PACKAGE)): _private_names(path) for path in files}

    assert {path: names for path, names in found.items() if names} == {}
    assert _private_names(PACKAGE / "training" / "private.py")


def test_the_torch_of_the_tests_has_all_of_them() -> None:
    """Rows of names that are gone would stay for good otherwise."""
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13):
        pytest.skip("older versions lack some; docs/support.md says which")
    assert [row.name for row in private.missing()] == []


def test_a_name_that_is_gone_is_replaced_or_refused_in_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before anything is attached."""
    monkeypatch.setattr(private, "NAMES", [])

    assert private._find("_C._gone", "Nothing.", "It is guessed.", 7) == 7
    with pytest.raises(
        ampwatch.AttachError,
        match=r"expected torch 2\.6 or newer with .*torch\._C\._gone, got torch",
    ):
        private._find("_C._gone", "Nothing.")
    assert [row.name for row in private.NAMES] == ["torch._C._gone", "torch._C._gone"]
    assert [row.name for row in private.missing()] == ["torch._C._gone", "torch._C._gone"]
