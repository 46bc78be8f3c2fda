"""The rules of GPM samples: which two are compared, and which are not."""

from __future__ import annotations

import pytest

from ampwatch.host.fleet.gpus import Answer, Answers, Feature, Reason
from ampwatch.host.gpu import gpm
from ampwatch.host.gpu.gpm import Gpm, nothing
from ampwatch.host.gpu.nvml import Nvml
from tests.host.gpu.standin import Standin
from tests.workshop.clocks import Clock


class Bench:
    """A sampler under a clock that is set by hand.

    Attributes:
        taken: The samples that were filled.
        outcome: What filling one returns.
    """

    def __init__(self, driver: Standin) -> None:
        nvml = driver.nvml()
        assert isinstance(nvml, Nvml)
        self.clock = Clock()
        self.taken: list[object] = []
        self.outcome: Reason | None = None
        self._sampler = Gpm(nvml, self._take, self.clock)

    def _take(self, sample: object) -> Reason | None:
        self.taken.append(sample)
        return self.outcome

    def read(self, after: float) -> Answers:
        self.clock.now += after
        return self._sampler.read()

    def active(self, after: float) -> Answer:
        return self.read(after)[Feature.SM_ACTIVE][""]


@pytest.fixture
def bench(driver: Standin, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(gpm, "MIN_SECONDS", 0.1)
    return Bench(driver)


def test_samples_that_are_too_close_are_not_taken(bench: Bench) -> None:
    """They would give 0 or NaN; what was known before is told again."""
    bench.read(0)
    known = bench.read(5)

    assert bench.read(0.05) == known
    assert known[Feature.SM_ACTIVE][""] == pytest.approx(0.02)
    assert len(bench.taken) == 2


def test_a_mean_over_a_long_sleep_is_nobodys_present(bench: Bench) -> None:
    """The machine was suspended: it starts over."""
    bench.read(0)

    assert bench.active(601) is Reason.WAITING
    assert bench.active(5) == pytest.approx(0.02)


def test_a_sample_that_cannot_be_taken_is_the_reason(bench: Bench) -> None:
    """The sample before is kept for when it can."""
    bench.read(0)
    bench.outcome = Reason.NO_PERMISSION
    refused = bench.read(5)
    bench.outcome = None

    assert refused == nothing(Reason.NO_PERMISSION)
    assert bench.active(5) == pytest.approx(0.02)
