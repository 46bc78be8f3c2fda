"""Trainings without a model: what the sensors would deliver, made of plain numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from ampwatch.diagnosis.detector import Known
from ampwatch.diagnosis.evidence.iteration import SamplingCost, ScalerSettings, TensorRange
from ampwatch.diagnosis.pipeline import Diagnosis, SelfCost
from ampwatch.settings import Settings
from ampwatch.wire.records import Topic
from tests.numerics.oracle import histogram_of
from tests.workshop.iterations import MadeUpScaler, iteration

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ampwatch.diagnosis.news import Reason
    from ampwatch.wire.records import Finding, Record

NAMES = (Topic.GRADIENT, Topic.WEIGHT, Topic.BUFFER)


def measured(
    topic: Topic, name: str, values: Iterable[float], dtype: str = "float32", **options: Any
) -> TensorRange:
    """Return what a sensor measures of ``values``."""
    module = name.rpartition(".")[0] if topic in NAMES else name
    return TensorRange(topic, name, module, dtype, histogram_of(list(values)), **options)


class Replay(MadeUpScaler):
    """Hands iterations to the diagnosis, with a scaler that moves as the real one does."""

    def __init__(
        self,
        scale: float = 65536.0,
        *,
        scaled: bool = True,
        dtypes: Sequence[str] = ("float16",),
        lost_eps: Mapping[str, float] | None = None,
        growth_interval: int = 2000,
        **settings: Any,
    ) -> None:
        self.scale = scale
        self.scaler = ScalerSettings(2.0, 0.5, growth_interval) if scaled else None
        self.step = self.tracker = 0
        self.records: list[Record] = []
        self.notified: list[tuple[str, Reason]] = []
        self.diagnosis = Diagnosis(
            Settings.resolve(settings, {}),
            scale if scaled else math.nan,
            put=lambda *records: self.records.extend(records),
            notify=lambda news: self.notified.append((news.finding.kind, news.reason)),
            cost=lambda: SelfCost(0, 0, 0),
            sampling_cost=lambda: SamplingCost(5, 1, 2, 3),
            known=Known(dtypes, lost_eps or {}),
            run_guarded=lambda work, *arguments: work(*arguments),
        )

    def gradient(self, name: str, true_values: Iterable[float]) -> TensorRange:
        """Return a gradient as float16 autocast leaves it: scaled, cast, and cast back."""
        scale = self.scale if self.scaler else 1.0
        scaled = torch.tensor(list(true_values), dtype=torch.float64) * scale
        values = scaled.to(torch.float16).double().tolist()
        return measured(Topic.GRADIENT, name, values, scaled=self.scaler is not None)

    def take(
        self,
        *ranges: TensorRange,
        found_inf: bool | None = None,
        loss: float = 1.0,
        loss_dtype: str = "float32",
    ) -> Replay:
        """Take one iteration; it is skipped if a measured gradient is not finite."""
        if found_inf is None:
            found_inf = any(r.topic is Topic.GRADIENT and r.histogram.nonfinite for r in ranges)
        before = self.scale if self.scaler else math.nan
        self._move(found_inf=found_inf)
        self.last = iteration(
            step=self.step,
            time_ns=self.step * 1_000_000_000,
            duration_s=0.1,
            loss=loss,
            scale_before=before,
            loss_scale=self.scale if self.scaler else math.nan,
            growth_tracker=self.tracker if self.scaler else -1,
            scaler=self.scaler,
            found_inf={0: found_inf} if self.scaler else {},
            applied_directly=() if self.scaler else (0,),
            loss_dtype=loss_dtype,
            topics=frozenset(r.topic for r in ranges),
            ranges=ranges,
        )
        self.diagnosis.deliver(self.last)
        self.step += 1
        return self

    @property
    def findings(self) -> list[Finding]:
        """The findings so far."""
        return self.diagnosis.book.findings

    @property
    def roots(self) -> list[tuple[str, str]]:
        """Kind and place of each root that is more than an info."""
        return [(f.kind, f.where) for f in self.findings if f.root and f.severity.value != "info"]

    def only(self, kind: str) -> Finding:
        """Return the one finding of a kind."""
        (finding,) = [f for f in self.findings if f.kind == kind]
        return finding

    def of(self, kind: type) -> list[Any]:
        """Return the records of a type."""
        return [r for r in self.records if isinstance(r, kind)]
