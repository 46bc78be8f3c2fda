"""Fleets that nobody trained: one for the golden scrape, and one with GPUs that do not exist."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from ampwatch.host.fleet import Fleet
from ampwatch.host.fleet.fleet import Writer
from ampwatch.host.fleet.gpus import Pass, Reason
from ampwatch.host.gpu.synthetic import SyntheticSource
from ampwatch.numerics.blocks import BLOCK_SIZES
from ampwatch.numerics.units.ops import Fallback, OpKind
from ampwatch.settings import Settings
from ampwatch.wire.records import (
    OTHER_OPTIMIZERS,
    CastTotal,
    FallbackTotal,
    KernelTotal,
    OpTotal,
    Record,
    RunIdentity,
    RunState,
    Topic,
)
from tests.workshop.clocks import START, Clock
from tests.workshop.records import (
    FACTS,
    H100,
    block,
    census,
    checksum,
    device_phases,
    end,
    failure,
    finding,
    histogram,
    identity,
    kernel,
    memory,
    op_row,
    optimizer,
    ranges,
    sampling,
    skipped_step,
    step,
    window,
)

GIB = 1 << 30
PID = 4711
"""Process that uses the second of the GPUs."""

NOBODY_KNOWN = 71000
"""A user without a name, so that what is exported is the same on each machine."""


def put(
    fleet: Fleet,
    key: str,
    who: RunIdentity,
    records: Iterable[Record],
    *,
    alive: bool = True,
    lost: int = 0,
    dropped: int = 0,
    uid: int = NOBODY_KNOWN,
) -> None:
    writer = Writer(0, uid)
    fleet.apply(key, who, records, alive=alive, lost=lost, dropped=dropped, writer=writer)


def fleet_of(*records: Record, seconds: float = 20.0, alive: bool = True, **who: Any) -> Fleet:
    """Return a fleet of one rank that has written these records, some time after the rank's start."""
    fleet = Fleet(Settings(), Clock(START + seconds))
    put(fleet, "/a.ring", identity(**who), records, alive=alive)
    return fleet


RANGES: list[Record] = [
    ranges(
        exponents=histogram(-12, 1, 2, 4, 2, 1, zeros=2),
        loss_scale=2.0**15,
        blocks=tuple(block(size, -9, 1, 2, 4, 2, 1) for size in BLOCK_SIZES),
    ),
    ranges("", exponents=histogram(-24, 4, 2, zeros=1), loss_scale=2.0**15, flushed=1),
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
            phases=(0.02, 0.04, 0.0, 0.12, 0.01, 0.005, 0.03, 0.015, 0.01, 0.0),
            total_samples=128,
            total_tokens=65536,
            cpu_ns=3_000_000_000,
            run_delay_ns=50_000_000,
        ),
        device_phases(),
        memory(),
        optimizer(0, total_steps=4, total_skipped=(0, 1, 0, 1)),
        optimizer(1, total_steps=4, total_skipped=(0, 0, 1, 0)),
        optimizer(OTHER_OPTIMIZERS, total_steps=7),
        checksum(2, checksum=2**48 - 1),
        failure("births", errors=4),
        failure("clipping"),
        *RANGES,
        *PRECISION,
    ]
    put(fleet, "/gpt-0.ring", identity(), collapse, lost=8, dropped=9)
    put(fleet, "/gpt-1.ring", identity(rank=1, local_rank=1), [])
    bf16 = [step(0, loss_scale=math.nan, growth_tracker=-1, loss=math.nan), step(1, num_losses=0)]
    bf16[1] = replace(bf16[1], loss_scale=math.nan, growth_tracker=-1)
    died = end(RunState.FAILED, "RuntimeError: out of memory")
    put(fleet, "/bert.ring", identity(run="bert", world_size=1), [*bf16, died], alive=False)
    fleet.note_problem("/old.ring", "layout 0")
    clock.now += 20
    fleet.compare_views()
    return fleet


def fleet_with_gpus(age: float = 660.0) -> Fleet:
    """The four synthetic GPUs after ``age`` seconds, and a rank on the second one."""
    clock = Clock(START)
    fleet = Fleet(Settings(), clock)
    source = SyntheticSource(lambda uuid, code: fleet.gpus.xids(uuid).add(code, clock()), clock)
    clock.now += age
    found = source.read()
    found.gpus[1].processes = {PID: 12 * GIB, 1: GIB}
    fleet.gpus.apply(found)
    who = identity(world_size=1)
    fleet.apply("/a.ring", who, [], alive=True, lost=0, dropped=0, writer=Writer(PID, NOBODY_KNOWN))
    return fleet


def without_nvml(fleet: Fleet) -> Fleet:
    """Say that this machine has no NVIDIA driver."""
    fleet.gpus.apply(Pass(Reason.LIBRARY_NOT_FOUND))
    return fleet
