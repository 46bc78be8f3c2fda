"""A precision plan that a training was asked for, layer by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from ampwatch.wire.records.fields import Count

if TYPE_CHECKING:
    from collections.abc import Iterable

PRODUCTS = FORWARD, GRAD_INPUT, GRAD_WEIGHT = "forward", "grad_input", "grad_weight"
"""The products of a linear or convolutional layer: its output, and the gradients of input and weight."""

MAX_PLANNED = 512
"""Modules without children that a training knows, and layers of a plan that are taken."""

_BETWEEN = " x "


def formats_in_words(names: Iterable[str]) -> str:
    """Return the formats of two operands as one word; one name is enough where both are the same."""
    return _BETWEEN.join(dict.fromkeys(names))


def formats_of_words(words: str) -> tuple[str, str]:
    """Return the names that ``formats_in_words`` made a word of."""
    left, _, right = words.partition(_BETWEEN)
    return left, right or left


class PlanRecord(Struct, frozen=True):
    """The formats that a plan has chosen for one of its layers.

    Attributes:
        step: Newest iteration when the plan was asked for.
        place: Place of the layer in the plan, from 0. Of a layer at 0 a new plan begins.
        module: Qualified name of the module; empty for the root.
        formats: Formats of its ``PRODUCTS`` as words, ``as is`` where none was chosen; empty where
            there is no such product.
        sqnr_db: Their expected signal-to-quantisation-noise ratios; NaN where that is not known. Unit: dB.
        why: Why not the next cheaper format, or why none, of each; empty where the cheapest holds, or
            where there is no such product.
        limit_db: The least ratio that the plan takes. Unit: dB.
        max_flushed: Largest share of elements of an operand that may become zero.
        loss_scale: Loss scale that gradients in float16 were judged with.
        gpu: Name of the GPU; empty for any.
        steps: How many iterations the plan rests on.
        first_step: The first of them.
        last_step: The last of them.
    """

    step: Count
    place: Count
    module: str
    formats: tuple[str, str, str]
    sqnr_db: tuple[float, float, float]
    why: tuple[str, str, str]
    limit_db: float
    max_flushed: float
    loss_scale: float
    gpu: str
    steps: Count
    first_step: Count
    last_step: Count
