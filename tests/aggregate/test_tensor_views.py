"""Three views of the tensor cores, each wrong in turn."""

from __future__ import annotations

import pytest

from ampwatch.aggregate.gpus import Feature, Gpu, Instance, Reason
from ampwatch.aggregate.rank import RankView
from ampwatch.aggregate.tensor_views import KIND, LOOKS, TensorViews, ViewKeeper
from ampwatch.precision.ops import OpKind
from ampwatch.records import (
    CensusRecord,
    CensusSource,
    FactsRecord,
    KernelTotal,
    OpTotal,
    Severity,
    SkipClass,
    StepRecord,
    WindowRecord,
)
from ampwatch.settings import Settings
from tests.aggregate.made_up import identity

UUID = "GPU-1"
PEAK = 1e15


def _rank(*, tensor: float, unknown: float, flops_share: float, steps: int = 3) -> RankView:
    """A rank whose iterations take 0.1 s, with shares of that in kernels and FLOPs."""
    rank = RankView(identity(), clock=lambda: 1000.0, settings=Settings())
    rank.apply(FactsRecord({"gpu_uuid": UUID, "peak_flops": f"float16={PEAK}"}))
    for step in range(steps):
        rank.apply(_step(step))
    flops = int(flops_share * 0.1 * PEAK)
    rank.apply(
        CensusRecord(
            step=0,
            time_ns=1,
            source=CensusSource.DISPATCH,
            iterations=1,
            ops=(OpTotal(OpKind.MATMUL, "float16", 1, flops, flops, 0),),
            casts=(),
            fallbacks=(),
            rows=(),
            rows_left_out=0,
        )
    )
    rank.apply(_window(tensor, unknown))
    return rank


def _step(step: int) -> StepRecord:
    return StepRecord(
        step=step,
        time_ns=(1000 + 61 * step) * 10**9,
        duration_s=0.1,
        loss=1.0,
        num_losses=1,
        loss_scale=1024.0,
        growth_tracker=0,
        skip_class=SkipClass.NONE,
        consecutive_skips=0,
        grew=False,
        backed_off=False,
        set_by_hand=False,
        total_growths=0,
        total_backoffs=0,
        total_set_by_hand=0,
        total_nonfinite_losses=0,
        total_observations_dropped=0,
        total_sensor_errors=0,
        overhead_ns=0,
    )


def _window(tensor: float, unknown: float) -> WindowRecord:
    wall_ns = 200_000_000
    totals = (
        KernelTotal("tensor", "float16", int(tensor * wall_ns)),
        KernelTotal("unknown", "", int(unknown * wall_ns)),
    )
    return WindowRecord(
        *(0, 0, 1, 0, 2, (0, 0, 0, 0, 0), 0, 0, 0, 0, 0, float("nan"), 0, 0, wall_ns, 0, 0, 0),
        totals=totals,
        kernels=(),
        kernels_left_out=0,
    )


def _look(keeper: ViewKeeper, rank: RankView, active: float | Reason, **gpu: object) -> None:
    for _ in range(LOOKS):
        answers = {Feature.TENSOR_ACTIVE: {"any": active}}
        keeper.look([Gpu(0, UUID, {}, answers, **gpu)], [rank])


def test_views_that_agree_make_no_finding() -> None:
    """FLOPs over the peak, cycles, kernel time: each at most the next."""
    rank = _rank(tensor=0.6, unknown=0.1, flops_share=0.35)

    _look(ViewKeeper(), rank, 0.45)

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
        (0.2, 0.1, 0.4, "kernels_arithmetic", "peak"),
    ],
)
def test_a_contradiction_is_named_with_what_may_be_wrong(
    active: float, tensor: float, flops_share: float, pair: str, word: str
) -> None:
    """A finding of severity info, with the shares as evidence."""
    rank = _rank(tensor=tensor, unknown=0.0, flops_share=flops_share)

    _look(ViewKeeper(), rank, active)

    assert word in rank.tensor_views.conflicts()[pair]
    finding = rank.findings[f"{KIND}@env"]
    assert finding.severity is Severity.INFO
    # The finding is made as soon as two views contradict each other, the third may follow.
    hardware = finding.evidence.get("tensor_pipe_active_ratio")
    assert hardware is None if pair == "kernels_arithmetic" else hardware == pytest.approx(active)
    assert "kernel_patterns" in finding.advice


def test_kernels_of_unknown_names_excuse_the_hardware() -> None:
    """What nobody knows counts for the upper bound, so that it contradicts nothing."""
    rank = _rank(tensor=0.1, unknown=0.5, flops_share=0.0)

    _look(ViewKeeper(), rank, 0.6)

    assert rank.tensor_views.conflicts()["hardware_kernels"] == ""


def test_a_minute_of_looks_is_awaited() -> None:
    """One look may fall into an evaluation."""
    rank, keeper = _rank(tensor=0.1, unknown=0.0, flops_share=0.0), ViewKeeper()
    gpu = Gpu(0, UUID, {}, {Feature.TENSOR_ACTIVE: {"any": 0.9}})
    for _ in range(LOOKS + 3):
        keeper.look([gpu], [rank])  # the same look, seen again and again

    assert rank.tensor_views.hardware is None


@pytest.mark.parametrize(
    ("active", "gpu"),
    [
        (Reason.NOT_SUPPORTED, {}),
        (0.9, {"processes": {1: 0, 2: 0}}),
        (0.9, {"instances": [Instance(1, ())]}),
    ],
)
def test_hardware_that_tells_nothing_of_this_rank_is_left_out(
    active: float | Reason, gpu: dict[str, object]
) -> None:
    """Without counters, shared with another process, or cut into instances."""
    rank = _rank(tensor=0.1, unknown=0.0, flops_share=0.0)

    _look(ViewKeeper(), rank, active, **gpu)

    assert rank.tensor_views.hardware is None
    assert set(rank.tensor_views.conflicts()) == {"kernels_arithmetic"}


def test_a_lasting_conflict_is_told_once_a_minute() -> None:
    """The finding is counted as time goes by, not with each look into the rings."""
    rank, keeper = _rank(tensor=0.1, unknown=0.0, flops_share=0.0, steps=1), ViewKeeper()
    _look(keeper, rank, 0.9)
    _look(keeper, rank, 0.9)
    counts = [rank.findings[f"{KIND}@env"].count]
    rank.apply(_step(1))
    _look(keeper, rank, 0.9)
    counts.append(rank.findings[f"{KIND}@env"].count)

    assert counts == [1, 2]
    assert rank.findings[f"{KIND}@env"].first_step == 0


def test_a_rank_on_a_cpu_has_no_view() -> None:
    """Nothing is known, so nothing is said."""
    rank = RankView(identity(), clock=lambda: 1000.0, settings=Settings())

    ViewKeeper().look([], [rank])

    assert rank.tensor_views == TensorViews()
    assert rank.tensor_views.conflicts() == {}
