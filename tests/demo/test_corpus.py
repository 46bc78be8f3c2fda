"""The text of the demo."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from ampwatch.demo.corpus import MAX_CHARACTERS, MIN_CHARACTERS, VOCABULARY, Corpus, source_text
from ampwatch.errors import AmpwatchError

if TYPE_CHECKING:
    from pathlib import Path

CPU = torch.device("cpu")


def test_this_machine_has_a_text() -> None:
    """Real Python, in bounds, all of it ASCII, the same each time."""
    text = source_text()

    assert MIN_CHARACTERS <= len(text) <= MAX_CHARACTERS
    assert max(text) < VOCABULARY
    assert b"import " in text
    assert text == source_text()


def test_what_is_not_ascii_is_read_as_a_question_mark(tmp_path: Path) -> None:
    """Whatever is in a source file, it is in the vocabulary."""
    (tmp_path / "b.py").write_bytes(b"x = 1\n" * MIN_CHARACTERS)
    (tmp_path / "a.py").write_bytes("# né ".encode() + b"\xff\n")

    text = source_text([tmp_path])

    assert text.startswith(b"# n? ?\nx = 1\n")


def test_too_little_text_is_refused(tmp_path: Path) -> None:
    """With the place where it was looked for."""
    (tmp_path / "a.py").write_text("x = 1\n")

    with pytest.raises(AmpwatchError, match=str(tmp_path)):
        source_text([tmp_path])


def test_the_target_of_a_character_is_the_next_one() -> None:
    """In every passage, and every passage is in the text."""
    text = bytes(i * 7 % VOCABULARY for i in range(1000))

    inputs, targets = Corpus(text, CPU, seed=3).batch(batch=5, context=8)

    assert inputs.shape == targets.shape == (5, 8)
    for before, after in zip(inputs.tolist(), targets.tolist(), strict=True):
        assert before[1:] == after[:-1]
        assert bytes([*before, after[-1]]) in text
