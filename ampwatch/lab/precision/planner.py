"""Makes a precision plan from what was measured of the operands of layers.

A product loses what its two operands lose (``numerics.products``). Of each operand the worst phase
of the training decides: what it looks like later is not known. What was not measured is not guessed.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, NamedTuple

from ampwatch.errors import SettingsError, did_you_mean
from ampwatch.lab.precision.plan import KeptModule, LayerPlan, PhaseSteps, Plan, ProductPlan
from ampwatch.lab.precision.products import HEADROOM, OPERANDS, CastLoss, cast_loss, product_db
from ampwatch.numerics.exponents import nearest_exponent
from ampwatch.numerics.formats import FORMATS, FormatFamily
from ampwatch.numerics.units.peaks import Gpu, find_gpu
from ampwatch.numerics.whatif import scale_window
from ampwatch.wire.records import (
    CONVOLUTION,
    FORWARD,
    GRAD_INPUT,
    GRAD_WEIGHT,
    PHASE_BEGINS,
    PRODUCTS,
    Operand,
    PlanRecord,
    formats_in_words,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ampwatch.numerics.blocks import BlockHistogram
    from ampwatch.numerics.exponents import ExponentHistogram
    from ampwatch.numerics.formats import FloatFormat
    from ampwatch.wire.blackbox import Box
    from ampwatch.wire.records import LayerRecord, OperandRecord

LIMIT_DB = 20.0
"""Limit unless another one is given: FP8 keeps it of what is spread as usual, FP4 does not. Unit: dB."""

MAX_FLUSHED = 0.1
"""Share of an operand that may become zero unless another one is given."""

CANDIDATES = (
    "mxfp4",
    "nvfp4",
    "float8_e4m3fn",
    "float8_e5m2",
    "mxfp8_e4m3",
    "bfloat16",
    "float16",
    "tf32",
    "float32",
)
"""Formats that are considered unless others are given: those that libraries train with."""

WIDE_BITS = 16
"""Bits of the narrowest format of what has to stay wide."""

MAX_LOSS_SCALE = 16
"""Exponent of the largest loss scale that float16 is judged with: that which a GradScaler begins with."""

_ROUTER = re.compile(r"(?:^|[._])(?:router|gate|gating)$", re.IGNORECASE)
_KEPT = (
    (
        re.compile("Norm"),
        "float32",
        "It divides by a mean of squares: cheap, and off where that rounds.",
    ),
    (re.compile("Softmax|Loss|Sigmoid"), "float32", "Exponentials and sums of many small numbers."),
    (
        re.compile("Embedding"),
        "bfloat16",
        "It multiplies nothing; rows that are rarely used have small updates.",
    ),
)


class _Candidate(NamedTuple):
    """Formats of the operands of a product."""

    left: FloatFormat  # format of the first
    right: FloatFormat  # format of the second
    bits: float  # bits of an element with its part of a scale, of the wider one

    @property
    def name(self) -> str:
        return formats_in_words((self.left.name, self.right.name))


class Wanted(NamedTuple):
    """What a plan is asked for: made by ``checked``."""

    limit_db: float  # as in ``Plan``
    max_flushed: float  # as in ``Plan``
    gpu: Gpu | None  # the GPU, if one is named
    formats: tuple[FloatFormat, ...]  # the formats, the cheapest first


def checked(
    limit: float = LIMIT_DB,
    max_flushed: float = MAX_FLUSHED,
    gpu: str | None = None,
    formats: Iterable[str] | None = None,
) -> Wanted:
    """Return the arguments of ``ampwatch.lab.plan``, checked; without formats those of ``CANDIDATES``.

    Raises:
        SettingsError: If one of them makes no sense.
    """
    for name, value, most in (("limit", limit, 1000.0), ("max_flushed", max_flushed, 1.0)):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
            msg = f"expected `{name}` to be a number from 0 to {most:g}, got {value!r}"
            raise SettingsError(msg)
    names = CANDIDATES if formats is None else tuple(formats)
    if not names:
        msg = "expected at least one format to choose from, got none"
        raise SettingsError(msg)
    ordered = sorted(map(format_named, names), key=_bits)
    return Wanted(limit, max_flushed, find_gpu(gpu) if gpu else None, tuple(ordered))


def format_named(name: str) -> FloatFormat:
    """Return a format that a product may be computed in, by its name.

    Raises:
        SettingsError: If there is none.
    """
    known = [name for name, fmt in FORMATS.items() if fmt.family is not FormatFamily.FLOAT64]
    if name not in known:
        msg = (
            f"expected formats of {', '.join(known)}, got {name!r}{did_you_mean(str(name), known)}"
        )
        raise SettingsError(msg)
    return FORMATS[name]


def plan_of(box: Box, wanted: Wanted) -> Plan:
    """Make the plan of a run.

    Returns:
        The plan. Where there is none, its ``why_not`` says why, and what to do.

    Cost: some 10 ms a layer.
    """
    layers = [record for record in box.layers if record.has_products]
    run = box.identity.run
    if not layers:
        return Plan(run=run, why_not=_why_none(box))
    scale = _loss_scale(layers)
    last = max(layers, key=lambda record: record.order).module
    plans = [_LayerPlanner(r, wanted, scale, is_last=r.module == last).plan() for r in layers]
    return Plan(
        run=run,
        limit_db=wanted.limit_db,
        max_flushed=wanted.max_flushed,
        gpu=wanted.gpu.name if wanted.gpu else "",
        formats=tuple(fmt.name for fmt in wanted.formats),
        layers=tuple(plans),
        kept=tuple(_kept(box.layers)),
        loss_scale=2.0**scale,
        phases=_phases(layers),
        notes=tuple(_notes(layers, wanted)),
    )


def records_of(plan: Plan, step: int) -> list[PlanRecord]:
    """Return a plan that was asked for in a step, layer by layer, for who follows it and for the daemon."""
    steps = sorted({step for phase in plan.phases for step in phase.steps}) or [0]
    records = []
    for place, layer in enumerate(plan.layers):
        products = {product.product: product for product in layer.products}
        chosen = [products.get(name) for name in PRODUCTS]
        formats = ["" if product is None else product.format for product in chosen]
        ratios = [math.nan if p is None or p.sqnr_db is None else p.sqnr_db for p in chosen]
        why = ["" if product is None else product.why for product in chosen]
        records.append(
            PlanRecord(
                step=step,
                place=place,
                module=layer.module,
                formats=(formats[0], formats[1], formats[2]),
                sqnr_db=(ratios[0], ratios[1], ratios[2]),
                why=(why[0], why[1], why[2]),
                limit_db=plan.limit_db,
                max_flushed=plan.max_flushed,
                loss_scale=plan.loss_scale,
                gpu=plan.gpu,
                steps=len(steps),
                first_step=steps[0],
                last_step=steps[-1],
            )
        )
    return records


def _why_none(box: Box) -> str:
    if box.layers:
        return (
            "the model has no linear or convolutional layer among the modules that were called; a"
            " matmul of a function is not planned"
        )
    level = box.settings.get("level")
    if box.written_by != "training":
        why = (
            "the report is of a process that died, and was made from its ring, which has no layers"
        )
    elif level in ("off", "light"):
        why = f"no layer is measured at level {level}"
    else:
        why = "no step in which layers are measured was watched yet"
    return (
        f"{why}; ask the running training (`ampwatch lab plan`, ampwatch.lab.plan()) at level standard with lab=True and"
        " a watched model, after some hundred steps"
    )


def _bits(fmt: FloatFormat) -> float:
    """Return the bits that an element takes, with its part of a scale."""
    return fmt.stored_bits + (fmt.block.scale.stored_bits / fmt.block.elements if fmt.block else 0)


def _candidates(product: str, wanted: Wanted) -> list[_Candidate]:
    """Return the formats of a product, the cheapest first."""
    found = [_Candidate(fmt, fmt, _bits(fmt)) for fmt in wanted.formats]
    e4m3, e5m2 = FORMATS["float8_e4m3fn"], FORMATS["float8_e5m2"]
    if product != FORWARD and {e4m3, e5m2} <= set(wanted.formats):
        # What Transformer Engine calls hybrid: range for gradients, digits for the rest.
        place = next(n for n, c in enumerate(found) if c.left is e5m2)
        found[place] = _Candidate(e5m2, e4m3, _bits(e5m2))
    gpu = wanted.gpu
    if gpu is not None:
        # What it does not multiply first, which is then refused; of the rest the fastest.
        found.sort(key=lambda c: (gpu.multiplies(c.left), -_speed(gpu, c), c.bits))
    return found


def _speed(gpu: Gpu, candidate: _Candidate) -> float:
    flops = gpu.flops(candidate.left)
    return math.inf if math.isnan(flops) else flops


class _LayerPlanner:
    """Plans one layer; computes the loss of an operand by a format once."""

    def __init__(self, record: LayerRecord, wanted: Wanted, scale: int, *, is_last: bool) -> None:
        self._record = record
        self._wanted = wanted
        self._scale = scale  # exponent of the loss scale of gradients in float16
        self._losses: dict[tuple[Operand, str], CastLoss | None] = {}
        self._why_wide = ""
        if is_last:
            self._why_wide = "it is the last layer: its errors are those of the logits"
        elif _ROUTER.search(record.module):
            self._why_wide = "it is a router: a small error sends tokens elsewhere"

    def plan(self) -> LayerPlan:
        record = self._record
        wanted = [p for p in PRODUCTS if p != GRAD_INPUT or record.has_grad_input]
        return LayerPlan(
            module=record.module,
            kind=record.kind,
            layer=record.layer,
            dtype=record.dtype,
            products=tuple(map(self._product, wanted)),
            why_wide=self._why_wide,
            steps=tuple(sorted({operand.step for operand in record.operands})),
        )

    def _product(self, product: str) -> ProductPlan:
        measured = {operand.operand for operand in self._record.operands}
        missing = [operand.label for operand in OPERANDS[product] if operand not in measured]
        if missing:
            return self._planned(product, None, None, "", f"{' and '.join(missing)} not measured")
        cheaper = why = ""
        for candidate in _candidates(product, self._wanted):
            refusal, loss = self._refusal(product, candidate), None
            if not refusal:
                refusal, loss = self._judge(product, candidate)
            if not refusal:
                return self._planned(product, candidate, loss, cheaper, why)
            cheaper, why = candidate.name, f"{candidate.name}: {refusal}"
        none = f"no format keeps the limit; {why}; set a lower limit, or allow other formats"
        return self._planned(product, None, None, cheaper, none)

    def _refusal(self, product: str, candidate: _Candidate) -> str:
        """Return why a format is out of the question, whatever it would lose; empty if it is not."""
        gpu = self._wanted.gpu
        if gpu is not None and not gpu.multiplies(candidate.left):
            return f"{gpu.name} does not multiply it"
        if candidate.bits >= WIDE_BITS:
            return ""
        if self._why_wide:
            return self._why_wide
        if self._record.layer == CONVOLUTION:
            return "PyTorch has no convolution in it"
        block = candidate.left.block
        multiple = max(candidate.left.alignment, block.elements if block else 1)
        odd = next((n for n in self._dimensions(product) if n % multiple), None)
        return "" if odd is None else f"a dimension of {odd} is no multiple of {multiple}"

    def _dimensions(self, product: str) -> tuple[int, ...]:
        """Return the dimensions that tensor cores, and blocks, want to be multiples."""
        record = self._record
        if product == GRAD_WEIGHT:  # which sums over rows
            return record.rows, record.inner, record.columns
        return record.inner, record.columns

    def _judge(self, product: str, candidate: _Candidate) -> tuple[str, CastLoss | None]:
        """Return why a product loses too much by a format, empty if it does not; and its loss."""
        wanted, operands = self._wanted, OPERANDS[product]
        formats = candidate.left, candidate.right
        found = [self._loss(o, fmt) for o, fmt in zip(operands, formats, strict=True)]
        known = [loss for loss in found if loss is not None]
        if len(known) < len(found):
            return "blocks were not measured", None
        ratio = product_db(x.sqnr_db for x in known)
        loss = CastLoss(ratio, max(x.flushed_share for x in known))
        pairs = list(zip(operands, known, strict=True))
        if ratio == -math.inf:
            return f"{min(pairs, key=lambda pair: pair[1].sqnr_db)[0].label} overflows", loss
        if ratio < wanted.limit_db:
            each = ", ".join(f"{o.label} {x.sqnr_db:.1f}" for o, x in pairs)
            return f"{ratio:.1f} dB ({each})", loss
        if loss.flushed_share > wanted.max_flushed:
            worst = max(pairs, key=lambda pair: pair[1].flushed_share)[0]
            return f"{loss.flushed_share:.1%} of {worst.label} become zero", loss
        return "", loss

    def _loss(self, operand: Operand, fmt: FloatFormat) -> CastLoss | None:
        """Return the loss of an operand in the phase in which it is worst; ``None`` if not known."""
        key = operand, fmt.name
        if key not in self._losses:
            records = (o for o in self._record.operands if o.operand is operand)
            found = [cast_loss(*self._scaled(record, fmt), fmt) for record in records]
            known = [loss for loss in found if loss is not None]
            self._losses[key] = None
            if known:
                flushed = max(x.flushed_share for x in known)
                self._losses[key] = CastLoss(min(x.sqnr_db for x in known), flushed)
        return self._losses[key]

    def _scaled(
        self, record: OperandRecord, fmt: FloatFormat
    ) -> tuple[ExponentHistogram, tuple[BlockHistogram, ...]]:
        if record.operand is not Operand.GRAD_OUTPUT or fmt.name != "float16":
            return record.histogram, record.blocks
        return record.histogram.shifted(self._scale - nearest_exponent(record.loss_scale)), ()

    def _planned(
        self,
        product: str,
        candidate: _Candidate | None,
        loss: CastLoss | None,
        cheaper: str,
        why: str,
    ) -> ProductPlan:
        record, gpu = self._record, self._wanted.gpu
        now = FORMATS.get(record.dtype, FORMATS["float32"])
        left, right = (candidate.left, candidate.right) if candidate else (now, now)
        elements = {
            Operand.INPUT: record.input_elements,
            Operand.WEIGHT: record.inner * record.columns * record.groups,
            Operand.GRAD_OUTPUT: record.rows * record.columns * record.groups,
        }
        first, second = OPERANDS[product]
        result = next(n for o, n in elements.items() if o not in (first, second))
        flops = 2 * record.rows * record.inner * record.columns * record.groups
        # Sums of products are kept in float32, and rounded to 16 bits at least.
        of_result = result * max(_bits(now), WIDE_BITS) / 8
        bytes_now = (elements[first] + elements[second]) * _bits(now) / 8 + of_result
        of_operands = elements[first] * _bits(left) + elements[second] * _bits(right)
        bytes_then = of_operands / 8 + of_result
        return ProductPlan(
            product=product,
            formats=(left.name, right.name) if candidate else (),
            sqnr_db=None if loss is None else loss.sqnr_db,
            flushed_share=None if loss is None else loss.flushed_share,
            cheaper=cheaper,
            why=why,
            flops=flops,
            bytes_now=bytes_now,
            bytes_then=bytes_then,
            seconds_now=_seconds(gpu, now, flops, bytes_now),
            seconds_then=_seconds(gpu, left, flops, bytes_then),
        )


def _seconds(gpu: Gpu | None, fmt: FloatFormat, flops: int, nbytes: float) -> float | None:
    """Return the least time of a product: by arithmetic or by memory, whichever is more."""
    if gpu is None:
        return None
    peak = gpu.flops(fmt)
    return None if math.isnan(peak) else max(flops / peak, nbytes / gpu.bandwidth)


def _loss_scale(layers: Sequence[LayerRecord]) -> int:
    """Return the exponent of the largest loss scale at which no gradient overflows float16, with headroom."""
    highest = MAX_LOSS_SCALE
    for record in layers:
        for operand in record.operands:
            if operand.operand is Operand.GRAD_OUTPUT:
                high = scale_window(operand.histogram, FORMATS["float16"]).high
                if high is not None:
                    highest = min(highest, high - HEADROOM + nearest_exponent(operand.loss_scale))
    return highest


def _kept(layers: Sequence[LayerRecord]) -> Iterable[KeptModule]:
    for record in layers:
        for pattern, dtype, why in _KEPT:
            if not record.has_products and pattern.search(record.kind):
                yield KeptModule(record.module, record.kind, dtype, why)
                break


def _phases(layers: Sequence[LayerRecord]) -> tuple[PhaseSteps, ...]:
    steps = sorted({operand.step for record in layers for operand in record.operands})
    found = []
    for first, end in zip(PHASE_BEGINS, (*PHASE_BEGINS[1:], math.inf), strict=True):
        inside = tuple(step for step in steps if first <= step < end)
        if inside:
            found.append(PhaseSteps(first, inside))
    return tuple(found)


def _notes(layers: Sequence[LayerRecord], wanted: Wanted) -> Iterable[str]:
    unmeasured = [r.module for r in layers if len({o.operand for o in r.operands}) < len(Operand)]
    if unmeasured:
        yield (
            f"of {len(unmeasured)} of {len(layers)} layers an operand was not measured ({', '.join(unmeasured[:3])}):"
            " measurements take turns, so ask again some hundred steps later; weights that are computed"
            " (parametrizations), inputs given by name and layers in compiled code never are"
        )
    is_blocked = any(fmt.block for fmt in wanted.formats)
    if is_blocked and not any(operand.blocks for r in layers for operand in r.operands):
        yield "blocks were not measured (`lab` is off): no block-scaled format is in the plan"
    if is_blocked:
        yield (
            "blocks were measured along the memory; the gradient of a weight sums over samples, and a"
            " convolution over channels, where values are taken to be alike"
        )
