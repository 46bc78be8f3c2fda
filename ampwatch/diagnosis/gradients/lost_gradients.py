"""Share of each gradient that is zero only because of float16.

An exact zero does not say why it is one. A dead unit gives zeros beside ordinary gradients;
flushing gives zeros beside subnormal numbers, or a tensor of nothing but zeros that was not
one at a larger scale. So zeros count as lost where the magnitudes that they would belong to,
multiplied by the loss scale, are below the smallest normal number of float16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ampwatch.numerics.formats import FORMATS
from ampwatch.numerics.whatif import flushed_zeros

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ampwatch.numerics.exponents import ExponentHistogram

FLOAT16 = FORMATS["float16"]

FORGOTTEN_AFTER = 1000
"""Iterations after which what a gradient once was says nothing about what it is."""


@dataclass(slots=True)
class Gradient:
    """The gradient of one parameter, as last seen with its scale.

    Attributes:
        histogram: Of the scaled gradient.
        scale: The loss scale that is in it.
    """

    histogram: ExponentHistogram
    scale: float


@dataclass(slots=True)
class _Memory:
    """The newest sample in which a gradient was finite and not zero."""

    amax: float
    step: int


class LostGradients:
    """Judges the zeros in the gradients of one training."""

    def __init__(self) -> None:
        self._memories: dict[str, _Memory] = {}

    def remember(self, name: str, gradient: Gradient, step: int) -> None:
        """Take in one sample of the gradient of the parameter ``name``."""
        histogram = gradient.histogram
        if histogram.amax and not histogram.nonfinite:
            self._memories[name] = _Memory(histogram.amax / gradient.scale, step)

    def true_amax(self, name: str, step: int) -> float | None:
        """Return the largest magnitude of a gradient, without the loss scale.

        ``None`` if it has not been seen lately other than zero or non-finite.
        """
        memory = self._memories.get(name)
        return None if memory is None or step - memory.step > FORGOTTEN_AFTER else memory.amax

    def scale_needed(self, name: str, step: int) -> float | None:
        """Return the scale at which the largest element of a gradient is a normal number.

        ``None`` if it has not been seen lately other than zero or non-finite.
        """
        amax = self.true_amax(name, step)
        return None if amax is None else FLOAT16.min_normal / amax

    def shares(self, gradients: Mapping[str, Gradient], step: int) -> dict[str, float]:
        """Return, for each parameter, the share of its elements that are lost.

        Args:
            gradients: All gradients of one sample, by name of the parameter.
            step: The iteration.
        """
        largest = max((g.histogram.amax for g in gradients.values()), default=0.0)
        return {
            name: self._share(name, gradient, step, largest) for name, gradient in gradients.items()
        }

    def _share(self, name: str, gradient: Gradient, step: int, largest: float) -> float:
        histogram = gradient.histogram
        if not histogram.zeros or histogram.nonfinite:
            return 0.0
        needed = None if histogram.nonzero else self.scale_needed(name, step)
        if needed is not None and gradient.scale < needed:
            return 1.0
        return flushed_zeros(histogram, FLOAT16, largest) / histogram.binned
