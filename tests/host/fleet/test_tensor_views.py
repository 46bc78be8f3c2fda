"""Three views of the tensor cores, each wrong in turn."""

from __future__ import annotations

from typing import Any

import pytest

from ampwatch.diagnosis.performance.kinds import TENSOR_VIEWS_DISAGREE
from ampwatch.host.fleet.compared_views import ViewComparison
from ampwatch.host.fleet.gpus import Feature, Gpu, Instance, Reason
from ampwatch.host.fleet.rank import RankView
from ampwatch.host.fleet.tensor_views import TensorViews
from ampwatch.numerics.units.ops import OpKind
from ampwatch.settings import Settings
from ampwatch.wire.records import (
    FactsRecord,
    KernelTotal,
    OpTotal,
    Severity,
    WindowRecord,
)
from tests.workshop.clocks import Clock
from tests.workshop.records import census, end, identity, step, window

UUID = "GPU-1"
PEAK = 1e15


class Training(RankView):
    """A rank whose iterations take 0.1 s, with shares of that in kernels and FLOPs."""

    def __init__(self, *, tensor: float, unknown: float = 0.0, flops_share: float = 0.0) -> None:
        self.clock = Clock(1000.0)
        super().__init__(identity(), clock=self.clock, settings=Settings())
        self.apply(FactsRecord({"gpu_uuid": UUID, "peak_flops": f"float16={PEAK}"}))
        flops = int(flops_share * 0.1 * PEAK)
        ops = (OpTotal(OpKind.MATMUL, "float16", 1, flops, flops, 0),)
        self.apply(census(iterations=1, ops=ops))
        self.apply(_window(tensor, unknown))
        self.steps = 0
        self.step()

    def step(self) -> None:
        time_ns = int(self.clock.now * 1e9)
        self.apply(step(self.steps, time_ns=time_ns, duration_s=0.1))
        self.steps += 1


def _window(tensor: float, unknown: float) -> WindowRecord:
    wall_ns = 200_000_000
    return window(
        KernelTotal("tensor", "float16", int(tensor * wall_ns)),
        KernelTotal("unknown", "", int(unknown * wall_ns)),
        wall_ns=wall_ns,
    )


def _gpu(active: float | Reason, processes: float | Reason = 1.0, **more: Any) -> Gpu:
    answers = {Feature.TENSOR_ACTIVE: {"any": active}, Feature.PROCESSES: {"": processes}}
    return Gpu(0, UUID, {}, answers, **more)


def _minute(
    keeper: ViewComparison,
    rank: Training,
    active: float | Reason,
    *others: Training,
    steps: bool = True,
    **gpu: Any,
) -> None:
    """A look every five seconds for a minute, with steps in between."""
    for _ in range(13):
        rank.clock.now += 5.0
        if steps:
            rank.step()
        keeper.update([_gpu(active, **gpu)], [rank, *others])


def test_views_that_agree_make_no_finding() -> None:
    """FLOPs over the peak, cycles, kernel time: each at most the next."""
    rank = Training(tensor=0.6, unknown=0.1, flops_share=0.35)

    _minute(ViewComparison(), rank, 0.45)

    assert rank.tensor_views == TensorViews(
        pytest.approx(0.45), pytest.approx(0.6), pytest.approx(0.7), pytest.approx(0.35)
    )
    assert set(rank.tensor_views.conflicts()) == {
        "hardware_kernels",
        "hardware_arithmetic",
        "kernels_arithmetic",
    }
    assert not rank.findings


@pytest.mark.parametrize(
    ("active", "tensor", "flops_share", "pair", "word"),
    [
        (0.6, 0.1, 0.05, "hardware_kernels", "names"),
        (0.001, 0.6, 0.0, "hardware_kernels", "stuck"),
        (0.1, 0.6, 0.4, "hardware_arithmetic", "peak"),
        (0.1, 0.1, 0.4, "kernels_arithmetic", "peak"),
    ],
)
def test_a_contradiction_is_named_with_what_may_be_wrong(
    active: float, tensor: float, flops_share: float, pair: str, word: str
) -> None:
    """A finding of severity info, with the shares as evidence."""
    rank = Training(tensor=tensor, flops_share=flops_share)

    _minute(ViewComparison(), rank, active)

    assert word in rank.tensor_views.conflicts()[pair]
    finding = rank.findings[f"{TENSOR_VIEWS_DISAGREE.slug}@env"]
    assert finding.severity is Severity.INFO
    assert finding.evidence["tensor_pipe_active_ratio"] == pytest.approx(active)
    assert "kernel_patterns" in finding.advice


def test_flops_that_a_causal_mask_saves_are_no_contradiction() -> None:
    """Attention is counted in full: up to twice what runs."""
    rank = Training(tensor=0.5, flops_share=0.64)

    _minute(ViewComparison(), rank, 0.45)

    assert set(rank.tensor_views.conflicts().values()) == {""}


def test_kernels_of_unknown_names_excuse_the_hardware() -> None:
    """Kernels that nobody knows count for the upper bound, so that they contradict nothing."""
    rank = Training(tensor=0.1, unknown=0.5)

    _minute(ViewComparison(), rank, 0.6)

    assert rank.tensor_views.conflicts()["hardware_kernels"] == ""


def test_a_minute_of_looks_is_awaited() -> None:
    """One look may fall into an evaluation; the same look again is no other one."""
    rank, keeper, gpu = Training(tensor=0.1), ViewComparison(), _gpu(0.9)
    for _ in range(100):
        rank.clock.now += 5.0
        rank.step()
        keeper.update([gpu], [rank])

    assert rank.tensor_views.hardware is None


def test_a_training_of_slow_steps_is_compared_as_well() -> None:
    """A look at the hardware in which no step has ended yet is no break."""
    rank, keeper = Training(tensor=0.1), ViewComparison()
    for _ in range(4):
        rank.apply(step(rank.steps, time_ns=int(rank.clock.now * 1e9), duration_s=20.0))
        rank.steps += 1
        for _ in range(4):
            rank.clock.now += 5.0
            keeper.update([_gpu(0.5)], [rank])

    assert rank.tensor_views.hardware == pytest.approx(0.5)


@pytest.mark.parametrize("ended", [True, False])
def test_a_rank_that_has_ended_or_pauses_is_not_held_against_an_idle_gpu(*, ended: bool) -> None:
    """Kernels and FLOPs are those of the run, the cycles those of now."""
    rank, keeper = Training(tensor=0.6, flops_share=0.35), ViewComparison()
    _minute(keeper, rank, 0.45)
    if ended:
        rank.apply(end(time_ns=int(rank.clock.now * 1e9)))

    _minute(keeper, rank, 0.0, steps=False)

    assert not rank.findings
    assert ended or rank.tensor_views.hardware is None


@pytest.mark.parametrize(
    ("active", "gpu"),
    [
        (Reason.NOT_SUPPORTED, {}),
        (0.9, {"processes": 2.0}),
        (0.9, {"processes": Reason.NO_PERMISSION}),
        (0.9, {"instances": [Instance(1, ())]}),
    ],
)
def test_hardware_that_tells_nothing_of_this_rank_is_left_out(
    active: float | Reason, gpu: dict[str, Any]
) -> None:
    """Without counters, shared with another process or perhaps shared, cut into instances."""
    rank = Training(tensor=0.1)

    _minute(ViewComparison(), rank, active, **gpu)

    assert rank.tensor_views.hardware is None
    assert set(rank.tensor_views.conflicts()) == {"kernels_arithmetic"}


def test_a_lasting_conflict_is_reported_once_a_minute() -> None:
    """The finding is counted as time goes by, not with each look into the rings."""
    rank, keeper = Training(tensor=0.1), ViewComparison()
    counts = []
    for _ in range(3):
        _minute(keeper, rank, 0.9)
        found = rank.findings.get(f"{TENSOR_VIEWS_DISAGREE.slug}@env")
        counts.append(found.count if found else 0)

    assert counts == [1, 2, 3]
