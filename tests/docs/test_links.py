"""Each relative link of each page leads to a file of the repository, and to a heading that it has."""

from __future__ import annotations

from tests.docs.pages import ROOT, pages, tracked
from tests.report.links import dead_links, links
from tools.site.hooks import WEB


def test_no_link_of_any_page_leads_nowhere() -> None:
    """README, docs, examples, runbooks, decisions: to files, folders and headings."""
    files = dict.fromkeys(tracked(), "") | pages()

    assert len(pages()) > 150
    assert list(dead_links(files)) == []


def test_no_address_of_a_file_on_the_web_is_that_of_a_file_that_is_gone() -> None:
    """Pages that are shipped name other pages by their address."""
    gone = [
        f"{page}: {link}"
        for page, text in pages().items()
        for link in links(text)
        if link.startswith(WEB) and not (ROOT / link[len(WEB) :].partition("#")[0]).exists()
    ]

    assert gone == []
