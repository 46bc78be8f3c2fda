"""Iterations made from a list of verdicts, and the detectors that look at them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ampwatch.diagnosis.book import FindingBook
from ampwatch.diagnosis.detector import Known, Shared
from ampwatch.diagnosis.detectors import DETECTORS
from ampwatch.diagnosis.evidence.iteration import Iteration, ScalerSettings
from ampwatch.diagnosis.gradients.culprits import Culprits
from ampwatch.diagnosis.news import News, Reason
from ampwatch.diagnosis.scale.scale_dynamics import ScaleDynamics
from ampwatch.diagnosis.scale.scale_reset import ScaleReset
from ampwatch.diagnosis.state.divergence import Divergence
from ampwatch.diagnosis.steps.periodic_skips import PeriodicSkips
from ampwatch.diagnosis.steps.shared_scaler import SharedScaler
from ampwatch.diagnosis.steps.step_bookkeeping import StepBookkeeping
from ampwatch.diagnosis.steps.steps import StepJudge
from ampwatch.wire.records import SkipClass
from tests.workshop.iterations import MadeUpScaler, iteration

OF_STEPS = (
    Culprits,
    ScaleDynamics,
    StepBookkeeping,
    ScaleReset,
    PeriodicSkips,
    SharedScaler,
    Divergence,
)
"""Detectors that judge by verdicts, scales and losses."""


@dataclass
class Simulation(MadeUpScaler):
    """Runs verdicts through a scaler, the judge and the detectors."""

    scale: float = 65536.0
    scaler: ScalerSettings = field(default_factory=lambda: ScalerSettings(2.0, 0.5, 2000))
    dtypes: list[str] = field(default_factory=lambda: ["float16"])

    def __post_init__(self) -> None:
        self.tracker = 0
        self.step = 0
        self.notified: list[tuple[str, Reason]] = []
        self.classes: list[SkipClass] = []
        self.scales: list[float] = []
        self.book = FindingBook(self._notify)
        self.shared = Shared(self.book, known=Known(self.dtypes))
        self.judge = StepJudge(self.shared.skips)
        self.detectors = [self.shared.build(kind) for kind in DETECTORS if kind in OF_STEPS]

    def _notify(self, news: News) -> None:
        self.notified.append((news.finding.kind, news.reason))

    def run(
        self, verdicts: Iterable[bool], *, loss: float = 1.0, scheduled: bool = False
    ) -> Simulation:
        """Take one step per verdict (``True``: the gradients were not finite)."""
        for found_inf in verdicts:
            before = self.scale
            self._move(found_inf=found_inf)
            taken = self.iteration(
                {0: found_inf}, loss=loss, scheduler_stepped=frozenset({0} if scheduled else ())
            )
            taken.scale_before = before
            self.take(taken)
        return self

    def take(self, iteration: Iteration) -> None:
        """Judge one iteration and let the detectors look at it."""
        verdict = self.judge.judge(iteration)
        self.classes.append(verdict.skip_class)
        self.scales.append(iteration.loss_scale)
        self.book.now_ns = iteration.time_ns
        for detector in self.detectors:
            detector.detect(iteration, verdict)
        self.book.attach_symptoms()
        self.book.report_escalations()
        self.step = iteration.step + 1

    def iteration(
        self,
        found_inf: dict[int, bool],
        *,
        loss: float = 1.0,
        scale_given: bool = False,
        scheduler_stepped: frozenset[int] = frozenset(),
    ) -> Iteration:
        """Return an iteration as the sensors would deliver it now."""
        return iteration(
            step=self.step,
            loss=loss,
            scale_before=self.scales[-1] if self.scales else self.scale,
            loss_scale=self.scale,
            growth_tracker=self.tracker,
            scaler=self.scaler,
            scale_given=scale_given,
            found_inf=found_inf,
            scheduler_stepped=scheduler_stepped,
        )

    @property
    def kinds(self) -> list[str]:
        """Kinds of the findings, in the order in which they were made."""
        return [f.kind for f in self.book.findings]
