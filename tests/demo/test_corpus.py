"""The text of the demo."""

from __future__ import annotations

import torch

from ampwatch.demo.corpus import MAX_CHARACTERS, MIN_CHARACTERS, VOCABULARY, Corpus, source_text

CPU = torch.device("cpu")


def test_this_machine_has_a_text() -> None:
    """Real Python, in bounds, all of it ASCII, the same each time."""
    text = source_text()

    assert MIN_CHARACTERS <= len(text) <= MAX_CHARACTERS
    assert max(text) < VOCABULARY
    assert b"import " in text
    assert text == source_text()


def test_the_target_of_a_character_is_the_next_one() -> None:
    """In every passage, and every passage is in the text."""
    text = bytes(i * 7 % VOCABULARY for i in range(1000))

    inputs, targets = Corpus(text, CPU, seed=3).batch(batch=5, context=8)

    assert inputs.shape == targets.shape == (5, 8)
    for before, after in zip(inputs.tolist(), targets.tolist(), strict=True):
        assert before[1:] == after[:-1]
        assert bytes([*before, after[-1]]) in text
