"""The reader of sentences finds numbers that nothing shows, and takes no name for a number."""

from __future__ import annotations

import pytest

from tests.states.words import matches, numbers, strangers, visible


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("stuck at 1.863e-09 since step 104", [1.863e-09, 104]),
        ("65\u202f536, 12 % lost", [65536, 0.12]),
        ("100.0% of all gradient elements", [1.0]),
        ("float16 in encoder.0 of rank 3 on node-0:10917", []),
        ("growth_interval=100 and 2^-24, since 22:15 UTC", []),
        ("within 10m 3s, or 5.5s", []),
        ("run twins~2 is at /d/ampwatch-run?var-rank=0", []),
        ("the largest is 65.5k", [65500]),
    ],
)
def test_numbers_are_read_as_a_person_reads_them(text: str, values: list[float]) -> None:
    """Digits grouped, in percent, with a unit; not those in names, addresses and times."""
    assert [value for _, value in numbers(text)] == pytest.approx(values)


def test_a_number_that_nothing_shows_is_a_stranger() -> None:
    """Rounded ones are known, and those that the template always has."""
    known = [1.862645149230957e-09, 44.0]

    text = "It fell to 1.863e-09, halved 45 times within 30 minutes."

    assert strangers(text, known, "halved {{ $value }} times within 30 minutes") == ["45"]


def test_a_sentence_is_found_with_the_words_around_it() -> None:
    """So that somebody sees at once where it stands."""
    (found,) = matches("at this rate 1/scale becomes infinite in 99 steps", [r"becomes infinite"])

    assert "becomes infinite" in found
    assert "99 steps" in found


def test_what_is_read_of_a_page_is_its_text() -> None:
    """Neither pictures nor programs."""
    page = "<style>p {x: 1}</style><p>loss &amp; <b>scale</b></p><svg><text>2</text></svg>"

    assert visible(page).split() == ["loss", "&", "scale"]
