"""Records about ops and measurements: totals since the start, by module, and the table of the newest census."""

from __future__ import annotations

from math import inf, nan

import pytest
from msgspec.structs import replace

from ampwatch.diagnosis.book import FindingBook
from ampwatch.diagnosis.detector import Shared
from ampwatch.diagnosis.evidence.iteration import TensorRange
from ampwatch.diagnosis.evidence.ops import OpCensus
from ampwatch.diagnosis.records import op_records, range_records
from ampwatch.diagnosis.records.op_records import OpRecorder
from ampwatch.numerics.units.ops import Fallback, OpKind, Phase
from ampwatch.settings import Settings
from ampwatch.wire.records import (
    ALL_MODULES,
    CastTotal,
    CensusRecord,
    CensusSource,
    FallbackTotal,
    OpTotal,
    RangeRecord,
    SamplingRecord,
    Topic,
)
from tests.numerics.oracle import histogram_of
from tests.workshop.censuses import Op, cast, matmul, op
from tests.workshop.replay import Replay, measured

SECOND = 1_000_000_000


class Recorded:
    """A recorder and what it has written."""

    def __init__(self, **settings: object) -> None:
        self.records: list[CensusRecord] = []
        unread = FindingBook(lambda _news: None)
        resolved = Settings.resolve(settings, {})  # type: ignore[arg-type]
        self.recorder = OpRecorder(Shared(unread, resolved, put=self.records.append))
        self.now_ns = 0

    def take(self, *ops: Op, after_ns: int = SECOND, **census: object) -> Recorded:
        self.now_ns += after_ns
        step = self.now_ns // SECOND
        self.recorder.record(OpCensus(step, tallies=dict(ops), **census), self.now_ns)  # type: ignore[arg-type]
        return self


def test_totals_add_up_over_all_censuses() -> None:
    """Ops by kind and dtype, casts by dtypes, fallbacks by reason."""
    recorded = Recorded()
    for _ in range(3):
        recorded.take(
            matmul("a", 100, tensor_flops=80, bytes=7),
            matmul("b", 10, bytes=3),
            matmul("c", 5, "float32", Fallback.NOT_LISTED, bytes=1),
            op("relu", OpKind.POINTWISE, "a", "bfloat16", bytes=2, calls=4),
            op("exp", OpKind.POINTWISE, "a", "float32", fallback=Fallback.NOT_LISTED),
            cast("a", 2, "float32", "bfloat16", bytes=6),
            cast("b", 1, "bfloat16", "float32", bytes=5),
        )

    newest = recorded.records[-1]
    assert newest == recorded.recorder.newest()
    assert (newest.iterations, newest.step, newest.time_ns) == (3, 3, 3 * SECOND)
    assert newest.source is CensusSource.DISPATCH
    assert set(newest.ops) == {
        OpTotal(OpKind.MATMUL, "bfloat16", 6, 330, 240, 30),
        OpTotal(OpKind.MATMUL, "float32", 3, 15, 0, 3),
        OpTotal(OpKind.POINTWISE, "bfloat16", 12, 0, 0, 6),
        OpTotal(OpKind.POINTWISE, "float32", 3, 0, 0, 0),
    }
    assert set(newest.casts) == {
        CastTotal("float32", "bfloat16", 6, 18),
        CastTotal("bfloat16", "float32", 3, 15),
    }
    assert set(newest.fallbacks) == {FallbackTotal(Fallback.NOT_LISTED, 6, 15)}


def test_censuses_that_follow_at_once_are_counted_and_not_written() -> None:
    """At ``deep`` there is one in every iteration; the next that is written has them all."""
    recorded = Recorded().take(matmul("a", 1))
    for _ in range(9):
        recorded.take(matmul("a", 1), after_ns=SECOND // 10)
    written = len(recorded.records)
    recorded.take(matmul("a", 1), after_ns=SECOND // 10)

    assert written == 1
    assert [r.iterations for r in recorded.records] == [1, 11]
    assert recorded.records[-1].ops[0].flops == 11


def test_a_census_that_came_too_early_is_written_when_its_time_has_come() -> None:
    """In an iteration without one; whoever asks in between has it already."""
    recorded = Recorded().take(matmul("a", 1)).take(matmul("b", 5), after_ns=SECOND // 2)
    before = recorded.recorder.newest()
    recorded.recorder.pass_on(recorded.now_ns + SECOND // 4)
    early = len(recorded.records)
    recorded.recorder.pass_on(recorded.now_ns + SECOND // 2)
    recorded.recorder.pass_on(recorded.now_ns + 5 * SECOND)

    assert before is not None
    assert (before.iterations, early) == (2, 1)
    assert recorded.records[1:] == [before]


def test_the_table_is_of_the_newest_census_only() -> None:
    """Ops that ran before are in the totals."""
    recorded = Recorded().take(matmul("old", 7)).take(matmul("new", 5))

    assert {row.module for row in recorded.records[-1].rows} == {ALL_MODULES, "new"}
    assert {row.flops for row in recorded.records[-1].rows} == {5}


def test_the_table_has_each_op_of_all_modules_and_each_module_of_all_ops() -> None:
    """Modules tell products, casts and the rest apart; the largest come first."""
    recorded = Recorded().take(
        matmul("a", 100, bytes=8),
        matmul("b", 200, bytes=8),
        matmul("b", 40, phase=Phase.BACKWARD, bytes=8),
        op("relu", OpKind.POINTWISE, "b", "bfloat16", bytes=2),
        op("sum", OpKind.REDUCTION, "b", "bfloat16", bytes=3),
        cast("b", 2, "float32", "bfloat16", bytes=6),
    )

    rows = recorded.records[-1].rows
    by_op = {(r.op, r.phase): (r.calls, r.flops, r.bytes) for r in rows if r.module == ALL_MODULES}
    assert by_op == {
        ("addmm", Phase.FORWARD): (2, 300, 16),
        ("addmm", Phase.BACKWARD): (1, 40, 8),
        ("relu", Phase.FORWARD): (1, 0, 2),
        ("sum", Phase.FORWARD): (1, 0, 3),
        ("_to_copy", Phase.FORWARD): (2, 0, 6),
    }
    of_b = {(r.kind, r.phase): (r.calls, r.flops, r.bytes) for r in rows if r.module == "b"}
    assert of_b == {
        (OpKind.MATMUL, Phase.FORWARD): (1, 200, 8),
        (OpKind.MATMUL, Phase.BACKWARD): (1, 40, 8),
        (OpKind.OTHER, Phase.FORWARD): (2, 0, 5),
        (OpKind.CAST, Phase.FORWARD): (2, 0, 6),
    }
    assert [r.flops for r in rows] == sorted((r.flops for r in rows), reverse=True)


def test_a_module_that_falls_back_says_why_of_its_products() -> None:
    """The rest, which is all together, is not named."""
    recorded = Recorded().take(
        matmul("a", 5, "float32", Fallback.DISABLED_REGION),
        op("exp", OpKind.POINTWISE, "a", "float32", fallback=Fallback.NOT_LISTED),
    )

    of_a = {r.kind: r.fallback for r in recorded.records[-1].rows if r.module == "a"}
    assert of_a == {OpKind.MATMUL: Fallback.DISABLED_REGION, OpKind.OTHER: Fallback.NONE}


def test_of_too_many_modules_the_heaviest_are_in_the_table() -> None:
    """By FLOPs, then by bytes; the totals know them all."""
    recorded = Recorded(max_modules=2).take(*(matmul(f"m{n}", n) for n in range(1, 9)))

    newest = recorded.records[-1]
    assert {r.module for r in newest.rows} == {ALL_MODULES, "m8", "m7"}
    assert newest.ops[0].flops == sum(range(1, 9))


def test_of_too_many_ops_the_heaviest_are_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table is read by people."""
    monkeypatch.setattr(op_records, "MAX_OP_ROWS", 3)
    recorded = Recorded().take(
        *(op(f"op{n}", OpKind.POINTWISE, "m", "float32", bytes=n) for n in range(1, 9))
    )

    ops = [r.op for r in recorded.records[-1].rows if r.module == ALL_MODULES]
    assert ops == ["op8", "op7", "op6"]


def test_parameters_are_put_together_by_module_and_all_together() -> None:
    """Each record is the histogram of all its elements."""
    replay = Replay(scale=8.0)
    replay.take(
        measured(Topic.GRADIENT, "a.weight", [1.0, 0.0], scaled=True),
        measured(Topic.GRADIENT, "a.bias", [3.0], scaled=True),
        measured(Topic.GRADIENT, "b.weight", [0.25], scaled=True),
    )

    records = {r.module: r for r in replay.of(RangeRecord)}
    assert records["a"].histogram == histogram_of([1.0, 0.0, 3.0])
    assert records["b"].histogram == histogram_of([0.25])
    assert records[ALL_MODULES].histogram == histogram_of([1.0, 0.0, 3.0, 0.25])
    assert {r.loss_scale for r in records.values()} == {8.0}


def test_what_is_not_scaled_has_a_loss_scale_of_one() -> None:
    """Outputs, weights, and gradients without a scaler."""
    replay = Replay(scaled=False)
    replay.take(measured(Topic.GRADIENT, "a.weight", [1.0]), measured(Topic.ACTIVATION, "a", [1.0]))

    assert {r.loss_scale for r in replay.of(RangeRecord)} == {1.0}


def test_several_calls_of_a_module_are_one_record() -> None:
    """With several dtypes it says so."""
    replay = Replay()
    replay.take(
        measured(Topic.ACTIVATION, "a", [1.0], "float16"),
        measured(Topic.ACTIVATION, "a", [2.0, 4.0], "float32"),
    )

    (record,) = replay.of(RangeRecord)
    assert (record.dtype, record.histogram.numel) == ("mixed", 3)


def test_non_finite_elements_are_counted_since_the_start() -> None:
    """By kind, for each topic and module."""
    replay = Replay(scaled=False, dtypes=())
    replay.take(measured(Topic.GRADIENT, "a.w", [nan, inf, 1.0]))
    replay.take(measured(Topic.GRADIENT, "a.w", [2.0]))
    replay.take(measured(Topic.GRADIENT, "a.w", [-inf]), measured(Topic.ACTIVATION, "a", [nan]))

    newest = {(r.topic, r.module): (r.total_nans, r.total_infs) for r in replay.of(RangeRecord)}
    assert newest == {
        (Topic.GRADIENT, "a"): (1, 2),
        (Topic.GRADIENT, ALL_MODULES): (1, 2),
        (Topic.ACTIVATION, "a"): (1, 0),
    }


def test_the_totals_count_what_autocasts_dtype_loses_at_the_scale_of_the_time() -> None:
    """Elements that would be zero in it or have become it, and subnormal ones."""
    replay = Replay(scale=4.0)
    values = [2.0**-30, 2.0**-25, 2.0**-24, 2.0**-14, 1.0, 0.0]
    for _ in range(2):
        replay.take(measured(Topic.GRADIENT, "w", values, scaled=True))

    totals = replay.of(SamplingRecord)[-1]
    assert totals.gradient_elements == 2 * len(values)
    assert totals.gradient_zeros == 2
    assert totals.gradient_underflow == 6
    assert totals.gradient_subnormal == 4
    assert totals.samples[Topic.GRADIENT] == 2
    assert (totals.interval, totals.samples_dropped, totals.tensors_refused) == (5, 1, 2)


def test_the_newest_look_at_state_counts_what_is_not_finite() -> None:
    """Before the first look that is not known; a sentinel among the buffers is none of it."""
    replay = Replay(scaled=False)
    replay.take(measured(Topic.ACTIVATION, "a", [1.0]))
    before = replay.of(SamplingRecord)[-1]
    replay.take(
        measured(Topic.WEIGHT, "w", [nan, 1.0]),
        measured(Topic.BUFFER, "running_mean", [inf, -inf, 1.0]),
        measured(Topic.BUFFER, "lowest", [inf, nan, 1.0]),
    )
    after = replay.of(SamplingRecord)[-1]

    assert (before.parameter_nonfinite, before.buffer_nonfinite) == (-1, -1)
    assert (after.parameter_nonfinite, after.buffer_nonfinite) == (1, 2)


def test_what_is_not_finite_is_counted_over_all_parts_of_the_parameters() -> None:
    """An iteration may measure a part of them; the metric and the finding are of the whole."""
    replay = Replay(scaled=False, dtypes=())

    def count(*ranges: TensorRange) -> int:
        return replay.take(*ranges).of(SamplingRecord)[-1].parameter_nonfinite

    first = measured(Topic.WEIGHT, "a.w", [nan, inf, 1.0]), measured(Topic.WEIGHT, "a.b", [nan])
    second = measured(Topic.WEIGHT, "b.w", [nan, 1.0])
    assert [count(*first), count(second)] == [3, 4]
    assert replay.only("param_nonfinite").summary.startswith("3 parameters have NaN")
    assert count(measured(Topic.WEIGHT, "a.w", [1.0]), first[1]) == 2
    assert count(measured(Topic.WEIGHT, "c.w", [1.0])) == 2


@pytest.mark.parametrize("limit", [1, 3])
def test_of_too_many_modules_those_with_trouble_are_recorded(limit: int) -> None:
    """The rest is counted."""
    replay = Replay(scaled=False, max_modules=limit)
    replay.take(
        *(measured(Topic.GRADIENT, f"m{n}.w", [1.0, 0.5]) for n in range(10)),
        measured(Topic.GRADIENT, "zeros.w", [0.0, 1.0]),
        measured(Topic.GRADIENT, "broken.w", [nan, 1.0]),
    )

    modules = [r.module for r in replay.of(RangeRecord) if r.module != ALL_MODULES]
    assert len(modules) == limit
    assert modules[:2] == ["broken", "zeros"][:limit]
    assert replay.of(SamplingRecord)[-1].modules_left_out == 12 - limit


def test_records_of_a_topic_keep_a_distance_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Totals count everything anyway, and what is not finite is written at once."""
    monkeypatch.setattr(range_records, "APART_NS", 3_000_000_000)
    replay = Replay(scaled=False, dtypes=())
    for value in (1.0, 2.0, 4.0, 8.0, nan, 16.0):
        replay.take(measured(Topic.GRADIENT, "w", [value]))

    written = [r.step for r in replay.of(RangeRecord) if r.module == ALL_MODULES]
    assert written == [0, 3, 4]
    assert replay.of(SamplingRecord)[-1].gradient_elements == 6
    assert replay.of(SamplingRecord)[-1].gradient_nans == 1


def test_an_update_over_several_steps_and_one_of_a_skipped_step_are_not_recorded() -> None:
    """The one is evidence only, the other says nothing about the optimizer."""
    replay = Replay(scale=8.0)
    replay.take(measured(Topic.UPDATE, "w", [0.0], span=9))
    replay.take(measured(Topic.UPDATE, "w", [0.0]), found_inf=True)
    replay.take(measured(Topic.UPDATE, "w", [0.5]))

    assert [r.histogram.amax for r in replay.of(RangeRecord)] == [0.5]


def test_a_skipped_step_is_recorded_as_it_stood_before_it_was_unscaled() -> None:
    """It was looked at afterwards; nothing about the range of the others may change by that."""
    replay = Replay(scale=2.0**16)
    values = [2.0**-3, 2.0**-10, 0.0]
    replay.take(measured(Topic.GRADIENT, "w", values, scaled=True))
    unscaled = [v / 2.0**16 for v in values]
    replay.take(measured(Topic.GRADIENT, "w", [*unscaled, inf], scaled=False))

    before, after = (r for r in replay.of(RangeRecord) if r.module == ALL_MODULES)
    assert after.loss_scale == before.loss_scale == 2.0**16
    assert (after.histogram.counts, after.histogram.first, after.histogram.amax) == (
        before.histogram.counts,
        before.histogram.first,
        before.histogram.amax,
    )
    assert replay.of(SamplingRecord)[-1].gradient_underflow == 0


def test_a_scale_of_zero_is_recorded_as_such() -> None:
    """There is no way back from it."""
    replay = Replay(scale=0.0)
    replay.take(measured(Topic.GRADIENT, "w", [nan], scaled=True), found_inf=True)

    assert {r.loss_scale for r in replay.of(RangeRecord)} == {0.0}


def test_zeros_that_were_flushed_count_as_underflow() -> None:
    """Beside subnormal numbers, or where nothing else is left and the others are tiny."""
    replay = Replay(scale=4.0)
    replay.take(
        measured(Topic.GRADIENT, "a", [2.0**-24, 2.0**-20, 0.0, 0.0], scaled=True),
        measured(Topic.GRADIENT, "b", [0.0] * 7, scaled=True),
    )
    flushed = replay.of(SamplingRecord)[-1].gradient_underflow
    replay.take(
        measured(Topic.GRADIENT, "a", [1.0, 0.5, 0.0, 0.0], scaled=True),
        measured(Topic.GRADIENT, "b", [0.0] * 7, scaled=True),
    )

    assert flushed == 9
    assert replay.of(SamplingRecord)[-1].gradient_underflow == 9


def test_modules_that_were_left_out_stay_counted_until_the_topic_is_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever other topics do meanwhile."""
    replay = Replay(scaled=False, max_modules=1)
    gradients = [measured(Topic.GRADIENT, f"m{n}.w", [1.0]) for n in range(4)]
    replay.take(*gradients)
    monkeypatch.setattr(range_records, "APART_NS", 10**18)
    replay.take(*gradients)
    replay.take(measured(Topic.WEIGHT, "m0.w", [1.0]))

    assert [r.modules_left_out for r in replay.of(SamplingRecord)] == [3, 3, 3]


def test_a_topic_that_had_no_tensors_was_not_sampled() -> None:
    """A model without buffers."""
    replay = Replay(scaled=False)
    replay.diagnosis.deliver(replace(replay.take().last, step=1, topics=frozenset({Topic.BUFFER})))

    assert replay.of(SamplingRecord)[-1].samples[Topic.BUFFER] == 0
