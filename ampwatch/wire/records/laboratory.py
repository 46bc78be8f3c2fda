"""What the laboratory measures and works out: layers and their operands (in reports, not in the ring), plans, error budgets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, field

from ampwatch.numerics.blocks import BlockHistogram
from ampwatch.numerics.exponents import ExponentHistogram
from ampwatch.numerics.written import Labelled
from ampwatch.wire.records.fields import Count

if TYPE_CHECKING:
    from collections.abc import Iterable


class Operand(Labelled):
    """Tensors that the products of a linear or convolutional layer multiply."""

    INPUT = 0
    WEIGHT = 1
    GRAD_OUTPUT = 2


LINEAR, CONVOLUTION = "linear", "convolution"
"""Layers that have products."""


PHASE_BEGINS = (0, 64, 1024, 16384)
"""First iterations of the phases of a training that are distinguished: ranges change by orders of magnitude
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


MAX_BUDGETED = 512
"""Modules of a budget that the daemon gets, the least exact ones: a ring keeps some thousand records."""


class BudgetRecord(Struct, frozen=True):
    """How far what one module has returned is from the exact result, in one batch.

    Attributes:
        step: Iteration whose batch it is.
        place: Place of the module in the budget, from 0. Of a module at 0 a new budget begins.
        model: Qualified name of the model among the watched ones; empty if it is the only one.
        module: Qualified name of the module; empty for the root.
        dtype: Dtype of what it has returned.
        autocast: Dtypes of autocast, with commas between them; empty without it.
        total: Relative error of what it has returned, as an L2 norm; NaN where it is not known.
        contribution: What originates in the module and its parts adds that much to the error of the target, to
            first order; NaN where it is not known.
        target: ``loss``, or ``output`` where the model does not return its loss.
        error: Error of the target; NaN where it is not known.
    """

    step: Count
    place: Count
    model: str
    module: str
    dtype: str
    autocast: str
    total: float
    contribution: float
    target: str
    error: float
