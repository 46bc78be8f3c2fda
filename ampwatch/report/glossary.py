"""The words of the trade, each in a sentence, for whoever reads one for the first time."""

from __future__ import annotations

import re
from typing import NamedTuple


class Term(NamedTuple):
    """A word and what it means.

    Attributes:
        name: The word as it is written.
        pattern: Matches the word, and what is the same, in a text.
        meaning: A sentence, without its full stop.
    """

    name: str
    pattern: str
    meaning: str


TERMS = (
    Term(
        "loss scale",
        r"loss scal\w+|\bscale\b|scaler\b|GradScaler",
        "float16 cannot hold very small gradients, so the loss is multiplied by a large number"
        " before backward() and the gradients are divided by it afterwards; torch.amp.GradScaler"
        " chooses that number: it halves it after every overflow and doubles it after as many good"
        " steps in a row as its growth_interval says",
    ),
    Term(
        "skipped step",
        r"\bskip\w*",
        "when a gradient is infinite or NaN the GradScaler does not call the optimizer: the batch"
        " is lost, the weights stay as they are, the scale is halved",
    ),
    Term(
        "skip class",
        r"\b(unprovoked|storm)\b|\d (calibrating|probe)\b",
        "why a step was skipped: calibrating (the GradScaler searches for its first scale) and probe (it"
        " has just doubled the scale) are normal; unprovoked is a skip that its search does not explain,"
        " of which one does no harm, and storm the second and every further one in a row, a fault",
    ),
    Term(
        "overflow",
        r"\boverflow\w*|headroom",
        "a result larger than the largest number of its format becomes infinity; float16 ends at"
        " 65504, bfloat16 and float32 at 3.4e38",
    ),
    Term(
        "underflow",
        r"\bunderflow\w*|flush\w*|round\w* to zero",
        "a result too small for its format becomes zero; in float16 that is everything below 3e-8,"
        " and from 6e-5 down numbers lose digits (they are called subnormal)",
    ),
    Term(
        "NaN",
        r"\bNaN\b",
        "not a number: what infinity minus infinity or 0/0 gives; whatever it touches becomes NaN",
    ),
    Term(
        "autocast",
        r"autocast",
        "torch.autocast runs matrix products and convolutions in 16 bits, and what needs more"
        " precision in float32, for as long as its `with` block is open",
    ),
    Term(
        "bfloat16",
        r"bfloat16",
        "16 bits with the range of float32 and 3 digits: it needs no loss scaling, but rounds more"
        " than float16",
    ),
    Term(
        "float8",
        r"float8|\bFP8\b|fp8",
        "8 bits: 2 digits or fewer, and a range so small that each tensor needs a scale",
    ),
    Term(
        "unscale",
        r"unscale_?",
        "scaler.unscale_(optimizer) divides the gradients by the loss scale; only then are they the"
        " true ones, to be clipped or looked at",
    ),
    Term(
        "eps",
        r"\beps\b",
        "a small number that an optimizer or a norm adds so that it never divides by zero",
    ),
    Term(
        "TF32",
        r"\bTF32\b",
        "float32 with 10 bits of mantissa inside matrix products, on NVIDIA GPUs since 2020",
    ),
    Term(
        "tensor cores",
        r"[Tt]ensor cores?",
        "the units of a GPU that multiply small matrices, many times as fast as its other units",
    ),
    Term(
        "FLOPs",
        r"\bFLOPs\b",
        "floating-point operations: the additions and multiplications of a step",
    ),
)
"""All terms that can come up."""


def terms_in(*texts: str) -> list[Term]:
    """Return the terms that come up in ``texts``, each once, as they come."""
    whole = "\n".join(texts)
    found = [(m.start(), term) for term in TERMS if (m := re.search(term.pattern, whole))]
    return [term for _, term in sorted(found)]
