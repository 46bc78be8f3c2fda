"""Three views of the tensor cores, held against one another. No torch, no network, no NVML.

*Hardware*: the share of cycles in which tensor pipes were active (GPM). *Kernels*: the share
of the time in which kernels ran that use them, a range, since some names say nothing.
*Arithmetic*: what the counted FLOPs would take at the peak, over what an iteration takes.

A pipe is only active inside a kernel that uses it, and does at most the peak in a cycle. So,
but for FLOPs that a causal mask saves, arithmetic <= hardware <= kernels. Where that does not
hold one of the three is wrong, and none of them can be trusted alone.
"""

from __future__ import annotations

from dataclasses import dataclass

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
