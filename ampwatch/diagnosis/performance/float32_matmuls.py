"""Findings about matmuls that run in float32 where a faster dtype would do."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ampwatch.diagnosis.performance import op_shares as shares
from ampwatch.diagnosis.performance.kinds import _AUTOCAST, FP32_MATMUL
from ampwatch.numerics.units.ops import Fallback
from ampwatch.wire.records import in_words

if TYPE_CHECKING:
    from ampwatch.diagnosis.book import FindingBook
    from ampwatch.diagnosis.detector import Known
    from ampwatch.diagnosis.evidence.ops import OpCensus, OpKey, OpTally


TF32_FROM = (8, 0)
"""Compute capability of the first GPUs that have TF32, and tensor cores for bfloat16."""

WORDS = {
    Fallback.NONE: "for a reason that is not known",
    Fallback.FP32_LIST: "because autocast runs these ops in float32",
    Fallback.NOT_LISTED: "because autocast does not cast the inputs of these ops",
    Fallback.PROMOTED: "because one of their inputs is float32",
    Fallback.DISABLED_REGION: "inside autocast(enabled=False)",
    Fallback.OUTSIDE_REGION: "outside every autocast region",
    Fallback.OTHER_THREAD: "in a thread that has not entered autocast",
    Fallback.DEVICE_TYPE: "inside an autocast region for another type of device",
    Fallback.CUSTOM_FUNCTION: "in an autograd.Function that asks for float32, or in an op that is not PyTorch's own",
}
"""Reasons for which an op ran in float32, in words."""

FLOAT32_SHARE = 0.5
"""Share of the FLOPs of a forward pass under autocast in float32, beyond which it is reported."""

AUTOCAST_IS_ELSEWHERE = (Fallback.OTHER_THREAD, Fallback.DEVICE_TYPE)
"""Reasons that are left to another kind of finding, ``AutocastState``'s."""


class Float32Matmuls:
    """Checks the dtype in which a training spends the FLOPs of its forward pass."""

    def __init__(self, book: FindingBook, known: Known) -> None:
        self._book = book
        self._machine = machine = known.machine
        self._has_idle_tf32 = (
            machine.capability is not None
            and machine.capability >= TF32_FROM
            and not machine.matmul_tf32
        )

    def detect(self, census: OpCensus) -> None:
        """Take in one census."""
        totals = shares.by_module(census, shares.FORWARD, shares.flops_of)
        reasons: Counter[Fallback] = Counter()
        for key, tally in shares.ops_in(census, shares.FORWARD):
            reasons[key.fallback] += float32_flops_of(key, tally)
        share = reasons.total() / max(1, totals.total())
        if share <= FLOAT32_SHARE:
            return
        reason, flops = reasons.most_common(1)[0]
        if census.autocast_dtypes:
            if reason not in AUTOCAST_IS_ELSEWHERE:
                self._say(census, totals, reason, share, flops)
        elif self._has_idle_tf32:
            self._say(census, totals, None, share, flops)

    def _say(
        self,
        census: OpCensus,
        totals: Counter[str],
        reason: Fallback | None,
        share: float,
        flops: int,
    ) -> None:
        def amount(key: OpKey, tally: OpTally) -> int:
            return float32_flops_of(key, tally) if reason in (None, key.fallback) else 0

        amounts = shares.by_module(census, shares.FORWARD, amount)
        where = shares.place(amounts, totals)
        ops: Counter[str] = Counter()
        for key, tally in shares.ops_in(census, shares.FORWARD):
            ops[key.op] += amount(key, tally)
        why = (
            "no autocast is used, and TF32 is off"
            if reason is None
            else f"most of it in {in_words(where)}, {WORDS[reason]}, although autocast is"
            f" {' and '.join(census.autocast_dtypes)}"
        )
        self._book.report(
            FP32_MATMUL,
            where,
            census.step,
            summary=(
                f"{share:.0%} of the FLOPs of the forward pass are float32 matmuls and"
                f" convolutions at step {census.step}: {why}"
            ),
            kind_advice=_AUTOCAST if self._machine.has_no_tensor_cores else FP32_MATMUL.advice,
            op=ops.most_common(1)[0][0],
            phase="forward",
            dtype="float32",
            evidence={
                "float32_share": share,
                "reason_share": flops / totals.total(),
                "float32_flops": share * totals.total(),
                "modules": float(len(amounts)),
                **self._gain(census),
            },
            is_once=True,
        )

    def _gain(self, census: OpCensus) -> dict[str, float]:
        """Return what is won at least, if the least time that float32 takes here is known."""
        peak = self._machine.peak_flops.get("float32")
        if not peak:
            return {}
        ops = [
            (key, tally, flops / peak)
            for key, tally in shares.ops_in(census, shares.TRAINING)
            if (flops := float32_flops_of(key, tally))
        ]
        seconds = shares.saving(ops, self._machine, next(iter(census.autocast_dtypes), "tf32"))
        if seconds is None:
            return {}
        gain = {"recoverable_seconds": seconds}
        if census.duration_s > 0.0:
            gain["gain_ratio"] = seconds / census.duration_s
        return gain


def float32_flops_of(key: OpKey, tally: OpTally) -> int:
    """Return the FLOPs done in float32, and not in TF32.

    Without those of no watched module that are outside of autocast: another model's, perhaps,
    that is meant to be in float32.
    """
    is_elsewhere = not key.module and key.fallback is Fallback.OUTSIDE_REGION
    return shares.flops_of(key, tally) if key.dtype == "float32" and not is_elsewhere else 0
