"""Rows of kinds: what each has to say, held against the pages and against one another; places and numbers in words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ampwatch.diagnosis.kinds import tables
from ampwatch.diagnosis.kinds.kind import Kind, When
from ampwatch.diagnosis.kinds.registry import KINDS, ROWS, UNKNOWN, certainty, row_of
from ampwatch.report import accounts
from ampwatch.report.glossary import terms_in
from ampwatch.wire.records import Finding, Severity

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


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_says_how_sure_it_is(kind: str) -> None:
    """In a word and a sentence; a kind of another release says that it is unknown."""
    sure = certainty(kind)

    assert sure.word in ("certain", "very likely", "likely")
    assert sure.why.isascii()
    assert not sure.why.endswith(".")
    assert certainty(f"{kind}_of_tomorrow") is UNKNOWN


def test_terms_come_in_the_order_of_the_text_and_once() -> None:
    """Whatever text they are in."""
    terms = [t.name for t in terms_in("NaN after an overflow", "use autocast", "an overflow")]

    assert terms == ["NaN", "overflow", "autocast"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-3.0, "-3"),
        (65536.0, "65536 (2^16)"),
        (2.0**-40, "9.094947e-13 (2^-40)"),
        (8.0, "8"),
        (0.1, "0.1"),
        (1 / 3, "0.3333333"),
        (float("inf"), "infinity"),
        (float("-inf"), "-infinity"),
        (float("nan"), "NaN"),
        (1e300, "1e+300"),
    ],
)
def test_numbers_keep_the_digits_that_matter(value: float, text: str) -> None:
    """Powers of two are recognised."""
    assert accounts.figure(value) == text


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], ""),
        ([3], "rank 3"),
        ([2, 0, 1], "ranks 0-2"),
        ([0, 2, 3, 9], "ranks 0, 2-3, 9"),
        (range(0, 40, 2), "ranks 0, 2, 4, 6, 8, 10, 12, 14, 12 more"),
    ],
)
def test_ranks_are_reported_in_spans(numbers: list[int], text: str) -> None:
    """A thousand of them fit on a line."""
    assert accounts.ranks(numbers) == text


@pytest.mark.parametrize(
    ("where", "place", "path"),
    [
        ("", "the model itself", ["the model"]),
        ("a.b.2", "module a.b.2", ["a", "b", "2"]),
        ("param:a.weight", "parameter a.weight", ["a", "weight"]),
        ("buffer:bn.mean", "buffer bn.mean", ["bn", "mean"]),
        ("optimizer:1", "optimizer 1", []),
        ("loss", "the loss, outside the model", []),
        ("api", "the training loop", []),
        ("env", "the machine and its settings", []),
    ],
)
def test_a_place_is_reported_in_words_and_as_a_way(where: str, place: str, path: list[str]) -> None:
    """Places, which findings call ``where``, in words."""
    finding = Finding("kind", Severity.INFO, where, "", "")

    assert (accounts.place(finding), accounts.path(finding)) == (place, path)
