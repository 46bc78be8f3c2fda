"""Record of profiler windows: which kernels ran, and what looking at them has cost."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from ampwatch.numerics.written import Labelled
from ampwatch.wire.records.fields import Count, KernelUnit, Name


class WindowSkip(Labelled):
    """Reason why a profiler window that was due was not opened.

    ``PROFILER``: somebody else profiles. ``CAPTURE``: a CUDA graph is being captured.
    ``BUDGET``: what windows have cost is not paid back yet. ``DRAG``: steps stayed slower
    after the last one. ``MEMORY``: windows made the process grow.
    """

    PROFILER = 0
    CAPTURE = 1
    BUDGET = 2
    DRAG = 3
    MEMORY = 4


class KernelTotal(NamedTuple):
    """Time of kernels of one unit and dtype in profiled iterations, so far.

    Attributes:
        unit: ``tensor``, ``cuda``, ``unknown`` (all three: matmul-like), ``other``; ``cpu`` for
            ops that ran on the CPU.
        dtype: What the name or, for ``cpu``, the inputs say; empty if nothing does.
        nanoseconds: Their time. Unit: ns.
    """

    unit: KernelUnit
    dtype: Name
    nanoseconds: Count


class KernelRow(NamedTuple):
    """A kernel of the newest profiler window; for a CPU an op.

    Attributes:
        name: Its name, demangled, cut to 200 characters.
        op: Base name of the ATen op that launched it, empty if unknown.
        unit: As of ``KernelTotal``.
        dtype: As of ``KernelTotal``.
        family: Which library or generator it comes from; empty if unknown.
        rule: The rule of the classifier that decided.
        arch: Compute capability it was made for (``90``), 0 if the name does not say.
        align: Alignment in elements that it assumes, 0 if the name does not say.
        calls: How many launches.
        nanoseconds: Their time. Unit: ns.
    """

    name: Name
    op: Name
    unit: KernelUnit
    dtype: Name
    family: Name
    rule: Name
    arch: Count
    align: Count
    calls: Count
    nanoseconds: Count


class WindowRecord(Struct):
    """Profiler windows: totals so far, and the kernels of the newest.

    Attributes:
        step: First profiled iteration of the newest window; of a record that only counts what
            was skipped, the open iteration.
        windows: Windows so far.
        invalid: Of those, windows that lost data; nothing of them is in the totals.
        iterations: Profiled iterations so far, without those of invalid windows.
        skipped: Windows not opened so far, per reason in the order of ``WindowSkip``.
        start_ns: Time so far to start the profiler, the first time excluded. Unit: ns.
        run_ns: Time so far by which profiled iterations were longer than usual. Unit: ns.
        stop_ns: Time so far to stop it. Unit: ns.
        walk_ns: Time so far to read its events. Unit: ns.
        first_ns: Time of the first start, which loads the profiler. Unit: ns.
        drag: Usual step time after the newest window over the one before; NaN if not known.
        memory_bytes: What the resident memory grew by over the windows so far. Unit: bytes.
        busy_ns: Time so far in which the device ran a kernel. Unit: ns.
        wall_ns: Time so far of profiled iterations. Unit: ns.
        misaligned_ns: Time so far of matmul kernels that assume less than full alignment.
        lagging_ns: Time so far of matmul kernels made for an older architecture.
        gemv_ns: Time so far of matrix-vector kernels on float16 or bfloat16.
        totals: Time of kernels so far by unit and dtype.
        kernels: The kernels of the newest window, the longest first.
        kernels_left_out: Kernels beyond what a record holds.
    """

    step: Count
    windows: Count
    invalid: Count
    iterations: Count
    skipped: tuple[Count, Count, Count, Count, Count]
    start_ns: Count
    run_ns: Count
    stop_ns: Count
    walk_ns: Count
    first_ns: Count
    drag: float
    memory_bytes: Count
    busy_ns: Count
    wall_ns: Count
    misaligned_ns: Count
    lagging_ns: Count
    gemv_ns: Count
    totals: tuple[KernelTotal, ...]
    kernels: tuple[KernelRow, ...]
    kernels_left_out: Count
