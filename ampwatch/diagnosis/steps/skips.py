"""Classes of skipped steps: a scaler's own search, and what is none."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ampwatch.wire.records import SkipClass

if TYPE_CHECKING:
    from ampwatch.diagnosis.evidence.iteration import ScalerSettings


FAR_BELOW = 2.0**-4
"""Ratio to the largest scale that has worked at which a skip is no calibration any more: gradients
that grow with the first updates cost a few halvings."""

WORKED = 4
"""Unskipped steps in a row after which a scale has worked. The first updates of weights that begin
at zero may have next to no gradients."""

CALIBRATION_STEPS = 20
"""Unskipped steps in a row, at most one growth interval, after which the scale counts as calibrated."""

PROBE_STEPS = 10
"""A skip so many steps after a growth, at most one growth interval, is the probe of that growth."""

MAX_HALVINGS = 32
"""Halvings from the largest initial scale of any framework, 2^32, to 1: so many skips in a row may be
calibration where the scale itself is not known."""


MAX_SKIPS_AT_SCALE = 4
"""Skips in a row at one scale that may be calibration or a probe, by hysteresis: those lower the scale."""


class SkipClassifier:
    """Classifies the skipped steps of one scaler, in order.

    Attributes:
        calibrated: Whether the first unskipped run of steps is over.
        streak: Consecutive skipped steps up to now.
        unexplained: Consecutive skipped steps up to now that neither calibration nor
            a growth explains.
        at_scale: Consecutive skipped steps up to now at the scale that is in use; 0 where it is not known.
        lowest_applied: Smallest scale that a step was taken with, since the scale was
            last set by hand; infinite before the first.
    """

    def __init__(self) -> None:
        self.calibrated = False
        self.streak = 0
        self.unexplained = 0
        self.at_scale = 0
        self.lowest_applied = math.inf
        self._skipped_at = math.nan
        self._largest_worked = 0.0
        self._unskipped = 0
        self._since_growth: int | None = None

    def moved_by_hand(self, before: float, after: float) -> None:
        """The user set the scale: from above it has to find its place again.

        Not in the middle of skips: a scale that is held up by hand while every step is
        skipped is not being calibrated.
        """
        self.lowest_applied = math.inf
        self._largest_worked = 0.0
        if after > before and not self.streak:
            self.calibrated = False
            self._unskipped = 0
            self._since_growth = None

    def applied(self, scaler: ScalerSettings, scale: float, *, grew: bool, times: int = 1) -> None:
        """Note a step that was not skipped, or several in a row.

        Args:
            scaler: The scaler's settings.
            scale: The scale that they were taken with.
            grew: The scale grew after it.
            times: How many; 1 where it grew.
        """
        self.streak = self.unexplained = self.at_scale = 0
        self._unskipped += times
        self.lowest_applied = min(self.lowest_applied, scale)
        if self._unskipped >= WORKED:
            self._largest_worked = max(self._largest_worked, scale)
        if self._unskipped >= min(CALIBRATION_STEPS, scaler.growth_interval):
            self.calibrated = True
        if grew:
            self._since_growth = 0
        elif self._since_growth is not None:
            self._since_growth += times

    def skipped(
        self, scaler: ScalerSettings, scale_before: float, *, nonfinite_loss: bool
    ) -> SkipClass:
        """Classify a skipped step.

        Args:
            scaler: The scaler's settings.
            scale_before: The scale the skipped step was taken with; NaN if unknown.
            nonfinite_loss: The unscaled loss was NaN or infinite already. No scale
                cures that, so it is neither calibration nor a probe.
        """
        self.streak += 1
        self._unskipped = 0
        is_known = not math.isnan(scale_before)
        self.at_scale = self.at_scale + 1 if scale_before == self._skipped_at else int(is_known)
        self._skipped_at = scale_before
        skip_class = self._why(scaler, scale_before, nonfinite_loss=nonfinite_loss)
        self._since_growth = None
        if skip_class in (SkipClass.CALIBRATING, SkipClass.PROBE):
            self.unexplained = 0
        elif not self.unexplained and not self.calibrated:
            # What turns out not to be calibration has not been so from its first skip on.
            self.unexplained = self.streak
        else:
            self.unexplained += 1
        return skip_class

    def _why(
        self, scaler: ScalerSettings, scale_before: float, *, nonfinite_loss: bool
    ) -> SkipClass:
        if not nonfinite_loss and self.at_scale <= MAX_SKIPS_AT_SCALE:
            # Of a scale that is not known only how often it can have been halved is.
            if math.isnan(scale_before) and self.streak > MAX_HALVINGS:
                return SkipClass.STORM if self.unexplained else SkipClass.UNPROVOKED
            # Calibration searches for the largest scale that fits; below 1 the loss is
            # being shrunk, which is no calibration any more (torch.amp.GradScaler.update).
            # Nor is a fall far below a scale that worked: it has been found already.
            lowest = max(1.0, FAR_BELOW * self._largest_worked)
            if not self.calibrated and not scale_before <= lowest:
                return SkipClass.CALIBRATING
            window = min(PROBE_STEPS, scaler.growth_interval)
            if self._since_growth is not None and self._since_growth < window:
                return SkipClass.PROBE
        return SkipClass.STORM if self.unexplained else SkipClass.UNPROVOKED
