"""The pages that are shipped with the code: a page for each kind of finding, for each alert, and guides.

A page is Markdown. What a page links to is either shipped as well, by a relative path, or named by
its address on the web: nobody is led to a file that is not there.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from ampwatch.diagnosis.kinds.registry import row_of
from ampwatch.errors import AmpwatchError
from ampwatch.shipped import shipped

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

REPOSITORY = "https://github.com/ampwatch/ampwatch/blob/main/"
"""Address of what is not shipped."""

INDEX = "README"
"""Name of a page that lists the others of its shelf."""

GUIDES = (
    "callbacks",
    "diagnosis",
    "gpu",
    "lab",
    "metrics",
    "operate",
    "page",
    "settings",
    "using",
    "what-is-patched",
)
"""Pages of ``docs/`` that are shipped, without their pictures, which would weigh more than all the rest of
the package."""

_COMMENT = re.compile(r"<!--.*?-->\n*|^</?(?:details|summary)[^\n]*\n+", re.DOTALL | re.MULTILINE)
_PICTURE = re.compile(r"^!\[[^\[\]]*\]\([^()\s]+\)\n+", re.MULTILINE)
_LINK = re.compile(r"\[([^\[\]]*)\]\(([^()\s]+)\)")


class Shelf(Enum):
    """Sorts of pages.

    Attributes:
        place: Directory of the pages, as in the repository.
        route: Path under which the daemon serves them.
        title: Heading of their list.
    """

    KINDS = ("docs/diagnoses", "/explain/", "Kinds of findings")
    RUNBOOKS = ("docs/runbooks", "/runbooks/", "Alerts")
    GUIDES = ("docs", "/docs/", "Guides")

    def __init__(self, place: str, route: str, title: str) -> None:
        self.place = place
        self.route = route
        self.title = title


@dataclass(frozen=True)
class Page:
    """One page, read when it is asked for.

    Attributes:
        shelf: The sort of page.
        name: Its name: a kind, an alert, or a guide; ``INDEX`` for the list of a shelf.
        file: Where it lies.
    """

    shelf: Shelf
    name: str
    file: Path

    @property
    def path(self) -> str:
        """The place in the repository, and in a deployment."""
        return f"{self.shelf.place}/{self.name}.md"

    @property
    def route(self) -> str:
        """The path under which the daemon serves it."""
        return self.shelf.route + ("" if self.name == INDEX else self.name)

    @property
    def text(self) -> str:
        """The Markdown, without its pictures: they are not shipped.

        Raises:
            AmpwatchError: If it cannot be read.
        """
        try:
            return _PICTURE.sub("", self.file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            msg = f"expected to read {self.file}, as it was installed, got: {error}; install ampwatch again"
            raise AmpwatchError(msg) from error

    @property
    def title(self) -> str:
        """The heading, without marks."""
        return self.text.partition("\n")[0].lstrip("# ").replace("`", "")

    @property
    def gist(self) -> str:
        """What it is about, in one sentence: the meaning of a kind, what an alert says, else the heading."""
        if self.shelf is Shelf.KINDS and (row := row_of(self.name)) is not None:
            return row.meaning.replace("`", "")
        if self.shelf is Shelf.RUNBOOKS:
            paragraph = self.text.split("\n\n", 2)[1]
            return " ".join(paragraph.split()).partition(" Severity: ")[0]
        return self.title


def pages() -> Mapping[str, Page]:
    """Return the pages by name, those of kinds first; without the lists of shelves.

    Raises:
        AmpwatchError: If the installation is incomplete.
    """
    return {page.name: page for page in by_path().values() if page.name != INDEX}


def by_path() -> Mapping[str, Page]:
    """Return all pages, lists included, by their places in the repository.

    Raises:
        AmpwatchError: If the installation is incomplete.
    """
    docs = shipped("docs")
    found = [
        Page(shelf, file.stem, file)
        for shelf in (Shelf.KINDS, Shelf.RUNBOOKS)
        for file in sorted((docs.parent / shelf.place).glob("*.md"))
    ]
    found += [Page(Shelf.GUIDES, name, docs / f"{name}.md") for name in GUIDES]
    return {page.path: page for page in found}


def resolved(page: Page, link: str) -> tuple[str, str]:
    """Return the place in the repository that a relative link of a page leads to, and its fragment.

    The place is empty for an address on the web and for a place on the page itself.
    """
    target, _, fragment = link.partition("#")
    if not target or "://" in target:
        return "", fragment
    place = posixpath.normpath(posixpath.join(posixpath.dirname(page.path), target))
    return place, fragment


def command(page: Page) -> str:
    """Return the command that prints a page."""
    return "ampwatch explain" if page.name == INDEX else f"ampwatch explain {page.name}"


def more_about(kind: str) -> str:
    """Return the command that prints the page about a kind; empty for a kind of another release."""
    return f"ampwatch explain {kind}" if row_of(kind) is not None else ""


def route_about(kind: str) -> str:
    """Return the path under which a daemon serves the page about a kind; empty as ``more_about``."""
    return f"{Shelf.KINDS.route}{kind}" if row_of(kind) is not None else ""


def portable(page: Page) -> str:
    """Return the Markdown of a page in which pages that are not shipped are named by their address on the web."""
    known = by_path()

    def linked(match: re.Match[str]) -> str:
        words, link = match.groups()
        place, fragment = resolved(page, link)
        # Only of pages: in code f[0](x) looks like a link.
        if not place.endswith(".md") or place in known:
            return match[0]
        anchor = f"#{fragment}" if fragment else ""
        return f"[{words}]({REPOSITORY}{place}{anchor})"

    return _LINK.sub(linked, page.text)


def for_terminal(page: Page) -> str:
    """Return the Markdown of a page for a reader who cannot follow its links.

    A link to another page becomes the command that prints that page.
    """
    known = by_path()

    def linked(match: re.Match[str]) -> str:
        words, link = match.groups()
        other = known.get(resolved(page, link)[0])
        if other is None:
            return match[0]
        if words == f"{other.name}.md":
            return f"`{command(other)}`"
        named = words.replace("`", "") == other.name
        return words if named else f"{words} (`{command(other)}`)"

    return _LINK.sub(linked, _COMMENT.sub("", portable(page)))
