"""The site: every page behind a door, links as in the repository, and nothing from a network."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import yaml

from tests.docs.pages import ROOT, pages
from tests.report.links import anchors
from tools.site.hooks import BESIDE, WEB, expanded, fetched, followed, rewritten, slug

DOORS = ("Train", "Operate", "Change")


def config() -> dict[str, Any]:
    """Return the configuration of the site."""
    kept: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    return kept


def named(nav: Any) -> list[str]:
    """Return the pages of a navigation."""
    if isinstance(nav, str):
        return [nav]
    entries = nav.values() if isinstance(nav, dict) else nav
    return [page for entry in entries for page in named(entry)]


def test_every_page_stands_behind_one_door() -> None:
    """A page of docs/, and those beside it that the site takes in; each once."""
    nav = expanded(config()["nav"], ROOT / "docs")
    wanted = {page[len("docs/") :] for page in pages() if page.startswith("docs/")}

    assert sorted(named(nav)) == sorted(wanted | set(BESIDE.values()))
    assert [title for entry in nav for title in entry] == ["Start", *DOORS]


@pytest.mark.parametrize(
    ("link", "source", "leads"),
    [
        ("metrics.md#labels", "operate.md", "metrics.md#labels"),
        ("../gpu.md", "runbooks/AmpwatchGpuFault.md", "../gpu.md"),
        ("../benchmarks/README.md#gpu", "gpu.md", "benchmarks.md#gpu"),
        ("../../deploy/systemd", "runbooks/README.md", f"{WEB}deploy/systemd"),
        (f"{WEB}docs/report.md", "diagnosis.md", "report.md"),
        (f"{WEB}docs/decisions/0002-a-ring-file-per-process.md", "diagnosis.md", "decisions/0002-a-ring-file-per-process.md"),
        ("docs/decisions/0050-what-ci-installs.md", "contributing.md", "decisions/0050-what-ci-installs.md"),
        ("../docs/diagnoses/README.md", "examples.md", "diagnoses/README.md"),
        ("../README.md", "cost.md", "index.md"),
        ("decisions", "support.md", f"{WEB}docs/decisions"),
        ("#here", "cost.md", "#here"),
        ("https://pytorch.org", "cost.md", "https://pytorch.org"),
    ],
)  # fmt: skip
def test_a_link_leads_where_it_leads_in_the_repository(link: str, source: str, leads: str) -> None:
    """To a page of the site where there is one, else to the file on the web."""
    assert followed(link, source) == leads


def test_a_link_to_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """As a warning, which fails a strict build; the text stays as it is."""
    text = "A [word](nowhere.md)."

    with caplog.at_level(logging.WARNING):
        assert rewritten(text, "cost.md") == text

    assert "docs/nowhere.md" in caplog.text


def test_links_in_code_are_no_links() -> None:
    """In a block, in a line; words of a link that are code are."""
    text = "```\nx[0](../gpu.md)\n```\n`a[1](../b.md)` and [`gpu`](../benchmarks/README.md).\n"

    assert rewritten(text, "cost.md") == text.replace(
        "](../benchmarks/README.md)", "](benchmarks.md)"
    )


def test_fragments_are_those_of_the_repository() -> None:
    """Of every heading of a page with difficult ones."""
    text = pages()["docs/cost.md"] + "\n## `a_b`: c -- d, e's\n"
    headings = [line.lstrip("# ") for line in text.splitlines() if line.startswith("#")]

    assert {slug(heading, "-") for heading in headings} == anchors(text)


@pytest.mark.parametrize(
    ("html", "is_fetched"),
    [
        ('<script src="https://cdn.example/x.js"></script>', True),
        ('<link rel="stylesheet" href="//fonts.example/a.css">', True),
        ('<link href="https://fonts.example" rel="preconnect">', True),
        ('<img alt="a" src="https://img.example/x.png">', True),
        ('<img src="images/x.png"><script src="assets/x.js"></script>', False),
        ('<a href="https://pytorch.org">PyTorch</a>', False),
        ('<link rel="canonical" href="https://ampwatch.example/">', False),
    ],
)
def test_what_a_browser_would_fetch_elsewhere_is_found(html: str, *, is_fetched: bool) -> None:
    """A link that somebody follows is nothing that is fetched."""
    assert bool(fetched(html)) == is_fetched


def test_the_theme_fetches_nothing() -> None:
    """No fonts of others, no statistics, no repository whose stars would be counted."""
    site = config()

    assert site["theme"]["font"] is False
    assert site["strict"] is True
    assert "repo_url" not in site
    assert "analytics" not in site.get("extra", {})
    assert site["plugins"] == ["search"]
