"""Pages of Markdown as HTML, in the style of the page: what a finding or an alert means, and guides.

The pages are ours, and are treated as if they were not: markup in them is left out, and nothing is
loaded from elsewhere.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ampwatch.report.markup import Markup, element, joined
from ampwatch.report.pages import INDEX, REPOSITORY, Page, Shelf, resolved

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from markdown_it.token import Token

ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Cpath"
    " d='M1 11h3V5h4v6h4V2h3' fill='none' stroke='%234577c9' stroke-width='2'/%3E%3C/svg%3E"
)


class Link(NamedTuple):
    """A page that others link to.

    Attributes:
        title: Its heading.
        route: Path under which the daemon serves it.
    """

    title: str
    route: str


ENDED = Link("Ended runs", "/ended/")


def page_html(page: Page, known: Mapping[str, Page]) -> str:
    """Return a page as HTML.

    Args:
        page: The page.
        known: All pages, by their places in the repository: links to these stay on this server.

    Raises:
        AmpwatchError: If it cannot be read.

    Cost:
        5 ms, and 30 ms more for the first one.
    """
    return framed(page.title, page.shelf.route, _body(page, page.text, known))


def list_html(shelf: Shelf, known: Mapping[str, Page]) -> str:
    """Return the list of a shelf as HTML: the page that lists the others, or else their headings.

    Raises:
        AmpwatchError: If a page cannot be read.
    """
    pages = {page.name: page for page in known.values() if page.shelf is shelf}
    if INDEX in pages:
        return page_html(pages[INDEX], known)
    lines = [
        element("li", element("a", page.title, href=_from_page(page.route)))
        for page in pages.values()
    ]
    return framed(
        shelf.title, shelf.route, joined(element("h1", shelf.title), element("ul", *lines))
    )


def anchor(heading: str) -> str:
    """Return the fragment that leads to a heading, as the pages write it and GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def _body(page: Page, text: str, known: Mapping[str, Page]) -> Markup:
    # On first use: a daemon whose pages nobody reads needs no Markdown.
    from markdown_it import MarkdownIt  # noqa: PLC0415

    parser = MarkdownIt("commonmark").enable("table")
    # Markup would pass through as it is; here these are the comments of what is generated.
    for rule in ("html_block", "html_inline"):
        parser.add_render_rule(rule, lambda *_: "")
    parser.add_render_rule("fence", _code)
    tokens = parser.parse(text)
    for place, token in enumerate(tokens):
        if token.type == "heading_open":
            token.attrSet("id", anchor(_plain(tokens[place + 1])))
        for inner in token.children or ():
            if inner.type == "link_open":
                inner.attrSet("href", _address(page, str(inner.attrGet("href")), known))
    return Markup(parser.renderer.render(tokens, parser.options, {}))


def _code(_: object, tokens: Sequence[Token], place: int, *__: object) -> str:
    """Return a block of code; of a difference, what goes and what comes are elements of their own."""
    token = tokens[place]
    lines = token.content.splitlines(keepends=True)
    if token.info == "diff":
        names = {"-": "del", "+": "ins"}
        marked = [element(names[x[0]], x) if x[0] in names else x for x in lines]
        return element("pre", element("code", *marked, class_="language-diff")) + "\n"
    kind = f"language-{token.info}" if token.info else None
    return element("pre", element("code", token.content, class_=kind)) + "\n"


def _plain(token: Token) -> str:
    return "".join(
        inner.content for inner in token.children or () if inner.type in ("text", "code_inline")
    )


def _address(page: Page, link: str, known: Mapping[str, Page]) -> str:
    """Return where a link leads: to a page here, or to its address on the web."""
    place, fragment = resolved(page, link)
    if not place:
        return link
    other = known.get(place)
    address = f"{REPOSITORY}{place}" if other is None else _from_page(other.route)
    return f"{address}#{fragment}" if fragment else address


def _from_page(route: str) -> str:
    """Return a route as a page to read links to it, below whatever path a reverse proxy has put the daemon.

    Each page is one directory below the page of runs.
    """
    return f"..{route}"


def framed(title: str, route: str, body: Markup) -> str:
    """Return a page one directory below that of runs, with links to all others.

    Args:
        title: What it is called.
        route: The list that it is of, or it itself.
        body: What is in it.
    """
    lists: Sequence[Markup] = [
        element(
            "a",
            each.title,
            href=_from_page(each.route),
            aria_current="true" if each.route == route else None,
        )
        for each in (*Shelf, ENDED)
    ]
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{title} · ampwatch"),
        Markup(f'<link rel="icon" href="{ICON}"/>'),
        Markup('<link rel="stylesheet" href="../static/style.css"/>'),
        Markup('<link rel="stylesheet" href="../static/reading.css"/>'),
        Markup('<script type="module" src="../static/reading.js"></script>'),
    )
    bar = element(
        "header",
        element("p", element("a", "ampwatch", href=_from_page("/")), class_="wordmark"),
        element("nav", *lists, aria_label="Pages"),
        class_="bar",
    )
    content = element("body", bar, element("main", body, class_="prose"))
    return f"<!doctype html>\n{element('html', head, content, lang='en')}\n"
