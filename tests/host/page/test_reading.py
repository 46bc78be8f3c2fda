"""Pages to read, as HTML."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest

from ampwatch.host.page.reading import ENDED, list_html, page_html
from ampwatch.report.pages import INDEX, REPOSITORY, Page, Shelf, by_path

if TYPE_CHECKING:
    from pathlib import Path


class Reader(HTMLParser):
    """Reads a page as a browser does: elements, links, places that can be linked to, text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.attributes: set[str] = set()
        self.links: list[str] = []
        self.sources: list[str] = []
        self.places: set[str] = set()
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.elements.add(tag)
        self.attributes |= given.keys()
        if tag == "a":
            self.links.append((given["href"] or "").removeprefix(".."))
        elif "href" in given or "src" in given:
            self.sources.append(given.get("href") or given.get("src") or "")
        if "id" in given:
            self.places.add(given["id"] or "")

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def served() -> dict[str, Reader]:
    """All pages, by their routes."""
    known = by_path()
    listed = {shelf.route: Reader(list_html(shelf, known)) for shelf in Shelf}
    return listed | {
        page.route: Reader(page_html(page, known)) for page in known.values() if page.name != INDEX
    }


def made_up(tmp_path: Path, text: str) -> Reader:
    file = tmp_path / "divergence.md"
    file.write_text(text)
    return Reader(page_html(Page(Shelf.KINDS, "divergence", file), by_path()))


def test_every_link_leads_to_a_page_and_a_heading_that_are_served(
    served: dict[str, Reader],
) -> None:
    """Or to the web, to the repository or elsewhere."""
    dead = []
    for route, reader in served.items():
        for link in reader.links:
            if "://" in link or link in ("/", ENDED.route):
                continue
            target, _, fragment = link.partition("#")
            page = served.get(target or route)
            if page is None or (fragment and fragment not in page.places):
                dead.append(f"{route}: {link}")

    assert dead == []
    assert len(served) > 90


def test_every_page_is_in_a_list(served: dict[str, Reader]) -> None:
    """Whoever does not know the name finds it."""
    for shelf in Shelf:
        of_shelf = {route for route in served if route.startswith(shelf.route)} - {shelf.route}
        assert of_shelf <= set(served[shelf.route].links)


def test_nothing_is_loaded_from_elsewhere(served: dict[str, Reader]) -> None:
    """The daemon may be on a machine without a network, and tells nobody who reads."""
    for reader in served.values():
        assert {source.partition(":")[0] for source in reader.sources} == {
            "data",
            "../static/style.css",
            "../static/reading.css",
            "../static/reading.js",
        }


def test_markup_in_a_page_does_not_get_through(tmp_path: Path) -> None:
    """Neither an element nor a script in an address; code shows it as it is written."""
    reader = made_up(
        tmp_path,
        "# A <b>title</b>\n\n<script>alert(1)</script>\n\n<!-- generated -->\n\n"
        "One <img src=x onerror=alert(1)> word, `<i>code</i>`,"
        " [a](javascript:alert(1)) [b](<data:text/html,x>)\n",
    )

    assert {"b", "img", "i"} & reader.elements == set()
    assert "onerror" not in reader.attributes
    assert "alert(1)" not in reader.text.replace("(javascript:alert(1))", "")
    assert "generated" not in reader.text
    assert "<i>code</i>" in reader.text
    assert [link for link in reader.links if link.startswith(("javascript", "data"))] == []


def test_of_a_difference_what_goes_and_what_comes_are_marked(tmp_path: Path) -> None:
    """Its text stays as it is written; other code has no marks, whatever its lines begin with."""
    change = '--- a\n+++ a\n@@ -1 +1 @@\n\n-x = "<b>"\n+x = 2\n y\n'
    reader = made_up(tmp_path, f"# x\n\n```diff\n{change}```\n")
    other = made_up(tmp_path, f"# x\n\n```text\n{change}```\n")

    assert {"del", "ins"} <= reader.elements
    assert "b" not in reader.elements
    assert {"del", "ins"} & other.elements == set()
    assert change in reader.text
    assert change in other.text


def test_a_link_out_of_what_is_served_leads_to_the_repository(tmp_path: Path) -> None:
    """Deployment files lie beside the pages on disk, and are not the daemon's to serve."""
    reader = made_up(
        tmp_path,
        "# x\n\n[a](../../deploy/systemd) [b](../operate.md#how) [c](README.md)"
        " [d](#x) [e](https://a.example/)\n",
    )

    assert reader.links[-5:] == [
        f"{REPOSITORY}deploy/systemd",
        "/docs/operate#how",
        "/explain/",
        "#x",
        "https://a.example/",
    ]


def test_the_heading_is_the_title_and_the_sort_of_page_is_marked(
    served: dict[str, Reader],
) -> None:
    """In the tab of the browser, and in the bar above."""
    text = served["/runbooks/AmpwatchRunFailed"].text

    assert text.startswith("\nAmpwatchRunFailed · ampwatch")
    assert "Kinds of findings" in text
    assert "aria-current" in served["/runbooks/AmpwatchRunFailed"].attributes
