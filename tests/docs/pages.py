"""The pages of the repository that people read, and the code in them."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<code>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)


class Block(NamedTuple):
    """A block of code.

    Attributes:
        page: Where it stands, by its place in the repository.
        language: As the block names it; empty without one.
        code: What is in it.
    """

    page: str
    language: str
    code: str


@cache
def tracked() -> tuple[str, ...]:
    """Return the files of the repository, by their places: those that git knows, and new ones that it does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    ).stdout.split("\0")
    return tuple(sorted(name for name in listed if name and (ROOT / name).is_file()))


@cache
def pages() -> dict[str, str]:
    """Return the text of each page that users, operators and contributors are led to."""
    return {
        name: (ROOT / name).read_text(encoding="utf-8")
        for name in tracked()
        if name.endswith(".md") and not name.startswith(("tests/", ".ci/"))
    }


def blocks(page: str) -> list[Block]:
    """Return the blocks of code of a page, in order."""
    return [
        Block(page, match["language"], match["code"]) for match in _FENCE.finditer(pages()[page])
    ]
