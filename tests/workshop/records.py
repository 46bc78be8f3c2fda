"""Records, clocks and a fleet that nobody trained: two ranks that run, one run that has failed."""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ampwatch.host.fleet import Fleet
from ampwatch.numerics.exponents import ExponentHistogram
from ampwatch.numerics.units.ops import Fallback, OpKind, Phase
from ampwatch.settings import Settings
from ampwatch.wire.records import (
    ALL_MODULES,
    OTHER_OPTIMIZERS,
    CastTotal,
    CensusRecord,
    CensusSource,
    EndRecord,
    FactsRecord,
    FallbackTotal,
    Finding,
    FindingRecord,
    KernelRow,
    KernelTotal,
    OpRow,
    OptimizerRecord,
    OpTotal,
    RangeRecord,
    Record,
    RunIdentity,
    RunState,
    SamplingRecord,
    Severity,
    SkipClass,
    StepRecord,
    Topic,
    WindowRecord,
)

SECOND = 1_000_000_000
START = 1_700_000_000
"""Unix time at which everything here starts. Unit: s."""


class Clock:
    """A clock that is set by hand."""

    def __init__(self, now: float = START) -> None:
        self.now = float(now)

    def __call__(self) -> float:
        return self.now


IDENTITY = RunIdentity(
    run="gpt",
    rank=0,
    local_rank=0,
    world_size=2,
    pid=4711,
    host="node",
    started_ns=START * SECOND,
    version="0.0.0",
)

_STEP = StepRecord(
    step=0,
    time_ns=(START + 1) * SECOND,
    duration_s=math.nan,
    loss=2.0,
    num_losses=1,
    loss_scale=65536.0,
    growth_tracker=1,
    skip_class=SkipClass.NONE,
    consecutive_skips=0,
    grew=False,
    backed_off=False,
    set_by_hand=False,
    total_growths=0,
    total_backoffs=0,
    total_set_by_hand=0,
    total_nonfinite_losses=0,
    total_observations_dropped=0,
    total_sensor_errors=0,
    overhead_ns=0,
)


def identity(**changes: Any) -> RunIdentity:
    return replace(IDENTITY, **changes)


def step(index: int = 0, **changes: Any) -> StepRecord:
    """The record of iteration ``index``, one second after the one before."""
    changes.setdefault("time_ns", (START + 1 + index) * SECOND)
    changes.setdefault("duration_s", 1.0 if index else math.nan)
    return replace(_STEP, step=index, **changes)


def optimizer(
    index: int = 0,
    *,
    total_steps: int = 0,
    total_skipped: tuple[int, int, int, int] = (0, 0, 0, 0),
) -> OptimizerRecord:
    return OptimizerRecord(
        step=0, index=index, skipped=False, total_steps=total_steps, total_skipped=total_skipped
    )


def finding(
    kind: str = "scale_collapse", where: str = "optimizer:0", **changes: Any
) -> FindingRecord:
    changes.setdefault("severity", Severity.CRITICAL)
    return FindingRecord(Finding(kind, where=where, summary="", advice="", **changes))


def end(
    state: RunState = RunState.FINISHED, reason: str = "", time_ns: int = (START + 9) * SECOND
) -> EndRecord:
    return EndRecord(state, reason, time_ns)


def skipped_step(index: int, scale: float, **changes: Any) -> StepRecord:
    return step(
        index,
        loss_scale=scale,
        growth_tracker=0,
        skip_class=SkipClass.STORM,
        backed_off=True,
        **changes,
    )


def histogram(first: int, *counts: int, **changes: Any) -> ExponentHistogram:
    """Exponents from ``first`` on, as if every value stood at the upper end of its bin.

    ``amax``, ``amin`` and ``numel`` follow from the counts unless they are given.
    """
    changes.setdefault("amax", math.ldexp(1.0, first + len(counts) - 1) if counts else 0.0)
    changes.setdefault("amin", math.ldexp(1.0, first) if counts else math.inf)
    others = sum(
        changes.get(name, 0) for name in ("zeros", "nans", "positive_infs", "negative_infs")
    )
    changes.setdefault("numel", sum(counts) + others)
    return ExponentHistogram(first, counts, **changes)


def ranges(
    module: str = ALL_MODULES,
    topic: Topic = Topic.GRADIENT,
    exponents: ExponentHistogram | None = None,
    **changes: Any,
) -> RangeRecord:
    """The ranges of ``module``, measured in iteration 0 unless ``step`` says otherwise."""
    index = changes.setdefault("step", 0)
    values = {
        "time_ns": (START + 1 + index) * SECOND,
        "dtype": "float32",
        "num_tensors": 1,
        "loss_scale": 1.0,
        "total_nans": 0,
        "total_infs": 0,
        "histogram": histogram(-20, 1, 2, 4, 2, 1) if exponents is None else exponents,
    }
    return RangeRecord(topic=topic, module=module, **{**values, **changes})


_SAMPLING = SamplingRecord(
    step=0,
    interval=1,
    samples=(1, 0, 0, 0, 0, 0),
    samples_dropped=0,
    tensors_refused=0,
    modules_left_out=0,
    gradient_elements=0,
    gradient_zeros=0,
    gradient_underflow=0,
    gradient_subnormal=0,
    gradient_nans=0,
    gradient_infs=0,
    parameter_nonfinite=-1,
    buffer_nonfinite=-1,
    device_ns=0,
)


def sampling(**changes: Any) -> SamplingRecord:
    """What sampling has looked at after one sample, of gradients."""
    return replace(_SAMPLING, **changes)


def op_row(
    op: str = "mm",
    dtype: str = "float16",
    kind: OpKind = OpKind.MATMUL,
    module: str = ALL_MODULES,
    **changes: Any,
) -> OpRow:
    """One op that tensor cores could run, of a thousand FLOPs and a hundred bytes; or a cast."""
    flops = 1000 if kind.has_flops else 0
    values: dict[str, Any] = {
        "phase": Phase.FORWARD,
        "inputs": "",
        "out_dtype": dtype,
        "fallback": Fallback.NONE,
        "calls": 1,
        "flops": flops,
        "tensor_flops": 0 if dtype == "float32" else flops,
        "bytes": 100,
    }
    return OpRow(op=op, module=module, kind=kind, dtype=dtype, **{**values, **changes})


_CENSUS = CensusRecord(
    step=0,
    time_ns=(START + 1) * SECOND,
    source=CensusSource.DISPATCH,
    iterations=1,
    ops=(),
    casts=(),
    fallbacks=(),
    rows=(),
    rows_left_out=0,
)


def census(*rows: OpRow, **changes: Any) -> CensusRecord:
    """The census of iteration 0."""
    return replace(_CENSUS, **{"rows": rows, **changes})


def kernel(name: str = "gemm", unit: str = "tensor", **changes: Any) -> KernelRow:
    """One kernel that took a millisecond."""
    values: dict[str, Any] = {
        "op": "mm",
        "dtype": "float16",
        "family": "cutlass",
        "rule": "cutlass",
        "arch": 90,
        "align": 8,
        "calls": 1,
        "nanoseconds": 1_000_000,
    }
    return KernelRow(name=name, unit=unit, **{**values, **changes})


_WINDOW = WindowRecord(
    step=0,
    time_ns=(START + 1) * SECOND,
    windows=1,
    invalid=0,
    iterations=2,
    skipped=(0, 0, 0, 0, 0),
    start_ns=0,
    run_ns=0,
    stop_ns=0,
    walk_ns=0,
    first_ns=0,
    drag=math.nan,
    memory_bytes=0,
    busy_ns=0,
    wall_ns=0,
    misaligned_ns=0,
    lagging_ns=0,
    gemv_ns=0,
    totals=(),
    kernels=(),
    kernels_left_out=0,
)


def window(*totals: KernelTotal, **changes: Any) -> WindowRecord:
    """The first profiler window, of two iterations."""
    return replace(_WINDOW, **{"totals": totals, **changes})


FACTS = FactsRecord(
    {
        "autocast_dtype": "float16",
        "scaler": "GradScaler",
        "init_scale": "65536.0",
        "growth_interval": "2000",
        "torch": "2.13.0",
        "device": "cuda",
        "favourite_colour": "blue",
    }
)


def put(
    fleet: Fleet,
    key: str,
    who: RunIdentity,
    records: Iterable[Record],
    *,
    alive: bool = True,
    lost: int = 0,
    dropped: int = 0,
) -> None:
    fleet.apply(key, who, records, alive=alive, lost=lost, dropped=dropped)


RANGES: list[Record] = [
    ranges(exponents=histogram(-12, 1, 2, 4, 2, 1, zeros=2), loss_scale=2.0**15),
    ranges("", exponents=histogram(-24, 4, 2, zeros=1), loss_scale=2.0**15),
    ranges(
        "head",
        exponents=histogram(-26, 1, 1, 2, nans=1),
        loss_scale=2.0**15,
        total_nans=3,
        total_infs=4,
    ),
    ranges("head", Topic.ACTIVATION, histogram(0, 1, 2, 4), dtype="float16"),
    ranges("head", Topic.ACTIVATION_GRADIENT, histogram(-9, 5), dtype="float16"),
    ranges("head", Topic.UPDATE, histogram(-12, 3, zeros=1)),
    sampling(
        interval=5,
        samples=(6, 5, 4, 3, 2, 1),
        samples_dropped=7,
        tensors_refused=8,
        modules_left_out=9,
        gradient_elements=1000,
        gradient_zeros=100,
        gradient_underflow=10,
        gradient_subnormal=20,
        gradient_nans=3,
        gradient_infs=4,
        parameter_nonfinite=0,
        buffer_nonfinite=2,
        device_ns=250_000_000,
    ),
]
"""One sample of everything: what the golden scrape has of ranges."""


H100 = FactsRecord(
    {
        "gpu_capability": "9.0",
        "gpu_sms": "132",
        "gpu_clock_hertz": "1830000000",
        "gpu_uuid": "GPU-1",
        "device": "NVIDIA H100 80GB HBM3",
    }
)
"""Facts of a GPU whose peak in float16 is 132 * 4096 * 1.83e9 FLOP/s."""

PRECISION: list[Record] = [
    H100,
    census(
        op_row("addmm", calls=6, flops=6 * 10**12, tensor_flops=5 * 10**12),
        op_row("bmm", "float32", fallback=Fallback.DISABLED_REGION, flops=2 * 10**12),
        op_row("_to_copy", "float32", OpKind.CAST, out_dtype="float16", calls=9),
        op_row("", "float16", module="head", flops=3 * 10**12),
        op_row("", "float32", module="head", flops=10**12, fallback=Fallback.DISABLED_REGION),
        iterations=2,
        ops=(
            OpTotal(OpKind.MATMUL, "float16", 12, 12 * 10**12, 10 * 10**12, 2400),
            OpTotal(OpKind.MATMUL, "float32", 2, 4 * 10**12, 0, 200),
            OpTotal(OpKind.POINTWISE, "float16", 30, 0, 0, 3000),
            OpTotal(OpKind.POINTWISE, "int64", 1, 0, 0, 8),
            OpTotal(OpKind.POINTWISE, "bool", 2, 0, 0, 16),
        ),
        casts=(CastTotal("float32", "float16", 18, 1800), CastTotal("bool", "float32", 1, 5)),
        fallbacks=(FallbackTotal(Fallback.DISABLED_REGION, 2, 4 * 10**12),),
    ),
    window(
        KernelTotal("tensor", "float16", 600_000_000),
        KernelTotal("cuda", "float32", 200_000_000),
        KernelTotal("unknown", "", 200_000_000),
        KernelTotal("other", "", 500_000_000),
        KernelTotal("cpu", "float32", 50_000_000),
        windows=3,
        invalid=1,
        iterations=4,
        skipped=(1, 2, 3, 4, 5),
        start_ns=2_000_000,
        run_ns=3_000_000,
        stop_ns=4_000_000,
        walk_ns=5_000_000,
        first_ns=1_000_000_000,
        drag=1.25,
        memory_bytes=4096,
        busy_ns=1_500_000_000,
        wall_ns=2_000_000_000,
        misaligned_ns=10_000_000,
        lagging_ns=20_000_000,
        gemv_ns=30_000_000,
        kernels=(kernel(nanoseconds=600_000_000), kernel("strange", "unknown", rule="unlisted")),
    ),
]
"""One census and one window of everything: what the golden scrape has of precision."""


def made_up_fleet() -> Fleet:
    """The fleet of the golden scrape, watched from the start; its clock stands 20 s after that."""
    clock = Clock()
    fleet = Fleet(Settings(), clock)
    collapse: list[Record] = [
        FACTS,
        step(0),
        optimizer(0, total_steps=1),
        optimizer(1, total_steps=1),
        skipped_step(1, 32768.0, consecutive_skips=1, total_backoffs=1),
        skipped_step(2, 16384.0, consecutive_skips=2, total_backoffs=2, loss=math.inf),
        finding(count=2, first_step=1, last_step=2),
        step(
            3,
            duration_s=0.25,
            loss_scale=32768.0,
            total_growths=1,
            total_backoffs=2,
            total_set_by_hand=3,
            total_nonfinite_losses=4,
            total_observations_dropped=5,
            total_sensor_errors=6,
            overhead_ns=1_500_000,
        ),
        optimizer(0, total_steps=4, total_skipped=(0, 1, 0, 1)),
        optimizer(1, total_steps=4, total_skipped=(0, 0, 1, 0)),
        optimizer(OTHER_OPTIMIZERS, total_steps=7),
        *RANGES,
        *PRECISION,
    ]
    put(fleet, "/gpt-0.ring", identity(), collapse, lost=8, dropped=9)
    put(fleet, "/gpt-1.ring", identity(rank=1, local_rank=1), [])
    bf16 = [step(0, loss_scale=math.nan, growth_tracker=-1, loss=math.nan), step(1, num_losses=0)]
    bf16[1] = replace(bf16[1], loss_scale=math.nan, growth_tracker=-1)
    failure = end(RunState.FAILED, "RuntimeError: out of memory")
    put(fleet, "/bert.ring", identity(run="bert", world_size=1), [*bf16, failure], alive=False)
    fleet.note_problem("/old.ring", "layout 0")
    clock.now += 20
    fleet.compare_views()
    return fleet
