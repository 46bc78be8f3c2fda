"""The character GPT."""

from __future__ import annotations

import torch

from ampwatch.demo.corpus import VOCABULARY
from ampwatch.demo.model import CharacterGPT, Size

TINY = Size(layers=3, heads=2, width=16, context=8, batch=2)


def test_it_does_not_look_ahead() -> None:
    """The logits of a character do not depend on those that follow it."""
    torch.manual_seed(0)
    model = CharacterGPT(TINY)
    text = torch.randint(VOCABULARY, (1, 8))
    changed = text.clone()
    changed[0, 5] = (text[0, 5] + 1) % VOCABULARY

    before, after = model(text), model(changed)

    assert before.shape == (1, 8, VOCABULARY)
    assert torch.equal(before[0, :5], after[0, :5])
    assert not torch.equal(before[0, 5:], after[0, 5:])
