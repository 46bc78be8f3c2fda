"""Each sentence of the security model names a test that holds it, and that test exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "docs" / "security-model.md"
ROWS = [
    line.strip("|").split("|")
    for line in MODEL.read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith(("| What holds", "| ---"))
]


@cache
def _functions_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_there_are_sentences() -> None:
    """Otherwise none would be checked."""
    assert len(ROWS) >= 30


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip()[:60])
def test_a_sentence_is_held_by_tests_that_exist(row: list[str]) -> None:
    """By name, so that one that is renamed or removed is missed here."""
    assert len(row) == 2
    references = re.findall(r"`([\w/.]+)::(\w+)`", row[1])

    assert references
    for path, name in references:
        assert name.startswith("test_")
        assert name in _functions_of(ROOT / "tests" / path), f"no {name} in tests/{path}"
