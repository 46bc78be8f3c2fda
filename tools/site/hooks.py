"""Hooks of MkDocs: pages from beside `docs/`, links as they are in the repository, and nothing from a network.

The pages are written for a reader of the repository. A link that leaves `docs/` leads to a file there; on the site it
leads to the page that was made of that file, or to the file on the web. What is not there fails the build.
"""

from __future__ import annotations

import logging
import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
WEB = "https://github.com/ampwatch/ampwatch/blob/main/"
"""Address of what is no page of the site."""

BESIDE = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "examples/README.md": "examples.md",
    "benchmarks/README.md": "benchmarks.md",
}
"""Pages of the site that are no files of `docs/`, by the file that they are made of."""

FRONT = "index.md"
"""The front page. README.md is that of the repository."""

_FENCE = re.compile(r"^( *)(`{3,}).*?^\1\2 *$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?P<before>\]\()(?P<link>[^()\s]+)(?P<after>\))")
_CODE = re.compile(r"`[^`\n]+`")
_FETCHED = re.compile(
    r"<(?:script|img|iframe|source|audio|video)\b[^>]*?\bsrc=[\"']?(?:https?:)?//[^>]*"
    r"|<link\b(?=[^>]*\brel=[\"']?(?:stylesheet|icon|preconnect|preload))[^>]*?\bhref=[\"']?(?:https?:)?//[^>]*",
    re.IGNORECASE,
)
_log = logging.getLogger("mkdocs.hooks.site")


def slug(heading: str, separator: str) -> str:
    """Return the fragment of a heading, as GitHub makes it: one mark for each space."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", separator)


def place_of(source: str) -> str:
    """Return the file of the repository that a page of the site is made of."""
    return next((file for file, page in BESIDE.items() if page == source), f"docs/{source}")


def page_of(place: str) -> str:
    """Return the page of the site that a file of the repository became; empty if it became none."""
    if place in BESIDE:
        return BESIDE[place]
    return place[len("docs/") :] if place.startswith("docs/") else ""


def followed(link: str, source: str, root: Path = ROOT) -> str:
    """Return where a link of a page leads on the site.

    Args:
        link: The link, as it stands in the file.
        source: The page, as the site names it.
        root: The repository.

    Raises:
        FileNotFoundError: If there is no such file in the repository.
    """
    target, mark, fragment = link.partition("#")
    if target.startswith(WEB):
        place = target[len(WEB) :]
    elif not target or "://" in target or target.startswith("mailto:"):
        return link
    else:
        place = posixpath.normpath(posixpath.join(posixpath.dirname(place_of(source)), target))
    if place == "README.md":
        return posixpath.relpath(FRONT, posixpath.dirname(source) or ".")
    file = root / place
    if not file.exists():
        raise FileNotFoundError(place)
    page = page_of(place)
    if not page or file.is_dir():
        return WEB + place + mark + fragment
    return posixpath.relpath(page, posixpath.dirname(source) or ".") + mark + fragment


def rewritten(text: str, source: str, root: Path = ROOT) -> str:
    """Return a page with its links as the site needs them; those in code stay as they are.

    A link that leads nowhere is logged as a warning, which fails a strict build.
    """

    def led(match: re.Match[str]) -> str:
        try:
            return match["before"] + followed(match["link"], source, root) + match["after"]
        except FileNotFoundError as error:
            _log.warning("%s: expected a file of the repository, got %s", source, error)
            return match[0]

    parts, end = [], 0
    for code in sorted([*_FENCE.finditer(text), *_CODE.finditer(text)], key=re.Match.start):
        # Code within a fence has been passed with it; code in the words of a link has not ended it.
        if code.start() < end:
            continue
        parts += [_LINK.sub(led, text[end : code.start()]), code[0]]
        end = code.end()
    # A link whose words are code stands on both sides of it, so its end is followed there.
    return "".join([*parts, _LINK.sub(led, text[end:])])


def expanded(nav: Any, docs: Path) -> Any:
    """Return the navigation with each folder in the place of its name, the list of its pages first."""
    if isinstance(nav, dict):
        return {title: expanded(entries, docs) for title, entries in nav.items()}
    if not isinstance(nav, list):
        return nav
    found: list[Any] = []
    for entry in nav:
        if isinstance(entry, str) and entry.endswith("/"):
            pages = sorted(page.name for page in (docs / entry).glob("*.md"))
            found += [entry + page for page in sorted(pages, key=lambda p: p != "README.md")]
        else:
            found.append(expanded(entry, docs))
    return found


def on_config(config: Any) -> Any:
    """Expand the folders of the navigation, and make fragments as GitHub does."""
    config["nav"] = expanded(config["nav"], Path(config["docs_dir"]))
    config["mdx_configs"].setdefault("toc", {})["slugify"] = slug
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that lie beside `docs/`."""
    from mkdocs.structure.files import File  # noqa: PLC0415 - in .venv-site alone

    for file, page in BESIDE.items():
        text = (ROOT / file).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Have the links of a page lead where they lead in the repository; the front page has room for its doors."""
    if page.file.src_uri == FRONT:
        page.meta["hide"] = ["navigation", "toc"]
    return rewritten(markdown, page.file.src_uri)


def fetched(html: str) -> list[str]:
    """Return the parts of a page for which a browser would ask another server."""
    return _FETCHED.findall(html)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Refuse a page that asks a network for anything."""
    for part in fetched(output):
        _log.warning(
            "%s: expected nothing from another server, got %s", page.file.src_uri, part[:120]
        )
    return output
