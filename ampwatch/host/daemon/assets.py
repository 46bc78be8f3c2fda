"""The files of the page and the pages to read: all known by name beforehand.

A request can therefore name no other file.
"""

from __future__ import annotations

import gzip
import hashlib
import logging
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from ampwatch.errors import AmpwatchError
from ampwatch.host.page.reading import list_html, page_html
from ampwatch.report import pages

if TYPE_CHECKING:
    from collections.abc import Callable

STATIC = Path(__file__).parents[1] / "page" / "static"

CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""The kinds of files a page has; a file of another kind in the directory is not served."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Asset:
    """Something to serve that never changes, made when it is first asked for."""

    make: Callable[[], bytes]
    content_type: str

    @cached_property
    def packed(self) -> bytes:
        """The content, gzipped once: a fourth of it."""
        # Without the time of packing, so that the entity tag is the same after a restart.
        return gzip.compress(self.make(), mtime=0)

    @cached_property
    def etag(self) -> str:
        """The entity tag: it changes with the content."""
        return f'"{hashlib.sha256(self.packed).hexdigest()[:32]}"'


def find_assets() -> dict[str, Asset]:
    """Return the files of the page, by path of the URL."""
    files = {f"/static/{p.name}": p for p in STATIC.iterdir() if p.suffix in CONTENT_TYPES}
    files["/"] = files.pop("/static/index.html")
    return {url: Asset(path.read_bytes, CONTENT_TYPES[path.suffix]) for url, path in files.items()}


def find_pages() -> dict[str, Asset]:
    """Return the pages to read, by path of the URL; none if the installation lacks them."""
    try:
        known = pages.by_path()
    except AmpwatchError as error:
        # What runs do is shown nevertheless, which is what the daemon is for.
        logger.warning("no pages about kinds of findings and alerts are served: %s", error)
        return {}
    found = {shelf.route: _page(partial(list_html, shelf, known)) for shelf in pages.Shelf}
    for page in known.values():
        if page.name != pages.INDEX:
            # Under the name of the file as well: alerts link to it, wherever their runbooks are.
            found[page.route] = found[f"{page.route}.md"] = _page(partial(page_html, page, known))
    return found


def _page(html: Callable[[], str]) -> Asset:
    return Asset(lambda: html().encode(), CONTENT_TYPES[".html"])
