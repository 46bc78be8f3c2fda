"""Findings about trainings that leave the precision plan that was made of them."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ampwatch.diagnosis.detector import Detector, Shared, takes
from ampwatch.diagnosis.rounding.kinds import PLAN_LEFT
from ampwatch.lab.precision.products import OPERANDS, CastLoss, cast_loss, product_db
from ampwatch.numerics.exponents import nearest_exponent
from ampwatch.numerics.formats import FORMATS
from ampwatch.numerics.whatif import scale_window
from ampwatch.wire.records import (
    FORWARD,
    PRODUCTS,
    Operand,
    formats_in_words,
    formats_of_words,
    in_words,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ampwatch.wire.records import OperandRecord, PlanRecord


MIN_MEASUREMENTS = 3
"""Measurements in a row, of the operand that loses more, without which nothing is reported."""

MARGIN_DB = 3.0
"""How far below its limit a product has to be: twice as far as a loss may be foretold wrong. Unit: dB."""

MARGIN_FLUSHED = 0.1
"""Share of an operand that has to become zero beyond what the plan allows."""

HEADROOM = 1
"""Exponent of how much larger values may become before float16 overflows. A plan asks for 4 times as much."""

MAX_CASTS = 8
"""Casts foretold in one iteration. The operands that were judged longest ago come first."""

MAX_BLOCK_CASTS = 1
"""How many of those may be to block-scaled formats, which take some ms each."""


class PlannedProduct(NamedTuple):
    """A product of a layer for which a format was chosen."""

    module: str  # qualified name of the module; empty for the root
    product: str  # ``forward``, ``grad_input`` or ``grad_weight``
    operands: tuple[Operand, Operand]  # what it multiplies
    formats: tuple[str, str]  # names of their formats
    sqnr_db: float  # expected signal-to-quantisation-noise ratio when it was planned. Unit: dB

    @property
    def format(self) -> str:
        """Both formats as one word."""
        return formats_in_words(self.formats)


class PlanMade(NamedTuple):
    """A plan, as far as a training can leave it."""

    step: int  # newest iteration when it was asked for
    limit_db: float  # least signal-to-quantisation-noise ratio of a product. Unit: dB
    max_flushed: float  # largest share of elements of an operand that may become zero
    loss_scale: float  # loss scale that gradients in float16 were judged with
    products: Sequence[PlannedProduct]  # the products for which a format was chosen


def plan_made(records: Sequence[PlanRecord]) -> PlanMade:
    """Return a plan, given layer by layer, as evidence by which it is seen whether a training leaves it.

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
    """Operands of layers that were measured in one iteration."""

    step: int  # index of the iteration
    # the measurements, with the qualified name of the module
    operands: Sequence[tuple[str, OperandRecord]]


@dataclass(slots=True, eq=False)
class _Followed:
    """A product of the plan."""

    product: PlannedProduct  # what was planned
    # sorts products as a step computes them: backward begins at the last layer
    turn: tuple[bool, int, int]
    held: int  # iteration of the newest measurement in which it was within the plan, or that of the plan
    losses: dict[Operand, CastLoss] = field(default_factory=dict)  # newest loss of each operand
    left: int = 0  # measurements in a row in which it was outside of the plan
    since: int = -1  # iteration of the first of them

    @property
    def sqnr_db(self) -> float:
        """Expected ratio of signal to noise; an operand that is not known yet is taken to lose nothing."""
        return product_db(loss.sqnr_db for loss in self.losses.values())

    @property
    def most_flushed(self) -> Operand:
        return max(self.losses, key=lambda operand: self.losses[operand].flushed_share)

    @property
    def noisiest(self) -> Operand:
        return min(self.losses, key=lambda operand: self.losses[operand].sqnr_db)


class _Plan:
    """The products of a plan, and the measurements that tell whether they hold it."""

    def __init__(self, made: PlanMade) -> None:
        self.made = made
        self.first: _Followed | None = None  # that has left it: what the finding is about
        layers = {name: n for n, name in enumerate(dict.fromkeys(p.module for p in made.products))}
        self.products = [
            _Followed(product, _turn(product, layers[product.module]), made.step)
            for product in made.products
        ]
        self._by_operand: dict[tuple[str, Operand], list[_Followed]] = defaultdict(list)
        for followed in self.products:
            for operand in followed.product.operands:
                self._by_operand[followed.product.module, operand].append(followed)
        self._judged_at = dict.fromkeys(self._by_operand, -1)

    def update(self, measured: OperandsMeasured) -> Iterator[tuple[_Followed, Operand]]:
        """Yield products with a new loss, and the operand that it is of."""
        casts = blocks = 0
        known = [
            pair for pair in measured.operands if (pair[0], pair[1].operand) in self._judged_at
        ]
        known.sort(key=lambda pair: self._judged_at[pair[0], pair[1].operand])
        for module, record in known:
            key = module, record.operand
            by_format: dict[str, list[_Followed]] = {}
            for followed in self._by_operand[key]:
                place = followed.product.operands.index(record.operand)
                by_format.setdefault(followed.product.formats[place], []).append(followed)
            for name, products in by_format.items():
                is_blocked = FORMATS[name].block is not None
                if casts >= MAX_CASTS or (is_blocked and blocks >= MAX_BLOCK_CASTS):
                    continue
                loss = self._loss(record, name)
                if loss is None:
                    continue  # blocks are measured in some of the samples
                casts += 1
                blocks += is_blocked
                self._judged_at[key] = measured.step
                for followed in products:
                    followed.losses[record.operand] = loss
                    yield followed, record.operand

    def has_left(self, followed: _Followed) -> Operand | None:
        """Return the operand by which a product is outside of the plan; ``None`` if it holds it."""
        if followed.sqnr_db < self.made.limit_db - MARGIN_DB:
            return followed.noisiest
        worst = followed.most_flushed
        share = followed.losses[worst].flushed_share
        return worst if share > self.made.max_flushed + MARGIN_FLUSHED else None

    def _loss(self, record: OperandRecord, name: str) -> CastLoss | None:
        fmt, histogram = FORMATS[name], record.histogram
        if record.operand is not Operand.GRAD_OUTPUT or name != "float16":
            return cast_loss(histogram, record.blocks, fmt, HEADROOM)
        # A GradScaler follows gradients that grow: they are judged with a scale that leaves them room.
        histogram = histogram.shifted(-nearest_exponent(record.loss_scale))
        scale, high = nearest_exponent(self.made.loss_scale), scale_window(histogram, fmt).high
        if high is not None:
            scale = min(scale, high - HEADROOM)
        return cast_loss(histogram.shifted(scale), (), fmt, HEADROOM)


class PlanLeft(Detector):
    """Follows the newest plan that was asked for."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._plan: _Plan | None = None

    @takes(PlanMade, is_aside=True)
    def follow(self, made: PlanMade) -> None:
        """Follow a plan, in the place of an older one."""
        # One assignment: a plan may be asked for in another thread than the one that trains.
        self._plan = _Plan(made)

    @takes(OperandsMeasured, is_aside=True)
    def observe(self, measured: OperandsMeasured) -> None:
        """Take in measurements of operands.

        Cost: some 20 us an operand, 1 to 10 ms for a block-scaled format; bounded by ``MAX_CASTS``.
        """
        plan = self._plan
        if plan is None:
            return
        left: dict[_Followed, None] = {}
        for followed, operand in plan.update(measured):
            culprit = plan.has_left(followed)
            if culprit is None:
                followed.left, followed.held = 0, measured.step
            elif culprit is operand:  # what the other one lost was counted when it was measured
                if not followed.left:
                    followed.since = measured.step
                followed.left += 1
                left[followed] = None
        # Of those that an iteration shows at once the first is named, whatever order they were measured in,
        # and none that its other operand has brought back.
        for followed in sorted(left, key=lambda followed: followed.turn):
            if followed.left >= MIN_MEASUREMENTS:
                self._say(plan, followed, measured.step)

    def _say(self, plan: _Plan, followed: _Followed, step: int) -> None:
        plan.first = plan.first or followed
        product = plan.first.product
        made = self._book.get(PLAN_LEFT.slug, product.module)
        if plan.first is not followed and made is not None:
            # Its numbers would stand beside those of the first.
            self._book.again(made, step, products_left=_num_left(plan))
            return
        self._book.report(
            PLAN_LEFT,
            product.module,
            step,
            summary=(
                f"The precision plan of step {plan.made.step} no longer holds for {_num_left(plan):g} of"
                f" {len(plan.products)} products. In {in_words(product.module)} {_words(plan, followed)}."
                f" It has been outside of the plan in each of {followed.left} measurements since step"
                f" {followed.since}; it was last known to hold in step {followed.held}"
            ),
            first_step=followed.since,
            phase="forward" if product.product == FORWARD else "backward",
            dtype=product.formats[0],
            evidence=_evidence(plan, followed),
        )


def _turn(product: PlannedProduct, layer: int) -> tuple[bool, int, int]:
    is_backward = product.product != FORWARD
    return is_backward, -layer if is_backward else layer, PRODUCTS.index(product.product)


def _num_left(plan: _Plan) -> float:
    return float(sum(f.left >= MIN_MEASUREMENTS for f in plan.products))


def _words(plan: _Plan, followed: _Followed) -> str:
    product, losses = followed.product, followed.losses
    name = f"{product.product} in {product.format}"
    if followed.sqnr_db == -math.inf:
        return (
            f"the {followed.noisiest.label} of {name} overflows, or would if it were twice as large"
        )
    if followed.sqnr_db < plan.made.limit_db - MARGIN_DB:
        known = [operand for operand in product.operands if operand in losses]
        each = ", ".join(f"{operand.label} {losses[operand].sqnr_db:.1f}" for operand in known)
        return (
            f"{name} would have {followed.sqnr_db:.1f} dB ({each}), where"
            f" {product.sqnr_db:.1f} dB were planned and {plan.made.limit_db:g} dB are the limit"
        )
    worst = followed.most_flushed
    return (
        f"{losses[worst].flushed_share:.0%} of the {worst.label} would become zero for {name}, where"
        f" {plan.made.max_flushed:.0%} are the limit"
    )


def _evidence(plan: _Plan, followed: _Followed) -> dict[str, float]:
    numbers = {
        "limit_db": plan.made.limit_db,
        "planned_db": followed.product.sqnr_db,
        "sqnr_db": followed.sqnr_db,
        **{f"{operand.label}_db": loss.sqnr_db for operand, loss in followed.losses.items()},
        "flushed_share": max(loss.flushed_share for loss in followed.losses.values()),
        "max_flushed_share": plan.made.max_flushed,
        "planned_step": float(plan.made.step),
        "measurements": float(followed.left),
        "held_step": float(followed.held),
        "products_left": _num_left(plan),
        "products": float(len(plan.products)),
    }
    return {name: number for name, number in numbers.items() if math.isfinite(number)}
