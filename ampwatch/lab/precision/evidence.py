"""A precision plan that a user has asked for, and what is measured of its operands after that."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from ampwatch.numerics.formats import FORMATS
from ampwatch.wire.records import (
    FORWARD,
    GRAD_INPUT,
    GRAD_WEIGHT,
    PRODUCTS,
    Operand,
    formats_in_words,
    formats_of_words,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.wire.records import OperandRecord, PlanRecord

OPERANDS = {
    FORWARD: (Operand.INPUT, Operand.WEIGHT),
    GRAD_INPUT: (Operand.GRAD_OUTPUT, Operand.WEIGHT),
    GRAD_WEIGHT: (Operand.GRAD_OUTPUT, Operand.INPUT),
}
"""What each product multiplies."""


class PlannedProduct(NamedTuple):
    """A product of a layer for which a format was chosen.

    Attributes:
        module: Qualified name of the module; empty for the root.
        product: ``forward``, ``grad_input`` or ``grad_weight``.
        operands: What it multiplies.
        formats: Names of their formats.
        sqnr_db: Expected signal-to-quantisation-noise ratio when it was planned. Unit: dB.
    """

    module: str
    product: str
    operands: tuple[Operand, Operand]
    formats: tuple[str, str]
    sqnr_db: float

    @property
    def format(self) -> str:
        """Both formats as one word."""
        return formats_in_words(self.formats)


class PlanMade(NamedTuple):
    """A plan, as far as a training can leave it.

    Attributes:
        step: Newest iteration when it was asked for.
        limit_db: Least signal-to-quantisation-noise ratio of a product. Unit: dB.
        max_flushed: Largest share of elements of an operand that may become zero.
        loss_scale: Loss scale that gradients in float16 were judged with.
        products: The products for which a format was chosen.
    """

    step: int
    limit_db: float
    max_flushed: float
    loss_scale: float
    products: Sequence[PlannedProduct]


def plan_made(records: Sequence[PlanRecord]) -> PlanMade:
    """Return a plan as evidence, by which it is seen whether a training leaves it.

    Args:
        records: The plan, layer by layer; one at least.

    Raises:
        ValueError: If a format is unknown.
    """
    products = [
        PlannedProduct(record.module, product, OPERANDS[product], _both(words), ratio)
        for record in records
        for product, words, ratio in zip(PRODUCTS, record.formats, record.sqnr_db, strict=True)
        if not math.isnan(ratio)
    ]
    first = records[0]
    return PlanMade(
        first.step, first.limit_db, first.max_flushed, first.loss_scale, tuple(products)
    )


def _both(words: str) -> tuple[str, str]:
    """Return the formats of two operands, which are one word where they are the same."""
    both = formats_of_words(words)
    if not FORMATS.keys() >= set(both):
        msg = f"expected one or two formats that are known, got {words!r:.80}"
        raise ValueError(msg)
    return both


class OperandsMeasured(NamedTuple):
    """Operands of layers that were measured in one iteration.

    Attributes:
        step: Index of the iteration.
        operands: The measurements, with the qualified name of the module.
    """

    step: int
    operands: Sequence[tuple[str, OperandRecord]]
