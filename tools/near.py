"""Tests that reach what has changed, nearest first: ``make test-near``.

A test is near a changed module if it imports it, or imports what imports it, in a few steps. A test that
starts a program is near what it imports itself, so the tests of the folder that mirrors a module's count as near, too.

Usage: ``python -m tools.near [--base REV] [--hops N]``. Prints files of tests, one a line; what has
changed is what differs from ``REV`` in the working tree, new files included.
"""

from __future__ import annotations

import argparse
import subprocess
from collections import deque
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import grimp

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).parents[1]
PACKAGES = ("ampwatch", "dashboards", "tests", "tools")

MIN_HOPS = 1
DEFAULT_HOPS = 3
"""Imports between a test and what has changed. At four, some 100 of 490 files test a monitor, and so all that it builds."""


def main() -> None:
    """Print the files of tests that are near."""
    parser = argparse.ArgumentParser(prog="near", description=__doc__.splitlines()[0])
    parser.add_argument("--base", default="HEAD", help="compare with this commit")
    parser.add_argument("--hops", type=int, default=DEFAULT_HOPS, help="imports in between")
    given = parser.parse_args()
    changed = changed_files(given.base)
    print(*near(changed, given.hops), sep="\n")


def changed_files(base: str) -> list[str]:
    """Return the paths that differ from a commit, and those that git does not know and does not ignore."""
    commands = (
        ["git", "diff", "--name-only", "--relative", base],
        ["git", "ls-files", "--others", "--exclude-standard"],
    )
    printed = (subprocess.check_output(command, cwd=ROOT, text=True) for command in commands)  # noqa: S603
    return [path for text in printed for path in text.splitlines()]


def near(changed: Iterable[str], hops: int = DEFAULT_HOPS) -> list[str]:
    """Return the existing files of tests within ``hops`` imports of changed files, nearest first."""
    graph = _imports()
    distances: dict[str, int] = {}
    for path in changed:
        for module in _modules(PurePosixPath(path), graph.modules):
            distances[module] = 0
    ahead = deque(distances)
    while ahead:
        module = ahead.popleft()
        if distances[module] < max(hops, MIN_HOPS):
            for importer in graph.find_modules_that_directly_import(module):
                if importer not in distances:
                    distances[importer] = distances[module] + 1
                    ahead.append(importer)
    tests = [m for m in distances if m.startswith("tests.") and ".test_" in m]
    tests.sort(key=lambda module: (distances[module], module))
    paths = (f"{module.replace('.', '/')}.py" for module in tests)
    return [path for path in paths if (ROOT / path).exists()]


@cache
def _imports() -> grimp.ImportGraph:
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True, cache_dir=None)
    # The package names its public classes for type checkers, and loads them on first use.
    named = grimp.build_graph("ampwatch", cache_dir=None)
    for module in named.find_modules_directly_imported_by("ampwatch"):
        graph.add_import(importer="ampwatch", imported=module)
    return graph


def _modules(path: PurePosixPath, known: set[str]) -> list[str]:
    """Return the module of a path, or of its folder where it is no module; and the tests that mirror the folder."""
    module = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    folders = [".".join(folder.parts) for folder in path.parents if folder.parts]
    mirrors = [f"tests.{folder.removeprefix('ampwatch.')}" for folder in folders]
    own = [module] if path.suffix == ".py" and module in known else _first(folders, "", known)
    return own + _first(mirrors, "test_", known)


def _first(folders: Iterable[str], prefix: str, known: set[str]) -> list[str]:
    """Return the modules that lie in the first of these folders that has any."""
    for folder in folders:
        inside = f"{folder}.{prefix}"
        found = [m for m in known if m.startswith(inside) and "." not in m[len(inside) :]]
        if found:
            return found
    return []


if __name__ == "__main__":
    main()
