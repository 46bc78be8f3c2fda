"""Time of GPU kernels by unit and dtype, and of kernels that are not well chosen."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ampwatch.numerics.formats import FORMATS, MAX_LOW_BITS, PLAIN
from ampwatch.numerics.units.kernels.classifier import classify
from ampwatch.numerics.units.kernels.generations import lags
from ampwatch.numerics.units.kernels.kernel_launch import launched_by, with_inputs
from ampwatch.numerics.units.kernels.kernel_name import Unit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ampwatch.numerics.units.kernels.kernel_name import KernelName

_LOW = frozenset(fmt.kernel_label for fmt in FORMATS.values() if fmt.bits <= MAX_LOW_BITS)
_BYTES = {fmt.kernel_label: fmt.stored_bits // 8 for fmt in PLAIN} | {"int8": 1}
_FULL_ALIGNMENT = 16  # bytes; cuBLAS and CUTLASS load no wider
_MAX_NAMES = 1024
_MAX_LAUNCHES = 4096


class KernelTally:
    """Adds up the time of kernels.

    Two kernels that run at the same time count twice. All sums are in nanoseconds.

    Args:
        capability: Compute capability of the device, to see kernels of an older generation; an
            AMD device has none.
        tf32_allowed: Whether float32 may be multiplied as TF32; True on AMD.
        classify: Returns the class of a kernel by its name.

    Attributes:
        by_unit: Time by unit and dtype of what is multiplied.
        by_alignment: Time of tensor-core kernels by the alignment their name tells: ``full``,
            ``align1`` to ``align8`` if it is less than 16 bytes, or ``unsaid``.
        by_likelihood: Time of unknown kernels by ``probable``, ``possible`` or empty.
        by_name: Time by name, of the names that took most if there are very many.
        unknown_names: Time by name, of unknown kernels; limited like ``by_name``.
        lagging_ns: Time of tensor-core kernels written for an older generation of GPUs.
        low_precision_gemv_ns: Time of matrices times vectors in 16 bits or less: what autocast
            asked tensor cores for, and the shape prevents.
    """

    def __init__(
        self,
        *,
        capability: tuple[int, int] | None = None,
        tf32_allowed: bool = True,
        classify: Callable[[str], KernelName] = classify,
    ) -> None:
        self._capability = capability
        self._tf32_allowed = tf32_allowed
        self._classify = classify
        # Every step launches the kernels of the step before, from the same ops.
        self._judged: dict[tuple[str, tuple[str, ...], str], KernelName] = {}
        self.by_unit: Counter[tuple[Unit, str]] = Counter()
        self.by_alignment: Counter[str] = Counter()
        self.by_likelihood: Counter[str] = Counter()
        self.by_name: Counter[str] = Counter()
        self.unknown_names: Counter[str] = Counter()
        self.lagging_ns = 0
        self.low_precision_gemv_ns = 0

    def add(
        self, name: str, duration_ns: int, input_dtypes: Sequence[str] = (), op: str = ""
    ) -> KernelName:
        """Count one run of a kernel, and return its class.

        Args:
            name: Of the kernel.
            duration_ns: How long it ran.
            input_dtypes: Of the op that launched it, as torch.profiler has them.
            op: Name of that op.
        """
        launch = (name, tuple(input_dtypes), op)
        kernel = self._judged.get(launch) or self._judge(launch)
        self.by_unit[kernel.unit, kernel.dtype] += duration_ns
        _add_name(self.by_name, name, duration_ns)
        if kernel.unit is Unit.TENSOR:
            self.by_alignment[alignment(kernel)] += duration_ns
            if self._capability and lags(kernel, self._capability):
                self.lagging_ns += duration_ns
        elif kernel.unit is Unit.UNKNOWN:
            self.by_likelihood[kernel.likely] += duration_ns
            _add_name(self.unknown_names, name, duration_ns)
        elif kernel.gemv and kernel.dtype in _LOW:
            self.low_precision_gemv_ns += duration_ns
        return kernel

    def _judge(self, launch: tuple[str, tuple[str, ...], str]) -> KernelName:
        name, input_dtypes, op = launch
        if len(self._judged) >= _MAX_LAUNCHES:
            self._judged.clear()
        kernel = with_inputs(
            launched_by(self._classify(name), op), input_dtypes, tf32_allowed=self._tf32_allowed
        )
        self._judged[launch] = kernel
        return kernel


def alignment(kernel: KernelName) -> str:
    """Return the label of an alignment: ``full``, ``align1`` to ``align8``, or ``unsaid``."""
    if kernel.align is None:
        return "unsaid"
    # Without a dtype, or with one that stands for formats of several sizes, a kernel counts as one
    # of 16 bits, as most kernels of tensor cores are.
    if kernel.align * _BYTES.get(kernel.dtype, 2) >= _FULL_ALIGNMENT:
        return "full"
    return f"align{kernel.align}"


def _add_name(names: Counter[str], name: str, duration_ns: int) -> None:
    names[name] += duration_ns
    if len(names) > _MAX_NAMES:
        for forgotten, _ in names.most_common()[_MAX_NAMES // 2 :]:
            del names[forgotten]
