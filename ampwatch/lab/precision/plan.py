"""The precision plan of a training: for each product of each layer the cheapest format that keeps a limit.

Plain values only: ``planner.py`` makes a plan.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ampwatch.numerics.formats import FORMATS
from ampwatch.numerics.written import without_nonfinite
from ampwatch.wire.records import formats_in_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


LINES = 40
"""Layers that a table shows."""

LONGEST_NAME = 36
"""Characters of a module's name in a table. The middle of a longer one is left out."""


@dataclass(frozen=True, slots=True)
class ProductPlan:
    """The format of one product.

    Attributes:
        product: ``forward``, ``grad_input`` or ``grad_weight``.
        formats: Names of the formats of its two operands: input and weight, gradient of the output
            and weight, gradient of the output and input. Empty if none was chosen.
        sqnr_db: Expected signal-to-quantisation-noise ratio of the product, at its worst over all phases
            that were measured; ``None`` if it is not known, infinite without noise. Unit: dB.
        flushed_share: Share of elements that become zero, of the operand and phase that lose most.
        cheaper: Next cheaper format; empty if there is none.
        why: Why not that one; why none, where none was chosen.
        flops: FLOPs of one call.
        bytes_now: Bytes of operands and result in one call, as it is trained. Unit: bytes.
        bytes_then: The same by the plan. Unit: bytes.
        seconds_now: Least time of one call on the GPU, as it is trained; ``None`` if not known. Unit: s.
        seconds_then: The same by the plan. Unit: s.
    """

    product: str
    formats: tuple[str, ...]
    sqnr_db: float | None
    flushed_share: float | None
    cheaper: str
    why: str
    flops: int
    bytes_now: float
    bytes_then: float
    seconds_now: float | None
    seconds_then: float | None

    @property
    def format(self) -> str:
        """Both formats as one word; ``as is`` where none was chosen."""
        return formats_in_words(self.formats) or "as is"


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """The formats of a layer.

    Attributes:
        module: Qualified name of the module; empty for the root.
        kind: Name of its class.
        layer: ``linear`` or ``convolution``.
        dtype: Dtype in which it is trained.
        products: Its products, in the order of ``PRODUCTS``; without ``grad_input`` where no gradient goes on.
        why_wide: Why no format below 16 bits was considered; empty if they were.
        steps: Iterations that it rests on.
    """

    module: str
    kind: str
    layer: str
    dtype: str
    products: tuple[ProductPlan, ...]
    why_wide: str
    steps: tuple[int, ...]

    @property
    def bits(self) -> int:
        """Bits of the widest format that was chosen; 0 if a product has none."""
        widest = [max((FORMATS[f].bits for f in p.formats), default=0) for p in self.products]
        return max(widest) if all(widest) else 0

    @property
    def formats(self) -> frozenset[str]:
        """All formats of its products."""
        return frozenset(f for p in self.products for f in p.formats)


@dataclass(frozen=True, slots=True)
class KeptModule:
    """A module that is no product, and what it has to stay in.

    Attributes:
        module: Qualified name of the module.
        kind: Name of its class.
        dtype: The format.
        why: Why.
    """

    module: str
    kind: str
    dtype: str
    why: str


@dataclass(frozen=True, slots=True)
class PhaseSteps:
    """Measurements of one phase of the training.

    Attributes:
        first: First iteration of the phase.
        steps: Iterations that were measured.
    """

    first: int
    steps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """For each product of each layer the cheapest format whose loss stays under a limit.

    Attributes:
        run: Name of the run.
        limit_db: Least signal-to-quantisation-noise ratio of a product. Unit: dB.
        max_flushed: Largest share of elements of an operand that may become zero.
        gpu: Name of the GPU; empty for any.
        formats: Names of the formats that were considered, the cheapest first.
        layers: The layers, in the order in which they are called.
        kept: Other modules, and what they have to stay in.
        loss_scale: Loss scale that the gradients in float16 were judged with.
        phases: What it rests on, by phase of the training.
        notes: In sentences, what was not measured, or is not known.
        why_not: Why there is no plan, and what to do; empty if there is one.
    """

    run: str = ""
    limit_db: float = 0.0
    max_flushed: float = 1.0
    gpu: str = ""
    formats: tuple[str, ...] = ()
    layers: tuple[LayerPlan, ...] = ()
    kept: tuple[KeptModule, ...] = ()
    loss_scale: float = 1.0
    phases: tuple[PhaseSteps, ...] = ()
    notes: tuple[str, ...] = ()
    why_not: str = ""

    @property
    def products(self) -> list[ProductPlan]:
        """The products of all layers."""
        return [product for layer in self.layers for product in layer.products]

    @property
    def bytes_saved(self) -> float:
        """Share of the bytes of operands and results that the plan saves; 0 without any."""
        now = sum(p.bytes_now for p in self.products)
        return 1 - sum(p.bytes_then for p in self.products) / now if now else 0.0

    @property
    def speedup(self) -> float | None:
        """Ratio of the least times of all products, now and by the plan; ``None`` if not known."""
        now = _total(p.seconds_now for p in self.products)
        then = _total(p.seconds_then for p in self.products)
        return now / then if now and then else None

    def flops_by_format(self) -> dict[str, int]:
        """Return the FLOPs of one call of all layers, by format."""
        total: dict[str, int] = {}
        for product in self.products:
            total[product.format] = total.get(product.format, 0) + product.flops
        return total

    def table(self, lines: int = LINES) -> str:
        """Return the plan for a terminal, in ASCII.

        Args:
            lines: Layers that are shown at most.
        """
        if self.why_not:
            return f"No precision plan: {self.why_not}\n"
        text = [*_head(self), "", *_rows(self.layers[:lines])]
        if len(self.layers) > lines:
            text.append(f"  ... and {len(self.layers) - lines} more layers")
        text += ["", *_kept(self.kept), *(f"Note: {note}." for note in self.notes)]
        return "\n".join(text).encode("ascii", "replace").decode().rstrip("\n") + "\n"

    __str__ = table

    def as_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can hold: what is not finite is a word, ``"infinity"`` or ``"-infinity"``."""
        content: dict[str, Any] = without_nonfinite(asdict(self))
        content |= {
            "bytes_saved": self.bytes_saved,
            "speedup": self.speedup,
            "flops_by_format": self.flops_by_format(),
        }
        return content


def to_json(plan: Plan) -> str:
    """Return a plan as JSON, for programs."""
    return json.dumps(plan.as_dict(), indent=1) + "\n"


def _total(numbers: Iterable[float | None]) -> float | None:
    total = 0.0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total


def _head(plan: Plan) -> list[str]:
    where = f" on {plan.gpu}" if plan.gpu else ""
    share = f"{plan.max_flushed:.0%} of an operand become zero"
    title = (
        f"Precision plan of {plan.run or 'this run'}{where}: the cheapest format of each product"
    )
    lines = [f"{title} that keeps {plan.limit_db:g} dB and has at most {share}."]
    spans = [
        f"from step {phase.first}: {len(phase.steps)} step{'s' * (len(phase.steps) > 1)}"
        f" ({phase.steps[0]} to {phase.steps[-1]})"
        for phase in plan.phases
    ]
    steps = len({step for phase in plan.phases for step in phase.steps})
    lines.append(f"It rests on {steps} steps of the training; {'; '.join(spans)}.")
    total = sum(plan.flops_by_format().values()) or 1
    shares = [f"{name} {flops / total:.0%}" for name, flops in plan.flops_by_format().items()]
    lines.append(
        f"FLOPs: {', '.join(shares)}. Bytes of operands and results: {-plan.bytes_saved:+.0%}."
    )
    if plan.gpu:
        gain = (
            "is not known" if plan.speedup is None else f"is {plan.speedup:.2f} x as fast at best"
        )
        lines.append(f"All products together: by the peaks of {plan.gpu} the plan {gain}.")
    if any("float16" in layer.formats for layer in plan.layers):
        lines.append(f"Gradients in float16 are multiplied by a loss scale of {plan.loss_scale:g}.")
    return lines


def _rows(layers: Sequence[LayerPlan]) -> list[str]:
    lines = [
        f"  {'module':<{LONGEST_NAME}} {'product':<11} {'format':<30} {'dB':>6} {'to zero':>8}  why not cheaper"
    ]
    for layer in layers:
        name = _short(layer.module or "(the model)")
        for product in layer.products:
            ratio = "-" if product.sqnr_db is None else f"{product.sqnr_db:.1f}"
            share = "-" if product.flushed_share is None else f"{product.flushed_share:.1%}"
            lines.append(
                f"  {name:<{LONGEST_NAME}} {product.product:<11} {product.format:<30} {ratio:>6} {share:>8}  {product.why}".rstrip()
            )
            name = ""
    return lines


def _kept(kept: Sequence[KeptModule]) -> list[str]:
    by_reason: dict[tuple[str, str, str], list[str]] = {}
    for module in kept:
        key = module.dtype, module.kind, module.why
        by_reason.setdefault(key, []).append(module.module or "(the model)")
    if not by_reason:
        return []
    lines = ["Stay as they are:"]
    for (dtype, kind, why), names in by_reason.items():
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        lines.append(f"  {dtype:<9} {kind}: {', '.join(names[:3])}{more}. {why}")
    return [*lines, ""]


def _short(name: str) -> str:
    if len(name) <= LONGEST_NAME:
        return name
    half = (LONGEST_NAME - 3) // 2
    return f"{name[: LONGEST_NAME - 3 - half]}...{name[-half:]}"
