"""The contract of every kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

BLOCK = 4096
"""Elements of a block: what a kernel takes or leaves when it reads a part of a tensor."""


class Kernel(Protocol):
    """Fills one row (``rows.py``) per tensor.

    Attributes:
        name: How the kernel is called in logs and benchmarks.
        max_binned: Elements of a tensor that should go into the bins, where more cost too much;
            0 for all.
    """

    name: str
    max_binned: int

    def measure(
        self,
        pieces: Sequence[Tensor],
        rows: Tensor,
        *,
        stride: Sequence[int] | None = None,
        gate: Tensor | None = None,
        blocks: Tensor | None = None,
    ) -> None:
        """Fill ``rows[i]`` with the exponents of ``pieces[i]``; what was there before is lost.

        Args:
            pieces: As ``admission.admit`` gives them: floating point, at most
                ``rows.MAX_NUMEL`` elements, the ``numel()`` elements one after another in
                memory from ``data_ptr()`` on, whatever the shape and the order of the
                dimensions. All on the device of ``rows``. Read only.
            rows: int32, at least one row of ``rows.ROW_WORDS`` per piece, contiguous.
            stride: Per piece, how thin the subsample may be. With ``k > 1`` only the blocks 0,
                k, 2k ... of ``BLOCK`` elements need count into the bins, the zeros and the
                smallest magnitude; the largest magnitude, NaN and infinities are of all.
            gate: One float32 on the same device. When it is 0, the rows are all zero words
                afterwards, and nothing is measured.
            blocks: If given, filled as ``measure_blocks`` fills ``out``. One call is cheaper than
                two where tensors are small.

        Cost:
            One pass over the pieces; the host waits for no device.
        """

    def measure_blocks(self, pieces: Sequence[Tensor], rows: Tensor, out: Tensor) -> None:
        """Fill ``out[i]`` with the blocks of ``pieces[i]`` along its memory.

        One part of ``blocks.PART`` elements is measured of each stretch, whose length
        ``blocks.stretch_of`` says; which part ``blocks.part_of`` does, and it is the first where the
        last stretch has not got that one.

        Blocks are those of 16 and of 32 elements that follow one another in memory: of a contiguous
        tensor whose last dimension is a multiple of 32, blocks of that dimension. What is not
        float32, float16 or bfloat16, and what a closed gate has kept from being measured, is left
        with words of zero.

        Args:
            pieces: As for ``measure``.
            rows: As ``measure`` has filled them for the same pieces.
            out: int32, at least one row of ``rows.BLOCK_ROW_WORDS`` per piece, contiguous,
                on the same device.

        Cost:
            A pass over the parts; of a tensor of 262144 elements or more less than a fifth of
            ``measure``. The host waits for no device.
        """

    def norms(self, pieces: Sequence[Tensor], out: Tensor) -> None:
        """Fill ``out[i]`` with the L2 norm of ``pieces[i]``; NaN of a dtype of float8.

        Infinite or NaN where an element is, and infinite beyond the largest float32.

        Args:
            pieces: As for ``measure``.
            out: float32, at least one element per piece, contiguous, on the same device.

        Cost:
            One pass over the pieces; the host waits for no device.
        """
