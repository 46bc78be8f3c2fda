"""Records, clocks and a fleet that nobody trained: two ranks that run, one run that has failed."""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ampwatch.aggregate import Fleet
from ampwatch.numerics.exponents import ExponentHistogram
from ampwatch.records import (
    ALL_MODULES,
    OTHER_OPTIMIZERS,
    EndRecord,
    FactsRecord,
    Finding,
    FindingRecord,
    OptimizerRecord,
    RangeRecord,
    Record,
    RunIdentity,
    RunState,
    SamplingRecord,
    Severity,
    SkipClass,
    StepRecord,
    Topic,
)
from ampwatch.settings import Settings

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
    ]
    put(fleet, "/gpt-0.ring", identity(), collapse, lost=8, dropped=9)
    put(fleet, "/gpt-1.ring", identity(rank=1, local_rank=1), [])
    bf16 = [step(0, loss_scale=math.nan, growth_tracker=-1, loss=math.nan), step(1, num_losses=0)]
    bf16[1] = replace(bf16[1], loss_scale=math.nan, growth_tracker=-1)
    failure = end(RunState.FAILED, "RuntimeError: out of memory")
    put(fleet, "/bert.ring", identity(run="bert", world_size=1), [*bf16, failure], alive=False)
    fleet.note_problem("/old.ring", "layout 0")
    clock.now += 20
    return fleet
