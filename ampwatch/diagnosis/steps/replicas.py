"""Findings about replicas in one process that do not agree on a step."""

from __future__ import annotations

from ampwatch.diagnosis.counting import counted
from ampwatch.diagnosis.detector import Detector, takes
from ampwatch.diagnosis.evidence.scaler import ReplicaVerdicts
from ampwatch.diagnosis.steps.kinds import RANK_FOUND_INF_MISMATCH
from ampwatch.numerics.written import scale_text


class Replicas(Detector):
    """Reports that replicas part."""

    @takes(ReplicaVerdicts)
    def observe(self, seen: ReplicaVerdicts) -> None:
        """Take in that one of several replicas skips a step that another one takes."""
        here = "skips it" if seen.here else "takes it"
        self._book.report(
            RANK_FOUND_INF_MISMATCH,
            f"optimizer:{seen.optimizer}",
            seen.step,
            summary=(
                f"{seen.skipping} of {seen.replicas} replicas skip step {seen.step} at a loss"
                f" scale of {scale_text(seen.loss_scale)} (this one {here}), after"
                f" {counted(seen.common_steps, 'step')} together: from here on their weights and scales are different"
            ),
            phase="optimizer",
            evidence={
                "replicas": float(seen.replicas),
                "skipping": float(seen.skipping),
                "common_steps": float(seen.common_steps),
                "loss_scale": seen.loss_scale,
            },
            is_once=True,
        )
