"""Findings about casts to FP8."""

from __future__ import annotations

import pytest

from ampwatch.diagnosis.book import FindingBook
from ampwatch.diagnosis.detector import Shared
from ampwatch.diagnosis.evidence.rounding import Fp8Cast, OpSite
from ampwatch.diagnosis.rounding.fp8 import Fp8
from ampwatch.wire.records import Severity


@pytest.fixture
def book() -> FindingBook:
    return FindingBook(lambda _news: None)


@pytest.fixture
def fp8(book: FindingBook) -> Fp8:
    return Fp8(Shared(book))


def _cast(
    clipped: int = 0, flushed: int = 0, *, step: int = 3, numbers: int = 1000, first: bool = False
) -> Fp8Cast:
    site = OpSite(step, "1.fc", "_to_copy", "forward", "model.py:7")
    return Fp8Cast(site, "float8_e4m3fn", numbers, clipped, flushed, 8960.0, first)


@pytest.mark.parametrize(
    ("cast", "kinds"),
    [
        (_cast(clipped=19), []),
        (_cast(clipped=20), ["fp8_saturation"]),
        (_cast(clipped=7, numbers=100), []),
        (_cast(clipped=40, numbers=60), []),
        (_cast(flushed=99), []),
        (_cast(flushed=100), ["fp8_underflow"]),
        (_cast(clipped=100, flushed=600), ["fp8_saturation", "fp8_underflow"]),
    ],
)
def test_a_share_is_needed_and_enough_numbers(
    fp8: Fp8, book: FindingBook, cast: Fp8Cast, kinds: list[str]
) -> None:
    """Two of a hundred are clipped, a tenth is flushed; of a few numbers nothing is said."""
    fp8.observe(cast)

    assert [f.kind for f in book.findings] == kinds
    assert all(
        (f.where, f.op, f.severity) == ("1.fc", "_to_copy", "warning") for f in book.findings
    )


def test_the_numbers_say_how_far_the_scale_is_off(fp8: Fp8, book: FindingBook) -> None:
    """The largest against the end of the format."""
    fp8.observe(_cast(clipped=300))
    (finding,) = book.findings

    assert finding.evidence["clipped_share"] == 0.3
    assert finding.evidence["largest"] / finding.evidence["largest_of_format"] == 20.0
    assert "too large for them by a factor of 20" in finding.summary


def test_what_a_first_cast_clips_is_an_info_until_a_second_does(
    fp8: Fp8, book: FindingBook
) -> None:
    """A delayed scale has seen nothing before it."""
    fp8.observe(_cast(clipped=300, step=0, first=True))
    (finding,) = book.findings
    at_first = finding.severity
    fp8.observe(_cast(clipped=300, step=1))

    assert (at_first, finding.severity, finding.count) == (Severity.INFO, Severity.WARNING, 2)
