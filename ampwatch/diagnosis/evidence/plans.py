"""A precision plan that a user has asked for, and what is measured of its operands after that."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.wire.records import Operand, OperandRecord


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
        return " x ".join(dict.fromkeys(self.formats))


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


class OperandsMeasured(NamedTuple):
    """Operands of layers that were measured in one iteration.

    Attributes:
        step: Index of the iteration.
        operands: The measurements, with the qualified name of the module.
    """

    step: int
    operands: Sequence[tuple[str, OperandRecord]]
