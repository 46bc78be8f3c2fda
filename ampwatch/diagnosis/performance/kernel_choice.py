"""Findings about the kernels that a GPU spent its time in."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from ampwatch.diagnosis.performance import op_shares as shares
from ampwatch.diagnosis.performance.float32_matmuls import float32_flops_of
from ampwatch.diagnosis.performance.kinds import (
    DIMS_UNALIGNED,
    FP32_MATMUL,
    KERNELS_OUTDATED,
    MATMUL_IS_GEMV,
)
from ampwatch.diagnosis.performance.op_shapes import unaligned_flops_of
from ampwatch.numerics.units.ops import HALF_DTYPES, OpKind
from ampwatch.wire.records import Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ampwatch.diagnosis.book import FindingBook
    from ampwatch.diagnosis.detector import Known
    from ampwatch.diagnosis.evidence.ops import KernelTime, OpCensus, OpKey, OpTally, Window
    from ampwatch.diagnosis.kinds.kind import Kind


WINDOWS = 2
"""Windows in a row that must agree: one may be of an unusual iteration."""

SHARE = 0.1
"""Share of the time in which the GPU was busy, from which kernels of a sort are worth a word."""

WARNING_SHARE = 0.3
"""Share of the wall time from which it is a warning."""

TOP = 3
"""Kernels that are named."""

FULL_ALIGNMENT = 16
"""Kernels load no wider. Unit: bytes."""

ROOFED = (DIMS_UNALIGNED, FP32_MATMUL)
"""Kinds of whose ops the census knows the shapes, and so what they could reach."""


class _KernelSort(NamedTuple):
    """A sort of kernels that could be better ones."""

    kind: Kind  # kind of finding
    what: str  # what they are, after 'spent in'
    is_one: Callable[[KernelTime], bool]  # whether a kernel is one
    ops: Callable[[OpKey, OpTally], int]  # how much of an op of the census may run in such kernels
    needs_autocast: bool = False  # whether they are only wrong under autocast


class SlowKernels:
    """Detects kernels of profiler windows that could be better ones.

    What a kernel is that is not known by its name never counts against it: a share of known
    kernels is the least that it can be.
    """

    def __init__(self, book: FindingBook, known: Known) -> None:
        self._book = book
        self._machine = known.machine
        self._autocast_dtypes = known.autocast_dtypes
        self._census: OpCensus | None = None
        self._agreeing: Counter[str] = Counter()

    def remember(self, census: OpCensus) -> None:
        """Take in a census: it knows the modules and shapes that the kernels belong to."""
        self._census = census

    def detect(self, window: Window) -> None:
        """Take in one window."""
        if min(window.busy_s, window.wall_s) <= 0.0:
            return
        for sort in SORTS:
            if sort.needs_autocast and not self._autocast_dtypes:
                continue
            kernels = [kernel for kernel in window.kernels if sort.is_one(kernel)]
            seconds = sum(kernel.seconds for kernel in kernels)
            if not seconds or seconds < SHARE * window.busy_s:
                self._agreeing[sort.kind.slug] = 0
                continue
            self._agreeing[sort.kind.slug] += 1
            if self._agreeing[sort.kind.slug] >= WINDOWS:
                self._say(window, sort, kernels, seconds)

    def _say(
        self, window: Window, sort: _KernelSort, kernels: Sequence[KernelTime], seconds: float
    ) -> None:
        last = window.step + window.iterations - 1
        each = seconds / window.iterations
        evidence = {
            "kernel_seconds": each,
            "kernel_share": seconds / window.busy_s,
            "wall_share": seconds / window.wall_s,
        }
        gain = self._gain(sort, each)
        if gain is not None:
            evidence["recoverable_seconds"] = gain
            evidence["gain_ratio"] = gain * window.iterations / window.wall_s
        made = self._book.of_kind(sort.kind.slug)
        ops = Counter({kernel.op: kernel.seconds for kernel in kernels if kernel.op})
        finding = self._book.report(
            sort.kind,
            made[-1].where if made else self._heaviest(sort),
            last,
            summary=_summary(sort, last, kernels, evidence),
            op=max(ops, key=lambda op: ops[op], default=""),
            phase="config" if sort.kind is not FP32_MATMUL else "forward",
            dtype=kernels[0].dtype,
            evidence=evidence,
        )
        large = evidence.get("gain_ratio", evidence["wall_share"])
        if large >= WARNING_SHARE and finding.severity is Severity.INFO:
            finding.severity = Severity.WARNING
            self._book.report_change(finding)

    def _heaviest(self, sort: _KernelSort) -> str:
        amounts = (
            shares.by_module(self._census, shares.TRAINING, sort.ops) if self._census else None
        )
        return shares.heaviest(amounts) if amounts else ""

    def _gain(self, sort: _KernelSort, seconds: float) -> float | None:
        """Return how much of so many seconds a step better kernels would save, if it is known."""
        if self._census is None or sort.kind not in ROOFED:
            return None
        ops = [
            (k, t, sort.ops(k, t))
            for k, t in shares.ops_in(self._census, shares.TRAINING)
            if sort.ops(k, t)
        ]
        total = sum(flops for _, _, flops in ops)
        low = next((d for d in self._autocast_dtypes if d in HALF_DTYPES), "float16")
        return shares.saving(
            [(k, t, seconds * flops / total) for k, t, flops in ops], self._machine, low
        )


def _summary(
    sort: _KernelSort, last: int, kernels: Sequence[KernelTime], evidence: dict[str, float]
) -> str:
    gain = evidence.get("recoverable_seconds")
    up_to = f", of which up to {_ms(gain)} could be won back" if gain is not None else ""
    return (
        f"{evidence['kernel_share']:.0%} of the time in which the GPU is busy,"
        f" {_ms(evidence['kernel_seconds'])} a step, is spent in {sort.what}, as of step"
        f" {last}{up_to}: {_names(kernels)}"
    )


def _is_misaligned(kernel: KernelTime) -> bool:
    loaded = kernel.align * shares.ITEM_BYTES.get(kernel.dtype, 2)
    return kernel.unit == "tensor" and 0 < loaded < FULL_ALIGNMENT


def _is_old(kernel: KernelTime) -> bool:
    return kernel.unit == "tensor" and kernel.lags and not _is_misaligned(kernel)


def _is_float32(kernel: KernelTime) -> bool:
    return kernel.unit == "cuda" and kernel.dtype == "float32" and not kernel.gemv


def _is_low_gemv(kernel: KernelTime) -> bool:
    return (
        kernel.unit == "cuda"
        and kernel.gemv
        and kernel.dtype in shares.ITEM_BYTES.keys() - {"tf32"}
    )


def _vector_bytes(key: OpKey, tally: OpTally) -> int:
    is_one = key.kind is OpKind.MATMUL and tally.shape and min(tally.shape[1:3]) == 1
    return tally.bytes if is_one and key.dtype in HALF_DTYPES else 0


SORTS = (
    _KernelSort(
        DIMS_UNALIGNED,
        "tensor-core kernels that load less than 16 bytes at a time, because a dimension is not"
        " aligned",
        _is_misaligned,
        unaligned_flops_of,
    ),
    _KernelSort(
        FP32_MATMUL,
        "float32 matmuls on CUDA cores although autocast is used",
        _is_float32,
        float32_flops_of,
        needs_autocast=True,
    ),
    _KernelSort(
        MATMUL_IS_GEMV,
        "products of matrices with vectors, which tensor cores cannot help",
        _is_low_gemv,
        _vector_bytes,
        needs_autocast=True,
    ),
    _KernelSort(
        KERNELS_OUTDATED,
        "tensor-core kernels that were written for an older generation of GPUs",
        _is_old,
        lambda _key, _tally: 0,
    ),
)


def _names(kernels: Iterable[KernelTime]) -> str:
    longest = sorted(kernels, key=lambda kernel: -kernel.seconds)[:TOP]
    return ", ".join(
        f"{kernel.name[:80]} ({_ms(kernel.seconds)}{f' in {kernel.op}' if kernel.op else ''})"
        for kernel in longest
    )


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
