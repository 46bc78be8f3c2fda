"""The README as a package index shows it: what is relative in the repository has an address there.

A hook of hatchling, which makes the metadata of every build by it (`pyproject.toml`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PAGES = "https://github.com/ampwatch/ampwatch/blob/main/"
FILES = "https://raw.githubusercontent.com/ampwatch/ampwatch/main/"

_RELATIVE = re.compile(
    r"(?P<picture>!?)\[(?P<words>[^\[\]]*)\]\((?!#|[a-z]+:)(?P<place>[^()\s]+)\)"
)


def absolute(text: str) -> str:
    """Return a page of the repository's root with the address of each picture and each link."""

    def at(match: re.Match[str]) -> str:
        base = FILES if match["picture"] else PAGES
        return f"{match['picture']}[{match['words']}]({base}{match['place']})"

    return _RELATIVE.sub(at, text)


class ReadmeHook(MetadataHookInterface):
    """Puts the README into the metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set ``readme``, which ``pyproject.toml`` says is dynamic."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute(text)}
