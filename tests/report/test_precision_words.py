"""Words about precision."""

from __future__ import annotations

import pytest

from ampwatch.numerics.units.ops import Fallback, OpKind
from ampwatch.report.op_shares import Absence, Arithmetic, Share
from ampwatch.report.precision_words import (
    FALLBACKS,
    NO_CENSUS,
    arithmetic_sentence,
    band,
    census_sentence,
    kernels_sentence,
    matmul_remarks,
    report_lines,
    si,
)
from ampwatch.wire.records import CastTotal, CensusSource, KernelTotal, OpTotal
from tests.workshop.records import census, window

SECOND = 10**9


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (999, "999 B"), (999.6, "1 kB"), (1234, "1.23 kB"), (2.5e12, "2.5 TB")],
)
def test_sizes_have_three_digits_and_a_prefix(value: float, text: str) -> None:
    """Powers of ten, as the unit says."""
    assert si(value, "B") == text


def test_a_number_without_a_unit_ends_with_its_prefix() -> None:
    """No blank at the end of a cell."""
    assert (si(12), si(12_000), si(1e30)) == ("12", "12 k", "1e+06 Y")


def test_every_reason_has_words_in_ascii() -> None:
    """They are printed in any locale."""
    assert set(FALLBACKS) == set(Fallback) - {Fallback.NONE}
    assert all(words.isascii() for words in FALLBACKS.values())


def test_a_band_is_one_number_where_its_ends_meet() -> None:
    """To the digits that are shown."""
    assert band(Share(0.6, 0.8)) == "between 60 % and 80 %"
    assert band(Share(0.6, 0.6)) == "60 %"
    assert band(Share(0.60001, 0.60002)) == "60 %"


def test_what_was_counted_is_said_and_what_was_left_out() -> None:
    """Which step, how, how much."""
    record = census(step=40, iterations=3, source=CensusSource.PROFILER, rows_left_out=1)

    assert census_sentence(None) == NO_CENSUS
    assert census_sentence(record) == (
        "3 iterations counted so far, the newest, step 40, from a profiler window, which"
        " has less detail than counting one by one;"
        " 1 row with less to say left out."
    )


@pytest.mark.parametrize(
    ("absence", "words"),
    [
        (Absence.WAITING, "No profiler window so far"),
        (Absence.NO_GPU, "it has no tensor cores"),
        (Absence.NO_MATMULS, "No kernel in the profiled iterations multiplies"),
    ],
)
def test_why_there_is_no_share_of_tensor_cores_is_said(absence: Absence, words: str) -> None:
    """Absent and zero are different news."""
    assert words in kernels_sentence(window(), absence)


def test_the_share_of_tensor_cores_is_said_with_what_it_rests_on() -> None:
    """The rest that is known of these kernels is said; nothing of what did not happen."""
    record = window(
        KernelTotal("tensor", "float16", 6 * SECOND),
        KernelTotal("cuda", "float32", 4 * SECOND),
        misaligned_ns=SECOND,
    )

    assert kernels_sentence(record, Absence.OK) == (
        "Tensor cores had 60 % of the time of matmul kernels, in 2 profiled iterations."
    )
    assert matmul_remarks(record) == ["10 % in kernels that assume less than full alignment"]
    assert matmul_remarks(window()) == []


def test_the_ceiling_is_said_in_milliseconds_and_shares() -> None:
    """Or why it is not known, which is a sentence already."""
    told = Arithmetic(0.01, 0.04, 0.25, 0.2)

    assert arithmetic_sentence(told) == (
        "At the peak of each dtype a step would take 10 ms; it takes 40 ms:"
        " 25 % of the ceiling, MFU 20 %."
    )
    assert arithmetic_sentence(Arithmetic(0.08, 0.04, 2.0, 2.0)).endswith(
        "200 % of the ceiling, which cannot be: the peak is not that of this device, or steps differ."
    )
    assert arithmetic_sentence(Arithmetic(absence=Absence.NO_GPU, sentence="A CPU.")) == "A CPU."


def test_a_report_has_shares_casts_and_the_band() -> None:
    """In a few lines, and none without a census or a window."""
    counted = census(
        ops=(
            OpTotal(OpKind.MATMUL, "float16", 4, 75, 0, 0),
            OpTotal(OpKind.MATMUL, "float32", 4, 25, 0, 0),
        ),
        casts=(CastTotal("float32", "float16", 12, 5_000_000),),
        iterations=2,
    )
    profiled = window(KernelTotal("tensor", "float16", 9), KernelTotal("unknown", "", 1))

    assert report_lines(counted, profiled) == [
        "FLOPs: 75 % in float16, 25 % in float32",
        "1.5 casts for each matrix product, 2.5 MB an iteration",
        "Tensor cores had between 90 % and 100 % of the time of matmul kernels, in 2 profiled iterations",
    ]
    assert report_lines(None, None) == []
    assert report_lines(census(), window()) == []
