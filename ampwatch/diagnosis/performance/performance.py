"""Findings about mixed precision that gains less than it could, or nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.diagnosis.autocast.autocast_state import AutocastState
from ampwatch.diagnosis.detector import Detector, Shared, takes
from ampwatch.diagnosis.evidence.ops import TrainingMoved
from ampwatch.diagnosis.performance.casts import Casts
from ampwatch.diagnosis.performance.float32_matmuls import Float32Matmuls
from ampwatch.diagnosis.performance.kernel_choice import SlowKernels
from ampwatch.diagnosis.performance.machine_fit import MachineFit
from ampwatch.diagnosis.performance.op_shapes import OpShapes
from ampwatch.wire.records import CensusSource

if TYPE_CHECKING:
    from ampwatch.diagnosis.detector import Known
    from ampwatch.diagnosis.evidence.iteration import Iteration
    from ampwatch.diagnosis.evidence.ops import OpCensus
    from ampwatch.diagnosis.steps.steps import StepVerdict


class Performance(Detector):
    """Checks what ran in which dtype, and in which kernels."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._autocast_dtypes = shared.known.autocast_dtypes
        self._begin(shared.known)

    @takes(TrainingMoved)
    def move(self, moved: TrainingMoved) -> None:
        """Judge by another machine from now on, and forget what ran on the one before."""
        self._begin(self._known._replace(machine=moved.machine, layers=moved.layers))
        self.check_layers()

    def _begin(self, known: Known) -> None:
        self._known, self._known_dtypes = known, 0
        self._state = AutocastState(self._book, known)
        self._matmuls = Float32Matmuls(self._book, known)
        self._shapes = OpShapes(self._book, known)
        self._casts = Casts(self._book, known)
        self._machine = MachineFit(self._book, known)
        self._kernels = SlowKernels(self._book, known)

    def check_layers(self) -> None:
        """Check the shapes of the layers, before anything has run."""
        self._shapes.check_layers()

    def detect(self, iteration: Iteration, _verdict: StepVerdict) -> None:
        """Take in one judged iteration, after ``ScaleDynamics`` has."""
        if len(self._autocast_dtypes) != self._known_dtypes:
            self._known_dtypes = len(self._autocast_dtypes)
            self._shapes.check_layers()
            self._machine.check_dtypes(iteration.step)
        if iteration.census is not None:
            is_scaled = iteration.scaler is not None
            self.check_census(
                iteration.census, is_scaled=is_scaled, num_losses=iteration.num_losses
            )
        if iteration.window is not None:
            self._kernels.detect(iteration.window)

    def check_census(
        self, census: OpCensus, *, is_scaled: bool = False, num_losses: int = 0
    ) -> None:
        """Take in one census.

        Args:
            census: The census, be it of an iteration that did not end.
            is_scaled: Whether an enabled scaler took part in the iteration.
            num_losses: How many losses were scaled in it; 0 if that is not known.
        """
        if census.source is CensusSource.PROFILER:
            # The profiler does not see autocast; who enters a region is known anyway.
            census.autocast_dtypes = tuple(self._autocast_dtypes)
        self._kernels.remember(census)
        self._state.detect(census, is_scaled=is_scaled)
        self._matmuls.detect(census)
        self._shapes.detect(census)
        self._casts.detect(census, num_losses)
        self._machine.detect(census)
