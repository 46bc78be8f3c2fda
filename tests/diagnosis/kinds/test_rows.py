"""Rows of kinds: what each has to say, held against the pages and against one another."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ampwatch.diagnosis.kinds import tables
from ampwatch.diagnosis.kinds.kind import Kind, When
from ampwatch.diagnosis.kinds.registry import KINDS, ROWS, row_of

REPOSITORY = Path(__file__).parents[3]

of_each_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.slug)


@of_each_row
def test_a_row_has_its_page_and_the_severity_that_the_page_promises(row: Kind) -> None:
    """A page is named after its kind; what its program is found as, a finding of the kind may be."""
    page = (REPOSITORY / row.page).read_text(encoding="utf-8")
    promised = re.findall(r"^Finding: kind `?(\w+)`?(?:.*severity `?(\w+)`?)?", page, re.MULTILINE)

    assert promised, page[:200]
    assert {kind for kind, _ in promised} == {row.slug}
    assert {severity for _, severity in promised if severity} <= {s.value for s in row.severities}


@of_each_row
def test_a_row_speaks_in_sentences_that_fit_where_they_stand(row: Kind) -> None:
    """Advice is read on its own; a meaning is a cell of a table; both in any locale."""
    assert row.advice.endswith(".")
    # An alert has its first sentence as what to do; of these two kinds no alert speaks.
    is_order = row.advice.split()[0] not in {"Autocast", "One", "The", "ampwatch", "bfloat16"}
    assert is_order or row.slug in {"api_error", "no_memory_gain"}
    assert row.advice.isascii()
    assert not row.meaning.endswith(".")
    assert "|" not in row.meaning
    assert len(set(row.severities)) == len(row.severities) > 0


@of_each_row
def test_no_kind_is_before_its_own_cause(row: Kind) -> None:
    """Of two kinds that explain one another before they are reported, neither would be a root.

    Of two findings of one kind the first is: it may explain those that come after it.
    """
    seen: set[str] = set()
    ahead = [row.slug]
    while ahead:
        each = row_of(ahead.pop())
        assert each is not None
        causes = {c.kind for c in each.explained_by if c.when is When.BEFORE} - {each.slug}
        assert row.slug not in causes
        ahead += sorted(causes - seen)
        seen |= causes


def test_the_tables_in_the_documentation_are_those_of_the_rows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Check that ``make check`` runs as well, so that nobody learns it only there."""
    assert tables.main(["--check"]) == 0
    assert capsys.readouterr().err == ""


def test_the_order_of_release_is_another_one_than_that_of_the_pages() -> None:
    """Both are complete: what is released keeps its place, whatever is put before it on a page."""
    assert [row.slug for row in ROWS] != list(KINDS)
    assert sorted(row.slug for row in ROWS) == sorted(KINDS)
    assert [row_of(slug).number for slug in KINDS] == list(range(len(KINDS)))  # type: ignore[union-attr]


def test_a_page_without_the_comments_is_refused(tmp_path: Path) -> None:
    """Else the table would silently be left out."""
    with pytest.raises(ValueError, match="expected the lines"):
        tables.inserted("# A page\n", "| a |\n")


def test_what_stands_around_a_table_is_left_alone() -> None:
    """To the last byte."""
    page = f"before\n\n{tables.BEGIN}\n\n| old |\n\n{tables.END}\n\nbehind\n"

    assert tables.inserted(page, "| new |\n") == page.replace("old", "new")
