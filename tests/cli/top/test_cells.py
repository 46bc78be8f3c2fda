"""Text in cells of a terminal."""

from __future__ import annotations

import pytest

from ampwatch.cli.top.table import clean, cut, fitted, padded, width_of


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("encoder.4", "encoder.4"),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("a\nb\r\nc\td", "a b c d"),
        ("\u202eleft", r"\u202eleft"),
        ("\x9b2J", r"\x9b2J"),
        ("65\u202f536 is 2¹⁶", "65536 is 2^16"),
        ("模型", "模型"),
    ],
)
def test_nothing_that_comes_from_elsewhere_moves_a_cursor(text: str, shown: str) -> None:
    """Control characters and those that turn text round are written as what they are."""
    assert clean(text) == shown


def test_wide_characters_take_two_cells_and_accents_none() -> None:
    """So that the columns after a name stand where they ought to."""
    assert width_of("模型a") == 5
    assert width_of("e\u0301") == 1
    assert padded("模型", 6) == "模型  "
    assert padded("7", 3, right=True) == "  7"


@pytest.mark.parametrize("cells", range(9))
def test_what_is_cut_fits_and_says_that_it_is_cut(cells: int) -> None:
    """Never half a wide character."""
    for text in ("encoder.4", "模型模型模型"):
        assert width_of(cut(text, cells)) <= cells
        assert width_of(padded(text, cells)) == cells
    assert cut("encoder.4", 9) == "encoder.4"
    assert cut("encoder.4", 8) == "encode.."


def test_a_line_is_cut_as_a_whole() -> None:
    """What comes after the end is left out with it."""
    line = [("failing ", "red"), ("decoder.3.ffn", ""), ("rest", "")]

    assert fitted(line, 12) == [("failing ", "red"), ("de..", ""), ("", "")]
    assert fitted(line, 40) == line
