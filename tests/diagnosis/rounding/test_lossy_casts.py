"""Findings about integers that a format cannot tell apart."""

from __future__ import annotations

import pytest

from ampwatch.diagnosis.book import FindingBook
from ampwatch.diagnosis.detector import Shared
from ampwatch.diagnosis.evidence.rounding import LossyCast, OpSite
from ampwatch.diagnosis.rounding.lossy_casts import RoundedIntegers
from ampwatch.wire.records import Severity


@pytest.fixture
def book() -> FindingBook:
    return FindingBook(lambda _news: None)


def _cast(where: str, *, ordered: bool, step: int = 0) -> LossyCast:
    site = OpSite(step, where, "_to_copy", "forward", "model.py:7")
    return LossyCast(site, "bfloat16", 2048, 2048, 641, 1500, 2047.0, ordered)


def test_positions_are_a_warning_once_whatever_the_number_of_layers(book: FindingBook) -> None:
    """Each layer casts them: one incident, counted once a step."""
    casts = RoundedIntegers(Shared(book))
    for step in range(3):
        for layer in range(4):
            casts.observe(_cast(f"layers.{layer}.rope", ordered=True, step=step))
    (finding,) = book.findings

    assert (finding.where, finding.severity) == ("layers.0.rope", Severity.WARNING)
    assert (finding.first_step, finding.last_step, finding.count) == (0, 2, 3)
    assert "of 2048 different ones 641 are left" in finding.summary
    assert "only up to 256" in finding.summary


def test_other_integers_are_an_info_and_hide_no_warning(book: FindingBook) -> None:
    """They may be measurements, which lose nothing that matters."""
    casts = RoundedIntegers(Shared(book))
    casts.observe(_cast("stem", ordered=False))
    casts.observe(_cast("stem", ordered=False))
    casts.observe(_cast("rope", ordered=True))
    casts.observe(_cast("head", ordered=False))

    assert [(f.where, f.severity) for f in book.findings] == [
        ("stem", Severity.INFO),
        ("rope", Severity.WARNING),
    ]


def test_times_that_were_rounded_are_a_warning_in_radians(book: FindingBook) -> None:
    """They are no integers: nothing is said of those that are left."""
    cast = _cast("loss", ordered=False)._replace(largest=999.2, angle=1.95)
    RoundedIntegers(Shared(book)).observe(cast)
    (finding,) = book.findings

    assert finding.severity == Severity.WARNING
    assert "wrong by up to 1.9 rad" in finding.summary
    assert "integer" not in finding.summary.lower()
    assert "until sines are taken of them" in finding.advice
    assert finding.evidence == {"values": 2048.0, "largest": 999.2, "angle": 1.95}
