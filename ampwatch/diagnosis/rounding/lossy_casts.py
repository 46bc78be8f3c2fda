"""Findings about integers that a format cannot keep distinct."""

from __future__ import annotations

from ampwatch.diagnosis.detector import Detector, takes
from ampwatch.diagnosis.evidence.rounding import LossyCast
from ampwatch.diagnosis.rounding.kinds import LOSSY_INTEGER_CAST
from ampwatch.numerics.formats import FORMATS
from ampwatch.wire.records import Severity

ANGLES = (
    "Keep times, positions and rates in float32 until sines are taken of them, and cast what comes of it: no"
    " .to(dtype) before sin and cos, and no autocast around them. With FSDP2 pass"
    " MixedPrecisionPolicy(cast_forward_inputs=False): it casts what modules are called with."
)
"""Advice where they are no integers."""


class RoundedIntegers(Detector):
    """Reports once that integers were rounded: positions, counts, times, ids.

    Integers that run up or down are positions or counts, and their neighbours have become the
    same: a warning. So are times of which sines are taken that the rounding has made other ones. Others may be
    measurements, which lose nothing that matters: an info.
    """

    @takes(LossyCast)
    def observe(self, cast: LossyCast) -> None:
        """Take in a cast of integers that are too large for its format."""
        matters = cast.is_ordered or cast.angle > 0.0
        severity = Severity.WARNING if matters else Severity.INFO
        made = self._book.of_kind(LOSSY_INTEGER_CAST.slug)
        evidence = {
            "values": float(cast.num_values),
            "distinct_before": float(cast.distinct),
            "distinct_after": float(cast.kept),
            "rounded": float(cast.rounded),
            "largest": cast.largest,
        }
        site = cast.site
        # Positions are cast once in every layer: one incident. An info stands for no warning.
        alike = next((f for f in made if f.severity == severity), None)
        if alike is not None or (made and severity is Severity.INFO):
            alike = alike or made[0]
            if alike.last_step != site.step:
                self._book.again(alike, site.step)
            return
        if any(f.where == site.where for f in made):
            return
        self._book.report(
            LOSSY_INTEGER_CAST,
            site.where,
            site.step,
            summary=_summary(cast),
            severity=severity,
            op=site.op,
            phase=site.phase,
            dtype=cast.dtype,
            source=site.source,
            evidence={
                "values": float(cast.num_values),
                "largest": cast.largest,
                "angle": cast.angle,
            }
            if cast.angle
            else evidence,
            kind_advice=ANGLES if cast.angle else LOSSY_INTEGER_CAST.advice,
        )


def _summary(cast: LossyCast) -> str:
    where = cast.site.where
    place = (
        "outside of the model"
        if where == "loss"
        else f"in {where!r}"
        if where
        else "in the model itself"
    )
    limit = 2 ** (FORMATS[cast.dtype].mantissa_bits + 1)
    if cast.angle:
        return (
            f"Numbers up to {cast.largest:.4g} became {cast.dtype} {place} in step {cast.site.step}, and are the angle"
            f" of a sine or cosine, which the rounding makes wrong by up to {cast.angle:.2g} rad: different numbers"
            " get the same embedding, or a wrong one"
        )
    head = (
        f"Integers up to {cast.largest:.0f} became {cast.dtype} {place} in step {cast.site.step},"
        f" which holds every integer only up to {limit}"
    )
    if cast.kept < cast.distinct:
        return f"{head}: of {cast.distinct} different ones {cast.kept} are left"
    return f"{head}: {cast.rounded} of {cast.num_values} were rounded"
