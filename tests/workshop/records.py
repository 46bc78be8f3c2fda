"""Records that no training wrote: a builder per type, whose arguments all have defaults.

A field that is added to a record without a default is added here, and nowhere else in tests
and benchmarks.
"""

from __future__ import annotations

import math
from typing import Any

from msgspec.structs import replace

from ampwatch.numerics.blocks import (
    NUM_DISTANCES,
    NUM_LEVELS,
    NUM_MANTISSAS,
    BlockHistogram,
    BlockLevel,
)
from ampwatch.numerics.exponents import ExponentHistogram
from ampwatch.numerics.units.ops import Fallback, OpKind, Phase
from ampwatch.wire.records import (
    ALL_MODULES,
    BudgetRecord,
    CensusRecord,
    CensusSource,
    ChecksumRecord,
    CulpritRecord,
    DevicePhasesRecord,
    EndRecord,
    FactsRecord,
    Finding,
    FindingRecord,
    KernelRow,
    KernelTotal,
    MemoryRecord,
    OpRow,
    OptimizerRecord,
    Phases,
    PlaceMemory,
    PlanRecord,
    RangeRecord,
    RunIdentity,
    RunState,
    SamplingRecord,
    SensorFailureRecord,
    Severity,
    SkipClass,
    StepRecord,
    Topic,
    WindowRecord,
)
from tests.workshop.clocks import SECOND, START

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


_OPTIMIZER = OptimizerRecord(
    step=0, index=0, skipped=False, total_steps=0, total_skipped=(0, 0, 0, 0)
)


def optimizer(index: int = 0, **changes: Any) -> OptimizerRecord:
    """The totals of optimizer ``index`` after iteration 0."""
    return replace(_OPTIMIZER, index=index, **changes)


def facts(**values: str) -> FactsRecord:
    return FactsRecord(values)


def alarm(kind: str = "scale_collapse", where: str = "optimizer:0", **changes: Any) -> Finding:
    """A critical finding."""
    words = {"summary": f"{kind} happened", "kind_advice": f"change {kind}"}
    return Finding(kind, where=where, **{"severity": Severity.CRITICAL, **words, **changes})


def finding(
    kind: str = "scale_collapse", where: str = "optimizer:0", **changes: Any
) -> FindingRecord:
    """A critical finding without words, in its record."""
    return FindingRecord(alarm(kind, where, **{"summary": "", "kind_advice": "", **changes}))


def end(
    state: RunState = RunState.FINISHED, reason: str = "", time_ns: int = (START + 9) * SECOND
) -> EndRecord:
    return EndRecord(state, reason, time_ns)


def checksum(
    step: int = 257,
    part: int = 0,
    checksum: int = 2**48 - 1,
    first: tuple[int, ...] = (2**48 - 1,),
    then: tuple[int, ...] = (7,),
    **changes: Any,
) -> ChecksumRecord:
    """A check of weights, in as many groups as there are sums."""
    places = (("a.weight", "b.bias"),) * len(first)
    made = ChecksumRecord(step, part, checksum, 12345, 2, places, first, then)
    return replace(made, **changes)


def culprit(since: int = 3, parameter: str = "a.weight") -> CulpritRecord:
    return CulpritRecord(since, parameter)


ON_DEVICE = (0.05, 0.05, 0.0, 0.1, 0.01, 0.005, 0.02, 0.005, 0.01, 0.0)
"""The phases of an iteration by the clock of its device: it waits longer for data than the host, which is ahead of
it. Unit: s."""


def device_phases(
    step: int = 3, time_ns: int = (START + 5) * SECOND, phases: Phases = ON_DEVICE
) -> DevicePhasesRecord:
    return DevicePhasesRecord(step, time_ns, phases)


def memory(time_ns: int = (START + 9) * SECOND) -> MemoryRecord:
    """Memory of a device, a quarter in use, and of its host."""
    device = PlaceMemory("device", 20 << 30, 30 << 30, 40 << 30, 80 << 30)
    host = PlaceMemory("host", 2 << 30, 3 << 30, -1, -1)
    return MemoryRecord(time_ns, (device, host))


def planned(module: str = "decoder.up", place: int = 0, **changes: Any) -> PlanRecord:
    """A layer of a plan that was asked for at step 80: 4 bits forward, 8 bits backward."""
    record = PlanRecord(
        step=80,
        place=place,
        module=module,
        formats=("nvfp4", "float8_e5m2 x float8_e4m3fn", "float8_e4m3fn"),
        sqnr_db=(17.2, 26.1, 28.8),
        why=(
            "mxfp4: 14.1 dB (input 17.0, weight 17.2)",
            "mxfp8_e4m3: blocks were not measured",
            "nvfp4: 12.2% of grad_output become zero",
        ),
        limit_db=15.0,
        max_flushed=0.1,
        loss_scale=65536.0,
        gpu="",
        steps=8,
        first_step=0,
        last_step=80,
    )
    return replace(record, **changes)


def budgeted(module: str = "decoder.up", place: int = 0, **changes: Any) -> BudgetRecord:
    """A module of an error budget of step 80, in bfloat16: some 8 bits of it are right."""
    record = BudgetRecord(
        step=80,
        place=place,
        model="",
        module=module,
        dtype="bfloat16",
        autocast="bfloat16",
        total=0.0036,
        contribution=-1.9e-05,
        target="loss",
        error=-3.7e-05,
    )
    return replace(record, **changes)


def failure(
    sensor: str = "scale", errors: int = 1, step: int = 3, message: str = "ValueError: no"
) -> SensorFailureRecord:
    return SensorFailureRecord(sensor, errors, step, message)


def skipped_step(index: int, scale: float, **changes: Any) -> StepRecord:
    return step(
        index,
        loss_scale=scale,
        growth_tracker=0,
        skip_class=SkipClass.STORM,
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


def block(size: int, top: int, *distances: int) -> BlockHistogram:
    """One block, whose largest magnitude is a power of two; ``distances`` are counts of elements."""
    counts = distances + (0,) * (NUM_DISTANCES - len(distances))
    level = BlockLevel(counts, (1,) + (0,) * (NUM_MANTISSAS - 1))
    return BlockHistogram(size, top, (level, *[BlockLevel()] * (NUM_LEVELS - 1)))


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
        "loss_scale": 1.0,
        "total_nans": 0,
        "total_infs": 0,
        "norm": 2.0**-10,
        "flushed": 0,
        "blocks": (),
        "before_step": -1,
        "before": None,
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
    """Totals of sampling after one sample, of gradients."""
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
        "memory_limit": "67108864",
        "memory_host_ring": "2162688",
        "memory_host_transfer": "25165824",
        "memory_device_transfer": "25165824",
        "memory_device_updates": "4194304",
        "growth_interval": "2000",
        "torch": "2.13.0",
        "device": "cuda",
        "favourite_colour": "blue",
    }
)

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
