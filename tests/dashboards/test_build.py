"""Builders of the dashboards: nothing stale, nothing on top of something else, nothing unsaid."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest

if sys.version_info < (3, 11):
    pytest.skip(
        "the dashboards are built with Python 3.11 or newer: grafana-foundation-sdk wants it",
        allow_module_level=True,
    )

from pathlib import Path

from ampwatch.report.verdict import Level
from dashboards.source import __main__ as program
from dashboards.source.__main__ import BOOK
from dashboards.source.fields import (
    BAD,
    GOOD,
    NEUTRAL,
    NOTE,
    WARN,
)
from dashboards.source.states import ADVICE_WORDS, HEALTH_WORDS
from tests.dashboards import documents
from tests.dashboards.documents import drawn as panels


def test_what_is_committed_is_what_the_code_makes() -> None:
    assert program.differences(program.DIRECTORY) == {}


def test_a_dashboard_that_was_edited_by_hand_is_reported_and_put_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The check ends with 1 and says what to do; writing ends it."""
    monkeypatch.setattr(program, "DIRECTORY", tmp_path)

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["dashboards", *arguments])
        status = program.main()
        return status, capsys.readouterr().err

    assert run("--check")[0] == 1
    assert run() == (0, "")
    assert run("--check") == (0, "")
    file = tmp_path / "ampwatch-run.json"
    file.write_text(file.read_text().replace("now-1h", "now-2h"))
    (tmp_path / "ampwatch-old.json").write_text("{}")
    status, said = run("--check")
    assert status == 1
    assert "ampwatch-run.json" in said
    assert "ampwatch-old.json" in said
    assert "make dashboards" in said
    assert "ampwatch-overview.json" not in said


@pytest.mark.parametrize("name", BOOK)
def test_every_panel_says_what_it_shows_what_is_good_and_what_to_do(name: str) -> None:
    for shown in panels(BOOK[name]().plain()):
        shows, good, act, metric = shown["description"].split("\n\n")
        assert len(shows.split()) > 3, shown["title"]
        assert good.startswith("**Good:** ")
        assert act.startswith("**Otherwise:** ")
        assert metric.startswith("Metric: `")


@pytest.mark.parametrize("name", BOOK)
def test_the_words_of_an_empty_tile_can_be_read(name: str) -> None:
    """A stat writes them in one line, in letters as small as that takes: 14 a column are 9 pixels."""
    for shown in panels(BOOK[name]().plain()):
        if shown["type"] == "stat":
            words_of_it = shown["fieldConfig"]["defaults"]["noValue"]
            assert len(words_of_it) <= 14 * shown["gridPos"]["w"], shown["title"]


def _data_links(value: Any) -> list[dict[str, Any]]:
    """Every link of a value, wherever it stands."""
    if isinstance(value, list):
        return [link for item in value for link in _data_links(item)]
    if not isinstance(value, dict):
        return []
    own = [value] if value.get("url") else []
    return own + [link for item in value.values() for link in _data_links(item)]


@pytest.mark.parametrize("name", BOOK)
def test_links_out_of_grafana_lead_to_the_docs_and_to_daemons(name: str) -> None:
    for link in _data_links(BOOK[name]().plain()):
        docs = "https://github.com/ampwatch/ampwatch/blob/main/docs/"
        daemon = 'http://${__data.fields["Machine"]}/'
        assert link["url"].startswith(("/d/ampwatch-", docs, f"{daemon}#run=", f"{daemon}explain/"))


@pytest.mark.parametrize("name", BOOK)
def test_an_empty_cell_does_not_say_what_an_empty_table_says(name: str) -> None:
    for shown in panels(BOOK[name]().plain()):
        if shown["type"] == "table":
            said = {
                override["matcher"]["options"]: item["value"]
                for override in shown["fieldConfig"]["overrides"]
                for item in override["properties"]
                if item["id"] == "noValue"
            }
            titles = shown["transformations"][1]["options"]["renameByName"].values()
            assert said.keys() >= set(titles), shown["title"]


def test_every_finding_has_advice_and_a_page_behind_it() -> None:
    pages = {file.stem for file in (program.DIRECTORY.parent / "docs" / "diagnoses").glob("*.md")}

    kinds = set(ADVICE_WORDS.options)

    assert kinds <= pages
    assert all(result.text.endswith(".") for result in ADVICE_WORDS.options.values())


def test_a_state_has_the_word_and_the_colour_of_the_page() -> None:
    """The page of the daemon and the dashboards tell of one run at the same time."""
    style = (documents.ROOT / "ampwatch/host/page/static/style.css").read_text(encoding="utf-8")
    roles = {"critical": BAD, "warning": WARN, "accent": NOTE, "muted": NEUTRAL}
    told = {
        name: roles[role]
        for selectors, role in re.findall(
            r"^(\.level\[.*?) \{ color: var\(--(\w+)\)", style, re.MULTILINE
        )
        for name in re.findall(r'data-level="([\w ]+)"', selectors)
    }

    for level in Level:
        shown = next(x for x in HEALTH_WORDS.options.values() if x.text == level.value)
        assert shown.color == told.get(level.value, GOOD), level
