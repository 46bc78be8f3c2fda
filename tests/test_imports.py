"""Who imports whom, for a reader: types that are only named in annotations count as well."""

from __future__ import annotations

import re
from pathlib import Path

import grimp

import ampwatch

MOST = 2
"""Modules in a circle: two that are halves of one thing may know each other."""


def test_no_more_than_two_modules_import_one_another_in_a_circle() -> None:
    """Whoever reads one of three has to read all of them. The linter does not see ``TYPE_CHECKING``."""
    graph = grimp.build_graph("ampwatch", cache_dir=None)
    reached = {m: graph.find_downstream_modules(m) for m in graph.modules}
    circles = {
        frozenset({m, *(n for n in reached[m] if m in reached[n])})
        for m in graph.modules - {"ampwatch"}
    }

    assert len(circles) > 100
    assert [sorted(circle) for circle in circles if len(circle) > MOST] == []


def test_no_named_tuple_has_another_base() -> None:
    """Python 3.10 refuses one when it is made, whatever newer releases do; no linter says so."""
    files = Path(ampwatch.__file__).parent.rglob("*.py")
    classes = [c for path in files for c in re.findall(r"^ *class .*\(.*", path.read_text(), re.MULTILINE)]  # fmt: skip

    assert len(classes) > 300
    assert [c for c in classes if re.search(r"NamedTuple\s*,|,\s*NamedTuple", c)] == []
