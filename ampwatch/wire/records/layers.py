"""Layers of a model and what was measured of their operands: in reports, not in the ring."""

from __future__ import annotations

from msgspec import Struct, field

from ampwatch.numerics.blocks import BlockHistogram
from ampwatch.numerics.exponents import ExponentHistogram
from ampwatch.numerics.written import Labelled
from ampwatch.wire.records.fields import Count


class Operand(Labelled):
    """Tensors that the products of a linear or convolutional layer multiply."""

    INPUT = 0
    WEIGHT = 1
    GRAD_OUTPUT = 2


LINEAR, CONVOLUTION = "linear", "convolution"
"""Layers that have products."""


PHASE_BEGINS = (0, 64, 1024, 16384)
"""First iterations of the phases of a training that are told apart: ranges change by orders of magnitude
over orders of magnitude of steps. The newest measurement of each phase is kept."""


class OperandRecord(Struct):
    """The newest measurement of an operand in a phase of the training.

    Attributes:
        step: Index of the iteration.
        operand: Which one.
        loss_scale: What its values are multiplied by; 1 of all but ``GRAD_OUTPUT``.
        blocks: Its blocks, of each size; none where they were not measured.
        histogram: Its exponents.
    """

    step: Count
    operand: Operand
    loss_scale: float
    blocks: tuple[BlockHistogram, ...]
    histogram: ExponentHistogram


class LayerRecord(Struct):
    """A module without children, as it was called.

    Attributes:
        module: Qualified name of the module; empty for the root.
        kind: Name of its class.
        layer: ``LINEAR`` or ``CONVOLUTION``; empty if it is neither, and what follows is not known.
        order: Place in the order in which the modules were last called, from 0.
        rows: Rows of the product in one call: samples and positions.
        input_elements: Elements of its input in one call.
        inner: Elements that one dot product of forward sums over.
        columns: Features or channels of its output, of one group.
        groups: Groups of a convolution, else 1.
        has_grad_input: Whether its input has a gradient, as the batch itself mostly has none.
        dtype: Dtype of its output.
        source: Module whose output its input is; empty if its input was measured by itself, or
            is not known.
        operands: What was measured.
    """

    module: str
    kind: str
    layer: str
    order: Count
    rows: Count
    input_elements: Count
    inner: Count
    columns: Count
    groups: Count
    has_grad_input: bool
    dtype: str
    source: str
    operands: list[OperandRecord] = field(default_factory=list)

    @property
    def has_products(self) -> bool:
        """Whether it is a linear or convolutional layer."""
        return self.layer in (LINEAR, CONVOLUTION)
