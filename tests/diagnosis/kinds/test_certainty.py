"""How sure a finding is, and the words that explain it."""

from __future__ import annotations

import pytest

from ampwatch.diagnosis.kinds.registry import KINDS, UNKNOWN, certainty
from ampwatch.report import accounts
from ampwatch.report.glossary import terms_in
from ampwatch.wire.records import Finding, Severity


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
