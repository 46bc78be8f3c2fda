"""The files of the page: known by name beforehand, so that a request cannot name any other."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

STATIC = Path(__file__).parents[1] / "page" / "static"
PLOTLY = "plotly.min.js"

CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""The kinds of files a page has; a file of another kind in the directory is not served."""


@dataclass(frozen=True)
class Asset:
    """One file, read when it is first asked for."""

    path: Path

    @property
    def content_type(self) -> str:
        """The media type, by the suffix."""
        return CONTENT_TYPES[self.path.suffix]

    @cached_property
    def packed(self) -> bytes:
        """The content, gzipped once: Plotly has 4.5 MB, and 1.4 MB so."""
        # Without the time of packing, so that the entity tag is the same after a restart.
        return gzip.compress(self.path.read_bytes(), mtime=0)

    @cached_property
    def etag(self) -> str:
        """The entity tag: it changes with the content."""
        return f'"{hashlib.sha256(self.packed).hexdigest()[:32]}"'


def find_assets() -> dict[str, Asset]:
    """Return the files of the page, by path of the URL.

    Plotly is served from its own package, if that is installed; it is not imported.
    """
    files = {f"/static/{p.name}": p for p in STATIC.iterdir() if p.suffix in CONTENT_TYPES}
    files["/"] = files.pop("/static/index.html")
    plotly = importlib.util.find_spec("plotly")
    if plotly is not None and plotly.origin is not None:
        script = Path(plotly.origin).parent / "package_data" / PLOTLY
        if script.is_file():
            files[f"/static/{PLOTLY}"] = script
    return {url: Asset(path) for url, path in files.items()}
