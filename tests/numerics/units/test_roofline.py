"""The time that can be won back, limited by memory as well as by arithmetic."""

from __future__ import annotations

import pytest

from ampwatch.numerics.units.roofline import ATTAINABLE, Matmul, recoverable

H100_BF16, H100_MEMORY = 989e12, 3.35e12

# Attention scores of owlv2-large on an H100: 16 heads, 5185 tokens, an odd number, in bfloat16.
# Published trace: 41.7 % of 551 ms in align1 kernels at 57.6 TFLOP/s.
SCORES = Matmul(batch=16, rows=5185, columns=5185, inner=64, item_bytes=2)
SECONDS = 0.417 * 0.551
CALLS = round(SECONDS * 57.6e12 / SCORES.flops)


def test_the_shape_gives_the_arithmetic_intensity() -> None:
    """By hand: 2BMNK over the three matrices, each once."""
    assert SCORES.flops == 2 * 16 * 5185 * 5185 * 64
    assert SCORES.traffic == 16 * 2 * (5185 * 64 + 64 * 5185 + 5185 * 5185)
    assert SCORES.intensity == pytest.approx(62, abs=0.5)
    assert Matmul(0, 1, 1, 1, 2).intensity == 0.0


def test_a_thin_matmul_is_promised_what_memory_allows() -> None:
    """166 ms at 209 TFLOP/s, and not the 208 ms of the 632 TFLOP/s that others reach."""
    gain = recoverable(SCORES, SECONDS, peak=H100_BF16, bandwidth=H100_MEMORY, calls=CALLS)

    assert gain is not None
    assert gain.bound == "memory"
    assert gain.complete
    assert gain.roof == pytest.approx(209e12, rel=0.005)
    assert gain.seconds == pytest.approx(0.166, abs=0.001)


def test_a_thick_matmul_is_promised_what_kernels_attain() -> None:
    """Float32 at 50 TFLOP/s against bfloat16 at three quarters of its peak."""
    square = Matmul(1, 8192, 8192, 8192, item_bytes=2)
    seconds = square.flops / 50e12

    gain = recoverable(square, seconds, peak=H100_BF16, bandwidth=H100_MEMORY)
    assert gain is not None
    assert gain.bound == "arithmetic"
    assert gain.seconds == pytest.approx(seconds - square.flops / (ATTAINABLE * H100_BF16))


def test_a_matmul_at_its_roof_has_nothing_to_win() -> None:
    """A matmul that is faster than the model of it has nothing to win either."""
    gain = recoverable(SCORES, 1e-6, peak=H100_BF16, bandwidth=H100_MEMORY)

    assert gain is not None
    assert gain.seconds == 0.0


@pytest.mark.parametrize(
    ("peak", "bandwidth", "bound"),
    [(H100_BF16, None, "arithmetic"), (None, H100_MEMORY, "memory")],
)
def test_with_one_limit_known_the_gain_says_that_it_is_one(
    peak: float | None, bandwidth: float | None, bound: str
) -> None:
    """The other could only make it smaller."""
    both = recoverable(SCORES, 1.0, peak=H100_BF16, bandwidth=H100_MEMORY)
    one = recoverable(SCORES, 1.0, peak=peak, bandwidth=bandwidth)

    assert one is not None
    assert both is not None
    assert (one.bound, one.complete) == (bound, False)
    assert one.seconds >= both.seconds


def test_without_a_limit_nothing_is_promised() -> None:
    """A matmul of nothing is promised nothing."""
    assert recoverable(SCORES, 1.0, peak=None, bandwidth=None) is None
    assert recoverable(Matmul(1, 0, 5, 5, 2), 1.0, peak=None, bandwidth=H100_MEMORY) is None
