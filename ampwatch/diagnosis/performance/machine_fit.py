"""Findings about a precision that the machine has no instructions for, and switches left off."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.diagnosis.performance.float32_matmuls import TF32_FROM, float32_flops_of
from ampwatch.diagnosis.performance.kinds import BACKEND_FLAGS, CPU_ISA_MISSING, FP32_MATMUL
from ampwatch.diagnosis.performance.op_shares import TRAINING, by_module, flops_of, ops_in
from ampwatch.diagnosis.scale.kinds import SCALER_WITH_BF16
from ampwatch.numerics.units.ops import HALF_DTYPES, OpKind
from ampwatch.wire.records import Severity

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ampwatch.diagnosis.book import FindingBook
    from ampwatch.diagnosis.detector import Known
    from ampwatch.diagnosis.evidence.ops import OpCensus, OpKey, OpTally


REMAINING_SHARE = 0.05
"""Share of the FLOPs that must be float32 for TF32 to be worth a word."""

CONVOLUTION_SHARE = 0.2
"""Share of the FLOPs that must be convolutions for cuDNN's search to be worth a word."""

FLOAT16_ON_OLD = (
    " This GPU has no bfloat16 units: with float16 autocast the scaler is needed{units}."
)
"""Advice on a scaler beside bfloat16 that a GPU emulates."""


class MachineFit:
    """Holds what a training computes in against what the machine can do."""

    def __init__(self, book: FindingBook, known: Known) -> None:
        self._book = book
        self._machine = known.machine
        self._autocast_dtypes = known.autocast_dtypes
        self._convolutions: frozenset[tuple[str, tuple[int, ...]]] = frozenset()
        capability = known.machine.capability
        self._emulates_bfloat16 = capability is not None and capability < TF32_FROM
        self._has_tf32 = capability is not None and capability >= TF32_FROM

    def check_dtypes(self, step: int) -> None:
        """Check the dtypes of autocast, which need no census."""
        if self._machine.device_type == "cpu":
            self._check_cpu(step, self._autocast_dtypes)
        if self._emulates_bfloat16 and "bfloat16" in self._autocast_dtypes:
            self._say_emulated(step)

    def detect(self, census: OpCensus) -> None:
        """Take in one census."""
        computed = {k.dtype for k, t in ops_in(census, TRAINING) if flops_of(k, t)}
        dtypes = {*computed, *census.autocast_dtypes} & HALF_DTYPES
        if census.device_types == {"cpu"}:
            self._check_cpu(census.step, sorted(dtypes))
        if self._emulates_bfloat16 and "cuda" in census.device_types and "bfloat16" in dtypes:
            self._say_emulated(census.step)
        if self._machine.capability is not None and "cuda" in census.device_types:
            self._check_flags(census)

    def _check_cpu(self, step: int, dtypes: Iterable[str]) -> None:
        missing = [dtype for dtype in dtypes if dtype not in self._machine.cpu_dtypes]
        if not missing:
            return
        instead = sorted(self._machine.cpu_dtypes & HALF_DTYPES)
        has = f"it has them for {' and '.join(instead)}" if instead else "nor for another half"
        self._make(
            Severity.INFO,
            step,
            missing[0],
            f"This CPU has no instructions for {missing[0]}, {has}: ops in it are computed in"
            f" float32 and cast back and forth, which is slower than float32, as of step {step}",
            {"cpu_dtypes": float(len(instead))},
        )

    def _say_emulated(self, step: int) -> None:
        major, minor = self._machine.capability or (0, 0)
        evidence = {"compute_capability": major + minor / 10}
        self._make(
            Severity.WARNING,
            step,
            "bfloat16",
            f"{self._machine.device_name or 'This GPU'} (compute capability {major}.{minor}) has no"
            f" bfloat16 units, they come with 8.0: bfloat16 is emulated, without tensor cores and"
            f" slower than float16, as of step {step}",
            evidence,
        )
        scaler = self._book.get(SCALER_WITH_BF16.slug, "api")
        units = "" if self._machine.has_no_tensor_cores else ", and the tensor cores are used"
        if scaler is not None and not evidence.keys() <= scaler.evidence.keys():
            scaler.kind_advice += FLOAT16_ON_OLD.format(units=units)
            scaler.evidence |= evidence
            self._book.report_change(scaler)

    def _make(
        self,
        severity: Severity,
        step: int,
        dtype: str,
        summary: str,
        evidence: dict[str, float],
    ) -> None:
        self._book.report(
            CPU_ISA_MISSING,
            "env",
            step,
            summary=summary,
            severity=severity,
            phase="config",
            dtype=dtype,
            evidence=evidence,
            is_once=True,
        )

    def _check_flags(self, census: OpCensus) -> None:
        total = by_module(census, TRAINING, flops_of).total()
        if not total:
            return
        matmuls, convolutions = self._idle_tf32(census)
        unsearched = self._unsearched(census)
        flags = {
            "torch.set_float32_matmul_precision('high')": matmuls >= REMAINING_SHARE * total,
            "torch.backends.cudnn.allow_tf32 = True": convolutions >= REMAINING_SHARE * total,
            "torch.backends.cudnn.benchmark = True": unsearched >= CONVOLUTION_SHARE * total,
        }
        if not any(flags.values()):
            return
        tf32, benchmark = (matmuls + convolutions) / total, unsearched / total
        self._book.report(
            BACKEND_FLAGS,
            "env",
            census.step,
            summary=(
                f"Switches of PyTorch that this training would run faster with are off, at"
                f" step {census.step}: {' and '.join(f for f, is_worth in flags.items() if is_worth)}."
                f" {tf32:.0%} of the FLOPs are float32 that may not use TF32, {benchmark:.0%} are"
                f" convolutions of sizes that stay the same and that cuDNN has not searched the"
                f" fastest algorithm for"
            ),
            phase="config",
            evidence={"float32_share": tf32, "unsearched_convolution_share": benchmark},
            is_once=True,
        )

    def _idle_tf32(self, census: OpCensus) -> tuple[int, int]:
        """Return the FLOPs of float32 matmuls and convolutions that TF32 is switched off for.

        None where ``fp32_matmul`` says it already.
        """
        if not self._has_tf32 or self._book.of_kind(FP32_MATMUL.slug):
            return 0, 0
        flops = by_module(census, TRAINING, float32_flops_of).total()
        convolutions = by_module(
            census, TRAINING, lambda k, t: min(float32_flops_of(k, t), _convolution_flops_of(k, t))
        ).total()
        return (
            0 if self._machine.matmul_tf32 else flops - convolutions,
            0 if self._machine.convolution_tf32 else convolutions,
        )

    def _unsearched(self, census: OpCensus) -> int:
        """Return the FLOPs of convolutions, if their sizes are those of the census before."""
        sizes = frozenset(
            (key.module, tally.shape)
            for key, tally in ops_in(census, TRAINING)
            if _convolution_flops_of(key, tally)
        )
        are_the_same, self._convolutions = sizes == self._convolutions, sizes
        if self._machine.cudnn_benchmark or not are_the_same:
            return 0
        return by_module(census, TRAINING, _convolution_flops_of).total()


def _convolution_flops_of(key: OpKey, tally: OpTally) -> int:
    return flops_of(key, tally) if key.kind is OpKind.CONVOLUTION else 0
