"""Records, clocks and a fleet that nobody trained: two ranks that run, one run that has failed."""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ampwatch.aggregate import Fleet
from ampwatch.records import (
    OTHER_OPTIMIZERS,
    EndRecord,
    FactsRecord,
    Finding,
    FindingRecord,
    OptimizerRecord,
    Record,
    RunIdentity,
    RunState,
    Severity,
    SkipClass,
    StepRecord,
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
