"""A made-up black box with something of everything."""

from __future__ import annotations

import math

from ampwatch.numerics.exponents import ExponentHistogram
from ampwatch.state.recorder import recorded
from ampwatch.wire.blackbox import Box
from ampwatch.wire.records import ALL_MODULES, FactsRecord, FindingRecord, RangeRecord, Topic
from ampwatch.wire.records.remedies import Measure, Tried
from tests.workshop.records import IDENTITY, alarm, histogram, optimizer, ranges, skipped_step, step


def measured(
    index: int,
    module: str = ALL_MODULES,
    topic: Topic = Topic.GRADIENT,
    counts: ExponentHistogram | None = None,
) -> RangeRecord:
    """Ranges of a module, measured in iteration ``index``."""
    counts = counts or histogram(-30, 4, 100, 20, zeros=7, nans=1, positive_infs=2)
    return ranges(
        module,
        topic,
        counts,
        step=index,
        time_ns=index,
        dtype="float16",
        total_nans=1,
        total_infs=2,
    )


def box() -> Box:
    """The box of a run whose scale collapses from step 6."""
    finding = alarm(
        phase="backward",
        first_step=6,
        last_step=9,
        count=4,
        evidence={"loss_scale": 2.0**-15, "steps_to_floor": math.inf},
        source="train.py:12",
    )
    cause = alarm("forward_overflow", "decoder.3.ffn", phase="forward", op="mm", dtype="float16")
    cause.tried = (Tried(Measure.BFLOAT16, "", 6, cures=False, then_op="mm"),)
    finding.root, finding.caused_by = False, cause.key
    made = recorded(
        IDENTITY,
        [
            FactsRecord({"torch": "2.13.0", "autocast_dtype": "float16"}),
            *[step(i, growth_tracker=-1, loss_scale=math.nan) for i in range(2)],
            *[step(i) for i in range(2, 6)],
            *[skipped_step(i, 2.0 ** (16 - i), loss=math.nan) for i in range(6, 10)],
            optimizer(0, total_steps=10, total_skipped=(0, 0, 0, 4)),
            measured(5),
            measured(5, "decoder.3.ffn", Topic.ACTIVATION),
            FindingRecord(cause),
            FindingRecord(finding),
        ],
        steps=64,
    ).box("training", 1_700_000_100_000_000_000)
    made.settings = {"level": "standard", "overhead_budget": 0.01, "ring_slots": 8192}
    made.notes = ["3 iterations were not observed"]
    made.traceback = "Traceback ...\nValueError: no"
    return made
