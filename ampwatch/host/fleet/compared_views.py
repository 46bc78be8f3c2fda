"""Follows the three views of the tensor cores of every rank, and reports where they contradict one another.

*Hardware*: the share of cycles in which tensor pipes were active (GPM). *Kernels*: the share
of the time in which kernels ran that use them, a range, since some names say nothing.
*Arithmetic*: what the counted FLOPs would take at the peak, over what an iteration takes.

A pipe is only active inside a kernel that uses it, and does at most the peak in a cycle. So,
but for FLOPs that a causal mask saves, arithmetic <= hardware <= kernels. Where that does not
hold one of the three is wrong, and none of them can be trusted alone.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from ampwatch.diagnosis.performance.kinds import TENSOR_VIEWS_DISAGREE
from ampwatch.host.fleet.gpu_users import gpu_of
from ampwatch.host.fleet.gpus import Feature
from ampwatch.report.op_shares import nanoseconds_by_unit
from ampwatch.wire.records import RunState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.host.fleet.gpus import Gpu
    from ampwatch.host.fleet.rank import RankView

SLACK = 1.25
"""Factor by which a view has to be larger than its bound: clocks move, shapes change."""

ARITHMETIC_SLACK = 2.5
"""Factor for FLOPs instead of ``SLACK``: those of attention are counted without a discount for a
causal mask, of which kernels skip up to half."""

MIN_EXCESS = 0.05
"""Difference by which a view has to be larger besides: small shares are mostly error."""

IDLE = 0.05
"""Pipes that are active for less than this part of the time of their kernels are not starved,
they idle: memory-bound kernels, the worst there are, reach more."""


@dataclass(frozen=True, slots=True)
class TensorViews:
    """The three views of one rank; ``None`` where one is not known.

    Attributes:
        hardware: Share of cycles with active tensor pipes.
        kernels_low: Share of the time in which kernels ran that certainly use them.
        kernels_high: The same with the kernels of which nobody knows.
        arithmetic: Share of the time that the FLOPs in their dtypes take at the peak.
    """

    hardware: float | None = None
    kernels_low: float | None = None
    kernels_high: float | None = None
    arithmetic: float | None = None

    def conflicts(self) -> dict[str, str]:
        """Return what cannot be, as a sentence, by the two views that say so.

        Pairs of which one is not known are left out; pairs that agree have an empty sentence.
        """
        found: dict[str, str] = {}
        if self.hardware is not None and self.kernels_high is not None:
            found["hardware_kernels"] = self._hardware_against_kernels()
        if self.hardware is not None and self.arithmetic is not None:
            found["hardware_arithmetic"] = ""
            if _exceeds(self.arithmetic, self.hardware, ARITHMETIC_SLACK):
                found["hardware_arithmetic"] = (
                    f"the counted FLOPs fill {self.arithmetic:.0%} of the time at the peak, while"
                    f" tensor pipes were active in {self.hardware:.0%} of the cycles: the peak is"
                    " too low (set peak_flops), or ops were counted that did not run"
                )
        if self.kernels_high is not None and self.arithmetic is not None:
            found["kernels_arithmetic"] = ""
            if _exceeds(self.arithmetic, self.kernels_high, ARITHMETIC_SLACK):
                found["kernels_arithmetic"] = (
                    f"the counted FLOPs fill {self.arithmetic:.0%} of the time at the peak, while"
                    f" at most {self.kernels_high:.0%} of it went to kernels that can use tensor"
                    " cores: the peak is too low (set peak_flops), or their names are not known"
                    " (see /debug/kernels.json; kernel_patterns teaches them)"
                )
        return found

    def _hardware_against_kernels(self) -> str:
        hardware, low, high = (
            self.hardware or 0.0,
            self.kernels_low or 0.0,
            self.kernels_high or 0.0,
        )
        if _exceeds(hardware, high):
            return (
                f"tensor pipes were active in {hardware:.0%} of the cycles, while at most"
                f" {high:.0%} of the time went to kernels that can use them: kernels whose names"
                " are not known (see /debug/kernels.json; kernel_patterns teaches them), or"
                " another process on this GPU"
            )
        if low > 2 * MIN_EXCESS and hardware < IDLE * low:
            return (
                f"{low:.0%} of the time went to kernels for tensor cores, while their pipes were"
                f" active in {hardware:.1%} of the cycles: the counters are stuck, which happens"
                " after an XID error, or the kernels do not what their names say"
            )
        return ""


def _exceeds(value: float, bound: float, slack: float = SLACK) -> bool:
    return value > slack * bound + MIN_EXCESS


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
        """Take in the reading of the GPU, once.

        Args:
            gpu: The rank's; ``None`` if it has none for itself.
            time_ns: Unix time of the newest step. Unit: ns.
            steps: Whether the rank has taken a step when one was due; else all is forgotten.
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
