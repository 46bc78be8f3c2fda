"""Records about ops: totals since the start, and the table of the newest census."""

from __future__ import annotations

import pytest

from ampwatch.diagnosis.book import FindingBook
from ampwatch.diagnosis.detector import Shared
from ampwatch.diagnosis.evidence.ops import OpCensus
from ampwatch.diagnosis.records import op_records
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
)
from tests.workshop.censuses import Op, cast, matmul, op

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
