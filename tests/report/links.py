"""Walks the links of Markdown files by a parser of its own, not by that of the code."""

from __future__ import annotations

import re
from posixpath import dirname, join, normpath
from typing import TYPE_CHECKING

from markdown_it import MarkdownIt

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def links(text: str) -> list[str]:
    """Return where the links and pictures of a page lead, in order."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    inner = [child for token in tokens for child in token.children or ()]
    found = [str(token.attrGet("href")) for token in inner if token.type == "link_open"]
    return found + [str(token.attrGet("src")) for token in inner if token.type == "image"]


def anchors(text: str) -> set[str]:
    """Return the fragments that lead to the headings of a page, as GitHub makes them."""
    headings = re.findall(
        r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE
    )
    return {re.sub(r"[^a-z0-9_\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead_links(files: Mapping[str, str]) -> Iterator[str]:
    """Yield the relative links of ``files`` (text by path) that lead to nothing among them."""
    directories = {dirname(path) for path in files}
    directories |= {parent for d in directories for parent in _above(d)}
    for path, text in files.items():
        for link in links(text) if path.endswith(".md") else ():
            if "://" in link:
                continue
            target, _, fragment = link.partition("#")
            place = normpath(join(dirname(path), target)) if target else path
            if place not in files and place not in directories:
                yield f"{path}: {link}"
            elif fragment and fragment not in anchors(files.get(place, "")):
                yield f"{path}: {link} (no such heading)"


def _above(directory: str) -> Iterator[str]:
    while directory:
        directory = dirname(directory)
        yield directory
