"""Findings about weights whose casts autocast has kept from before they changed."""

from __future__ import annotations

from ampwatch.diagnosis.autocast.kinds import STALE_AUTOCAST_CACHE
from ampwatch.diagnosis.counting import counted
from ampwatch.diagnosis.detector import Detector, takes
from ampwatch.diagnosis.evidence.scaler import StaleCast
from ampwatch.wire.records import in_words


class StaleCasts(Detector):
    """Says what the sensor has proven."""

    @takes(StaleCast)
    def observe(self, seen: StaleCast) -> None:
        """Take in a forward with casts from before the last step."""
        first = (
            f", the first of them {in_words(f'param:{seen.parameter}')}" if seen.parameter else ""
        )
        where = f"param:{seen.parameter}" if seen.parameter else "api"
        if any(f.last_step == seen.step for f in self._book.of_kind(STALE_AUTOCAST_CACHE.slug)):
            return  # another sensor has seen it in the same iteration
        self._book.report(
            STALE_AUTOCAST_CACHE,
            where,
            seen.step,
            summary=(
                f"A forward in step {seen.step} used {counted(seen.casts, 'weight')} as before the"
                f" last change{first}: the autocast region was"
                f" not left in between, and keeps what it has cast to {seen.dtype}. The model"
                f" does not see its updates"
            ),
            phase="forward",
            dtype=seen.dtype,
            evidence={"stale_casts": float(seen.casts)},
            is_once=True,
        )
