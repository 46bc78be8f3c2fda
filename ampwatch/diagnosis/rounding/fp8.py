"""Findings about casts to FP8 formats: their scale is too large, too small, or not finite."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.diagnosis.detector import Detector, takes
from ampwatch.diagnosis.evidence.rounding import BrokenScale, Fp8Cast
from ampwatch.diagnosis.rounding.kinds import FP8_SATURATION, FP8_SCALE_NONFINITE, FP8_UNDERFLOW
from ampwatch.numerics.formats import FORMATS
from ampwatch.wire.records import Severity

if TYPE_CHECKING:
    from ampwatch.diagnosis.evidence.rounding import OpSite
    from ampwatch.diagnosis.kinds.kind import Kind


MIN_VALUES = 64
"""Numbers of a cast below which a share says nothing."""

MIN_LOST = 8

CLIPPED_SHARE = 0.02
"""Share of the numbers of a cast that are clipped, from which it is reported; MXFP8 clips 0.005 by design."""

FLUSHED_SHARE = 0.1
"""Share of the non-zero numbers of a cast that become zero, from which it is reported; in healthy trainings it is
below one in two hundred."""


class Fp8(Detector):
    """Checks what casts to FP8 lose.

    Each kind is made once, at the first place; the others are counted.
    """

    @takes(Fp8Cast)
    def observe(self, cast: Fp8Cast) -> None:
        """Take in a cast."""
        if cast.num_values < MIN_VALUES:
            return
        if cast.clipped >= max(MIN_LOST, CLIPPED_SHARE * cast.num_values):
            self._clipped(cast)
        if cast.flushed >= max(MIN_LOST, FLUSHED_SHARE * cast.num_values):
            self._flushed(cast)

    @takes(BrokenScale)
    def observe_scale(self, scale: BrokenScale) -> None:
        """Take in a scale that is not finite, and was used."""
        site = scale.site
        self._make(
            FP8_SCALE_NONFINITE,
            site,
            scale.dtype,
            f"A scale for {scale.dtype} is not finite: {site.op} in {_place(site.where)} divided by"
            f" zero or by next to nothing (a largest magnitude of 0), so that {scale.num_values} numbers"
            f" were NaN or infinite when they were cast in {_place(scale.cast_in)} in step"
            f" {site.step}",
            {"nonfinite": float(scale.num_values)},
        )

    def _clipped(self, cast: Fp8Cast) -> None:
        largest = FORMATS[cast.dtype].max
        share = cast.clipped / cast.num_values
        finding = self._book.get(FP8_SATURATION.slug, cast.site.where)
        # A delayed scale begins with 1 before it has seen anything: that is over after a step.
        if finding is not None and finding.severity is Severity.INFO and not cast.is_first:
            finding.severity = Severity.WARNING
        self._make(
            FP8_SATURATION,
            cast.site,
            cast.dtype,
            f"{share:.1%} of the numbers cast to {cast.dtype} in {_place(cast.site.where)} in step"
            f" {cast.site.step} were clipped: the largest is {cast.largest:.4g}, the format ends at"
            f" {largest:g}. The scale is too large for them by a factor of"
            f" {cast.largest / largest:.3g}",
            {
                "clipped_share": share,
                "largest": cast.largest,
                "largest_of_format": largest,
                "values": float(cast.num_values),
                "times_too_large": cast.largest / largest,
            },
            severity=Severity.INFO if cast.is_first else Severity.WARNING,
        )

    def _flushed(self, cast: Fp8Cast) -> None:
        fmt = FORMATS[cast.dtype]
        share = cast.flushed / cast.num_values
        self._make(
            FP8_UNDERFLOW,
            cast.site,
            cast.dtype,
            f"{share:.1%} of the numbers that are not zero became zero when they were cast to"
            f" {cast.dtype} in {_place(cast.site.where)} in step {cast.site.step}: they are"
            f" {fmt.flush_at:.3g} or less, while the largest, which sets the scale, is"
            f" {cast.largest:.4g}",
            {"flushed_share": share, "largest": cast.largest, "values": float(cast.num_values)},
        )

    def _make(
        self,
        kind: Kind,
        site: OpSite,
        dtype: str,
        summary: str,
        evidence: dict[str, float],
        *,
        severity: Severity | None = None,
    ) -> None:
        made = self._book.of_kind(kind.slug)
        if not made:
            self._book.report(
                kind,
                site.where,
                site.step,
                summary=summary,
                severity=severity,
                op=site.op,
                phase=site.phase,
                dtype=dtype,
                source=site.source,
                evidence=evidence,
            )
        elif made[-1].last_step != site.step:  # one incident has many places
            self._book.again(made[-1], site.step)


def _place(where: str) -> str:
    return "the code outside of the model" if where == "loss" else f"module {where!r}"
