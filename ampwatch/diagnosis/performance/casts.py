"""Findings about casts: the time they take, and the memory that the copies of weights take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from ampwatch.diagnosis.performance.kinds import CAST_OVERHEAD, NO_MEMORY_GAIN
from ampwatch.diagnosis.performance.op_shares import FORWARD, TRAINING, by_module, heaviest, ops_in
from ampwatch.numerics.units.ops import HALF_DTYPES, Fallback, OpKind
from ampwatch.wire.records import in_words

if TYPE_CHECKING:
    from collections import Counter

    from ampwatch.diagnosis.book import FindingBook
    from ampwatch.diagnosis.detector import Known
    from ampwatch.diagnosis.evidence.ops import OpCensus, OpKey, OpTally


CASTS_PER_OP = 1.0
"""Casts for each op that computes, in the forward pass. A plain stack of Linear and ReLU has 0.9,
a transformer 0.5, one without autocast that computes its norms in float32 0.25; a stack that
leaves half precision after each layer 1.5."""

RAISED_PER_MATMUL = 0.25
"""Casts back to float32 that nothing asks for, for each op with FLOPs, if there are also more
casts than ops. They alone, and not the casts of weights, are the user's to take out."""

MANY_RAISED_PER_MATMUL = 0.75
"""Casts back to float32 for each op with FLOPs that are too many however many other ops there are.
Four norms in float32 in a layer of a transformer make it 0.5."""

MIN_RAISED = 2
"""Casts back to float32, at least: fewer are an output that is wanted in float32."""

BYTES_SHARE = 0.2
"""Share of the memory traffic of forward and backward that casts must have."""

PARAMETERS = 2
"""Tensors of one layer that autocast casts once in a region: a weight and a bias."""

WORTH_A_WORD = 1 << 17
"""Copies of weights from which memory may be a problem. Unit: bytes."""


class _Sums(Struct):
    """Sums over the ops of a census."""

    casts: int = 0  # casts of the forward pass
    raised: int = 0  # those from float16 or bfloat16 to float32
    # how many of these are as they should be: for the ops that autocast runs in float32 or
    # promotes, and one for the loss each time the model runs
    asked_for: int = 0
    ops: int = 0  # other ops of the forward pass that compute
    multiplications: int = 0  # those of them with FLOPs
    cast_bytes: int = 0  # bytes that casts read and write, in forward and backward
    bytes: int = 0  # bytes that all ops read and write, in forward and backward


class Casts:
    """Compares what casts cost with what they gain."""

    def __init__(self, book: FindingBook, known: Known) -> None:
        self._book = book
        self._layers = frozenset(layer.module for layer in known.layers if layer.module)

    def detect(self, census: OpCensus, num_losses: int) -> None:
        """Take in one census.

        Args:
            census: The census.
            num_losses: How many losses were scaled in its iteration; 0 if that is not known.
        """
        sums = _sum(census)
        if sums.bytes and sums.cast_bytes >= BYTES_SHARE * sums.bytes:
            self._check_round_trips(census, sums)
            self._check_recasts(census, sums, num_losses)
        self._check_weight_copies(census)

    def _check_round_trips(self, census: OpCensus, sums: _Sums) -> None:
        raised = sums.raised - sums.asked_for
        more_casts = sums.casts > CASTS_PER_OP * sums.ops
        least = RAISED_PER_MATMUL if more_casts else MANY_RAISED_PER_MATMUL
        if raised < max(MIN_RAISED, least * sums.multiplications) or not sums.multiplications:
            return
        what = f"{raised} of them cast back to float32 where autocast does not ask for it, {{most}}"
        self._say(census, sums, by_module(census, FORWARD, _raised_bytes), what, float(raised))

    def _check_recasts(self, census: OpCensus, sums: _Sums, num_losses: int) -> None:
        """Detect layers whose weights are cast more often than once a micro-batch.

        Besides its weight and its bias a layer casts its input, at most once a call. What runs
        outside of all layers may be another model's.
        """
        if not num_losses:
            return
        lowered = by_module(census, FORWARD, _lowered)
        calls = by_module(census, FORWARD, _multiplications)
        again = {
            module: count - calls[module] - PARAMETERS * num_losses
            for module, count in lowered.items()
            if module in self._layers
        }
        modules = {module for module, count in again.items() if count > 0}
        if not modules:
            return
        amounts = by_module(
            census, FORWARD, lambda k, t: t.bytes if k.module in modules and _lowered(k, t) else 0
        )
        count = sum(again[module] for module in modules)
        what = f"at least {count} of them cast a weight again that had been cast, {{most}}"
        self._say(census, sums, amounts, what, float(count))

    def _say(
        self, census: OpCensus, sums: _Sums, amounts: Counter[str], what: str, avoidable: float
    ) -> None:
        where = heaviest(amounts)
        # What runs in no submodule may be of the model, or outside of it.
        place = in_words(where) if where else "no submodule of the model"
        what = what.format(most=f"most in {place}")
        share = sums.cast_bytes / sums.bytes
        self._book.report(
            CAST_OVERHEAD,
            where or "step",
            census.step,
            summary=(
                f"The forward pass has {sums.casts} casts between dtypes beside {sums.ops} ops"
                f" that compute, at step {census.step}; {what}. Casts move {share:.0%} of the"
                f" bytes of forward and backward"
            ),
            op="_to_copy",
            phase="forward",
            evidence={
                "casts": float(sums.casts),
                "ops": float(sums.ops),
                "casts_per_op": sums.casts / max(1, sums.ops),
                "avoidable_casts": avoidable,
                "cast_bytes_share": share,
            },
            is_once=True,
        )

    def _check_weight_copies(self, census: OpCensus) -> None:
        copies, activations = census.weight_cast_bytes, census.activation_bytes
        if copies < WORTH_A_WORD or copies <= activations:
            return
        self._book.report(
            NO_MEMORY_GAIN,
            "",
            census.step,
            summary=(
                f"Autocast does not save memory here: until backward the graph keeps"
                f" {_mebibytes(copies)} of low-precision copies of weights, and only"
                f" {_mebibytes(activations)} of activations are halved, at step {census.step}"
            ),
            phase="config",
            evidence={
                "weight_copy_bytes": float(copies),
                "activation_bytes": float(activations),
                "bytes_more_than_float32": float(copies - activations),
            },
            is_once=True,
        )


def _sum(census: OpCensus) -> _Sums:
    sums = _Sums()
    for key, tally in ops_in(census, TRAINING):
        sums.bytes += tally.bytes
        if key.kind is OpKind.CAST:
            sums.cast_bytes += tally.bytes
        if key.phase not in FORWARD:
            continue
        if key.kind is OpKind.CAST:
            sums.casts += tally.calls
            sums.raised += tally.calls if _is_raise(key) else 0
        elif key.kind is not OpKind.COPY:
            sums.ops += tally.calls
            sums.multiplications += tally.calls if key.kind.has_flops else 0
            if key.fallback in (Fallback.FP32_LIST, Fallback.PROMOTED):
                sums.asked_for += tally.calls
    # As often as the module that multiplies least often does, so often the model has run, at most.
    sums.asked_for += min(by_module(census, FORWARD, _multiplications).values(), default=1)
    return sums


def _multiplications(key: OpKey, tally: OpTally) -> int:
    return tally.calls if key.kind.has_flops else 0


def _is_raise(key: OpKey) -> bool:
    # From float8 a cast is the other half of quantising.
    return key.kind is OpKind.CAST and key.dtype in HALF_DTYPES and key.out_dtype == "float32"


def _raised_bytes(key: OpKey, tally: OpTally) -> int:
    return tally.bytes if _is_raise(key) else 0


def _lowered(key: OpKey, tally: OpTally) -> int:
    """Return how many casts from float32 to float16 or bfloat16 a tally holds."""
    is_one = key.kind is OpKind.CAST and key.dtype == "float32" and key.out_dtype in HALF_DTYPES
    return tally.calls if is_one else 0


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:.3g} MiB"
