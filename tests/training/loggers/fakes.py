"""Loggers of others, as far as ``log_to`` uses them, that keep what they are given."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


@dataclass
class Writer:
    """A SummaryWriter."""

    scalars: list[tuple[str, float, int, float]] = field(default_factory=list)
    texts: list[tuple[str, str, int]] = field(default_factory=list)
    histograms: list[dict[str, Any]] = field(default_factory=list)
    flushes: int = 0
    all_writers: dict[str, object] | None = field(default_factory=dict)

    def add_scalar(self, tag: str, value: float, step: int, *, walltime: float) -> None:
        self.scalars.append((tag, value, step, walltime))

    def add_text(self, tag: str, text: str, step: int, *, walltime: float) -> None:
        self.texts.append((tag, text, step))

    def add_histogram_raw(self, tag: str, **given: Any) -> None:
        self.histograms.append({"tag": tag, **given})

    def flush(self) -> None:
        self.flushes += 1

    def close(self) -> None:
        self.all_writers = None


class WandbRun:
    """A run of W&B, which counts rows as W&B does."""

    name = "quiet-sea-1"

    def __init__(self) -> None:
        self.step = 0
        self.rows: list[dict[str, float]] = [{}]
        self.axes: dict[str, str | None] = {}
        self.summary: dict[str, Any] = {}
        self.alerts: list[tuple[str, str, str]] = []

    def define_metric(
        self, name: str, *, step_metric: str | None = None, hidden: bool = False
    ) -> None:
        self.axes[name] = step_metric

    def log(self, numbers: dict[str, float], *, commit: bool = True) -> None:
        self.rows[-1].update(numbers)
        if commit:
            self.step += 1
            self.rows.append({})

    def alert(self, *, title: str, text: str, level: str) -> None:
        self.alerts.append((title, text, level))


class TrackioRun:
    """A run of Trackio, which counts steps as Trackio does."""

    name = "dainty-sunset-0"

    def __init__(self) -> None:
        self._next_step = 0
        self.rows: list[tuple[int, dict[str, Any]]] = []
        self.alerts: list[tuple[str, str, str, int]] = []

    def log(self, numbers: dict[str, Any], step: int | None = None) -> None:
        step = self._next_step if step is None else step
        self._next_step = max(self._next_step, step + 1)
        self.rows.append((step, numbers))

    def alert(self, *, title: str, text: str, level: str, step: int) -> None:
        self.alerts.append((title, text, level, step))

    def finish(self) -> None:
        raise NotImplementedError


class MlflowClient:
    """A client of MLflow before it could log a batch."""

    def __init__(self) -> None:
        self.metrics: list[tuple[str, str, float, int, int]] = []
        self.tags: dict[str, str] = {}

    def get_run(self, run_id: str) -> None:
        raise NotImplementedError

    def log_metric(self, run: str, key: str, value: float, *, timestamp: int, step: int) -> None:
        self.metrics.append((run, key, value, timestamp, step))

    def set_tag(self, run: str, key: str, value: str) -> None:
        self.tags[key] = value


class Mlflow:
    """The module, with the active run of the thread that asks, or none."""

    def __init__(self, run_id: str | None) -> None:
        self.client = MlflowClient()
        self._run_id = run_id

    def MlflowClient(self) -> MlflowClient:  # noqa: N802 - its name
        return self.client

    def active_run(self) -> Any:
        if self._run_id is None:
            return None
        return SimpleNamespace(info=SimpleNamespace(run_id=self._run_id))
