"""Record of the op census: which op ran in which dtype."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from ampwatch.numerics.units.ops import FP8_DTYPES, Fallback, OpKind, Phase
from ampwatch.numerics.written import Labelled
from ampwatch.wire.records.fields import Count, LargeCount, Name


class CensusSource(Labelled):
    """Way in which ops were counted.

    ``DISPATCH``: one by one as they ran. ``PROFILER``: from the events of a profiler window.
    ``FORCED_EAGER``: one by one, in an iteration whose compiled code was run eagerly for it.
    """

    DISPATCH = 0
    PROFILER = 1
    FORCED_EAGER = 2


class OpTotal(NamedTuple):
    """Ops of one kind and dtype, counted so far.

    Attributes:
        kind: What the ops do; not ``CAST``.
        dtype: What they computed in: ``float16`` ..., ``tf32`` for float32 that may use TF32.
        calls: How many.
        flops: Floating-point operations, 0 for kinds that have none to speak of.
        tensor_flops: Of those, in a dtype and with dimensions that tensor cores run at speed.
        bytes: Bytes read and written.
    """

    kind: OpKind
    dtype: Name
    calls: Count
    flops: LargeCount
    tensor_flops: LargeCount
    bytes: LargeCount


class CastTotal(NamedTuple):
    """Casts from one dtype to another, counted so far.

    Attributes:
        from_dtype: Name of the dtype before.
        to_dtype: Name of the dtype after.
        calls: How many.
        bytes: Bytes read and written.
    """

    from_dtype: Name
    to_dtype: Name
    calls: Count
    bytes: LargeCount


class FallbackTotal(NamedTuple):
    """Ops of the forward pass that ran in float32 although autocast is used, counted so far.

    Attributes:
        reason: Why.
        calls: How many.
        flops: Their floating-point operations.
    """

    reason: Fallback
    calls: Count
    flops: LargeCount


class OpRow(NamedTuple):
    """Ops of the newest census that have everything below in common.

    Attributes:
        op: Base name of the ATen op (``addmm``); empty in a row of a module, which adds up
            all ops that have FLOPs, all casts, or all others.
        module: Qualified name of the module, empty for the root; ``ALL_MODULES`` in a row of an op.
        kind: What the ops do; in a row of a module ``MATMUL`` stands for all that have FLOPs,
            ``OTHER`` for those that have none and are no casts.
        phase: When they ran.
        inputs: Dtypes of their floating-point inputs, joined by ``+``; empty in a row of a module.
        dtype: What they computed in; of casts, what they cast from.
        out_dtype: Dtype of their first output; of casts, what they cast to.
        fallback: Why they ran in float32 although autocast is used; the reason of most of
            the FLOPs in a row of a module.
        calls: How many.
        flops: Floating-point operations.
        tensor_flops: Of those, in a dtype and with dimensions that tensor cores run at speed.
        bytes: Bytes read and written.
    """

    op: Name
    module: Name
    kind: OpKind
    phase: Phase
    inputs: Name
    dtype: Name
    out_dtype: Name
    fallback: Fallback
    calls: Count
    flops: LargeCount
    tensor_flops: LargeCount
    bytes: LargeCount

    @property
    def is_emulated(self) -> bool:
        """Whether numbers of an FP8 format were multiplied in a wider dtype; never of a module's row."""
        inputs = self.inputs.split("+")
        is_fp8 = self.kind.has_flops and self.dtype in FP8_DTYPES
        return is_fp8 and bool(self.inputs) and FP8_DTYPES.isdisjoint(inputs)


class CensusRecord(Struct):
    """Census of ops and their dtypes: totals so far, and the table of the newest census.

    Attributes:
        step: Index of the iteration of the newest census.
        time_ns: Unix time at its end. Unit: ns.
        source: How the ops of the newest census were counted.
        iterations: Iterations counted so far.
        ops: Ops so far by kind and dtype.
        casts: Casts so far by dtypes.
        fallbacks: Fallbacks to float32 so far by reason.
        rows: The newest census by op and by module, those with the most FLOPs and bytes first.
        rows_left_out: Rows beyond what a record holds.
    """

    step: Count
    time_ns: Count
    source: CensusSource
    iterations: Count
    ops: tuple[OpTotal, ...]
    casts: tuple[CastTotal, ...]
    fallbacks: tuple[FallbackTotal, ...]
    rows: tuple[OpRow, ...]
    rows_left_out: Count
