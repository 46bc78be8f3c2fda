"""Pages that are shipped: one for each kind and alert, and none that leads to a file nobody has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ampwatch import shipped
from ampwatch.diagnosis.kinds.registry import KINDS
from ampwatch.errors import AmpwatchError
from ampwatch.report.pages import (
    GUIDES,
    REPOSITORY,
    Page,
    Shelf,
    by_path,
    for_terminal,
    more_about,
    pages,
    route_about,
)
from tests.report.links import links

ROOT = Path(__file__).parents[2]


def test_each_kind_and_each_alert_has_a_page() -> None:
    """And each page is about something that there is."""
    rules = (ROOT / "dashboards/alerts/ampwatch.rules.yml").read_text()
    alerts = set(re.findall(r"^ *- alert: (\w+)$", rules, re.MULTILINE))
    names = {
        shelf: {page.name for page in pages().values() if page.shelf is shelf} for shelf in Shelf
    }

    assert names[Shelf.KINDS] == set(KINDS)
    assert names[Shelf.RUNBOOKS] == alerts
    assert names[Shelf.GUIDES] == set(GUIDES)


def test_a_page_is_told_in_one_sentence() -> None:
    """A kind by its meaning, an alert by what it says, a guide by its heading."""
    assert pages()["forward_overflow"].gist == "an op turns finite inputs into infinity"
    assert pages()["AmpwatchStraggler"].gist == "One rank makes all others wait."
    assert pages()["using"].gist == "Use it in a training"
    for page in pages().values():
        assert 3 < len(page.gist) < 120, page.name
        assert "`" not in page.gist, page.name


def test_no_page_that_is_shipped_has_a_picture() -> None:
    """It would be a hole; pages with pictures stay in the repository."""
    for page in by_path().values():
        assert "![" not in page.text, page.path


@pytest.mark.parametrize("name", ["forward_overflow", "AmpwatchLossScaleCollapsed", "diagnosis"])
def test_in_a_terminal_a_link_to_a_page_is_the_command_that_prints_it(name: str) -> None:
    """No relative path is left: the reader has no file there."""
    text = for_terminal(pages()[name])

    assert [link for link in links(text) if link.endswith(".md") and "://" not in link] == []
    assert "<!--" not in text


def test_a_link_is_named_by_its_words_and_by_its_command(tmp_path: Path) -> None:
    """Where the words are the name already, they are enough."""
    file = tmp_path / "divergence.md"
    file.write_text(
        "A [way\nround](../diagnosis.md#the-ladder), [`forward_overflow`](forward_overflow.md),"
        " [all](README.md), [gpu.md](../gpu.md), [out](https://a.example/b.md), [cost](../cost.md#a), x[0](y).\n"
    )

    assert for_terminal(Page(Shelf.KINDS, "divergence", file)) == (
        "A way\nround (`ampwatch explain diagnosis`), `forward_overflow`,"
        f" all (`ampwatch explain`), `ampwatch explain gpu`, [out](https://a.example/b.md), [cost]({REPOSITORY}docs/cost.md#a), x[0](y).\n"
    )


def test_of_a_kind_of_another_release_there_is_no_page() -> None:
    """A report may have been written by a newer ampwatch."""
    assert (more_about("divergence"), route_about("divergence")) == (
        "ampwatch explain divergence",
        "/explain/divergence",
    )
    assert (more_about("invented"), route_about("invented")) == ("", "")


def test_a_page_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    """In words, as an incomplete installation is."""
    with pytest.raises(AmpwatchError, match="install ampwatch again"):
        Page(Shelf.GUIDES, "settings", tmp_path / "settings.md").text  # noqa: B018


def test_without_any_page_that_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code was copied without what belongs to it."""
    monkeypatch.setattr(shipped, "_PACKAGE", tmp_path / "ampwatch")

    with pytest.raises(AmpwatchError, match=r"expected the docs in .* install ampwatch again"):
        pages()
