"""Follows the three views of the tensor cores of every rank, and reports where they contradict one another."""

from __future__ import annotations

from collections import Counter, deque
from statistics import fmean
from typing import TYPE_CHECKING

from ampwatch.diagnosis.performance.kinds import TENSOR_VIEWS_DISAGREE
from ampwatch.host.fleet.gpus import Feature, gpu_of
from ampwatch.host.fleet.tensor_views import TensorViews
from ampwatch.report.op_shares import nanoseconds_by_unit
from ampwatch.wire.records import RunState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.host.fleet.gpus import Gpu
    from ampwatch.host.fleet.rank import RankView

SPAN_NS = 60 * 10**9
"""Time over which readings of the hardware are averaged, during which the rank took steps without
a break: a single reading may fall into an evaluation. Unit: ns."""

PATIENCE = 3
SOON_SECONDS = 2.0
"""A step that takes ``PATIENCE`` times as long as usual and these seconds more is a break: a
checkpoint, an evaluation, a hang. Unit: s."""

APART_NS = 60 * 10**9
"""Time between two reports of a lasting conflict. Unit: ns."""


class _HardwareShares:
    """Readings of the hardware while a rank took steps without a break."""

    def __init__(self) -> None:
        self._gpu: Gpu | None = None
        self._active: deque[tuple[int, float]] = deque()

    def observe(self, gpu: Gpu | None, time_ns: int, *, steps: bool) -> None:
        """Take in the reading of the rank's GPU, once; ``None`` if it has none for itself.

        It is of Unix time ``time_ns``. If the rank took no step when one was due, all is forgotten.
        """
        # A pass makes a new ``Gpu``: the same one is a reading that was taken in already.
        if gpu is self._gpu:
            return
        self._gpu = gpu
        active = None if gpu is None else gpu.number(Feature.TENSOR_ACTIVE, "any")
        if active is None or not steps:
            self._active.clear()
            return
        self._active.append((time_ns, active))
        # Twice the span: after a reading that is late there is still a whole span of them.
        while time_ns - self._active[0][0] > 2 * SPAN_NS:
            self._active.popleft()

    def mean(self) -> float | None:
        """Return the mean share of active cycles; ``None`` before a whole span was seen."""
        if not self._active or self._active[-1][0] - self._active[0][0] < SPAN_NS:
            return None
        return fmean(active for _, active in self._active)


class ViewComparison:
    """Follows the three views of every rank."""

    def __init__(self) -> None:
        self._hardware: dict[RankView, _HardwareShares] = {}

    def update(self, gpus: Sequence[Gpu], ranks: Sequence[RankView]) -> None:
        """Take in the state of GPUs and ranks; enter lasting conflicts into the findings.

        Cost: some 40 us a rank.
        """
        alone = _alone(gpus, ranks)
        # Made anew from the ranks there are, so that nothing is kept of those that have gone.
        self._hardware = {rank: self._hardware.get(rank, _HardwareShares()) for rank in ranks}
        for rank, hardware in self._hardware.items():
            if rank.newest is None or rank.state is not RunState.RUNNING:
                continue
            steps = rank.silence_seconds <= PATIENCE * rank.usual_step_seconds + SOON_SECONDS
            hardware.observe(alone.get(rank), rank.newest.time_ns, steps=steps)
            rank.tensor_views = TensorViews(hardware.mean(), *_kernels(rank), _arithmetic(rank))
            self._judge(rank)

    def _judge(self, rank: RankView) -> None:
        conflicts = rank.tensor_views.conflicts()
        sentence = "; ".join(text for text in conflicts.values() if text)
        if not sentence or rank.newest is None:
            return
        known = rank.findings.get(f"{TENSOR_VIEWS_DISAGREE.slug}@env")
        if known is not None and rank.newest.time_ns - rank.conflict_reported_ns < APART_NS:
            return
        rank.conflict_reported_ns = rank.newest.time_ns
        views = rank.tensor_views
        shares = {
            "tensor_pipe_active_ratio": views.hardware,
            "tensor_kernel_share_low": views.kernels_low,
            "tensor_kernel_share_high": views.kernels_high,
            "ideal_time_share": views.arithmetic,
        }
        rank.find(
            TENSOR_VIEWS_DISAGREE.finding(
                "env",
                rank.newest.step,
                summary=f"The views of the tensor cores contradict one another: {sentence}",
                first_step=rank.newest.step if known is None else known.first_step,
                phase="config",
                count=1 if known is None else known.count + 1,
                evidence={name: share for name, share in shares.items() if share is not None},
            )
        )


def _alone(gpus: Sequence[Gpu], ranks: Sequence[RankView]) -> dict[RankView, Gpu]:
    """Return the GPU of each rank that has one for itself, and that is not cut up."""
    # Activity is that of the whole GPU: with a second process on it, or in a part of it, nobody
    # knows whose it is.
    found = {rank: gpu_of(rank, gpus) for rank in ranks if not rank.ended}
    named = Counter(gpu.uuid for gpu in found.values() if gpu is not None)
    return {
        rank: gpu
        for rank, gpu in found.items()
        if gpu is not None
        and named[gpu.uuid] == 1
        and not gpu.instances
        and gpu.number(Feature.PROCESSES) == 1
    }


def _kernels(rank: RankView) -> tuple[float | None, float | None]:
    """Return the share of the profiled time with kernels for tensor cores: at least, at most."""
    window = rank.precision.window
    if window is None or not window.wall_ns:
        return None, None
    time = nanoseconds_by_unit(window)
    if not set(time) - {"cpu"}:
        return None, None
    low = time["tensor"] / window.wall_ns
    return low, low + time["unknown"] / window.wall_ns


def _arithmetic(rank: RankView) -> float | None:
    """Return the share of the time that FLOPs in the dtypes of tensor cores take at the peak."""
    ideal, seconds = rank.precision.ideal_tensor_seconds, rank.usual_step_seconds
    return None if ideal is None or not seconds else ideal / seconds
