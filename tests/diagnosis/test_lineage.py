"""Lineage of values that code has made of which no op is seen."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from ampwatch.diagnosis.evidence.lineage import Lineage, OpFacts, SeenOp
from ampwatch.diagnosis.evidence.origins import OriginKind, Values
from ampwatch.numerics.units.ops import Phase

FACTS = OpFacts(
    "aten.addmm",
    number=0.0,
    is_stepping=False,
    gradient="",
    is_hook=False,
    source="",
)
INF = Values("float16", 4, posinf=True)
NAN = Values("float16", 4, nans=True)
MASK = Values("float16", 4, neginf=True)
FINE = Values("float16", 4, amax=1.0)


@dataclass
class Tensor:
    """An operand with known values."""

    key: int
    known: Values
    is_float: bool = True
    dtype_name: str = "float16"
    numel: int = 4
    is_part: bool = False

    def is_finite(self) -> bool:
        return self.known.is_finite

    def values(self) -> Values:
        return self.known


def op(name: str, phase: Phase = Phase.FORWARD) -> SeenOp:
    """An op of a module that has its name."""
    return SeenOp(
        name=name,
        phase=phase,
        module=name,
        is_inside=True,
        nonfinite=None,
        is_scaling=False,
        needs_grad=True,
        facts=lambda: FACTS,
    )


def lineage() -> Lineage:
    """One in which nothing has an owner."""
    return Lineage(3, lambda _key: (OriginKind.INPUT, ""))


def run(made: Lineage, what: SeenOp, given: Tensor, out: Tensor) -> None:
    """An op whose only output is not finite."""
    made.failed(what, [out], {0: out.known}, [given], {out.key})


@pytest.mark.parametrize(
    ("unseen", "phase", "origin"),
    [
        pytest.param([1], Phase.FORWARD, (OriginKind.OP, True), id="made by fused code"),
        pytest.param([7], Phase.FORWARD, (OriginKind.INPUT, False), id="given to it"),
        pytest.param([], Phase.BACKWARD, (OriginKind.OTHER, False), id="from compiled backward"),
        pytest.param([], Phase.OPTIMIZER, (OriginKind.OTHER, False), id="read by an optimizer"),
    ],
)
def test_what_fused_code_made_is_born_where_it_is_read_first(
    unseen: list[int], phase: Phase, origin: tuple[OriginKind, bool]
) -> None:
    """The op did not make it, and the origin says so; an input is one as ever, and a gradient blames no op."""
    followed = lineage()
    followed.unseen(unseen)
    run(followed, op("addmm", phase), Tensor(1, INF), Tensor(2, INF))
    (found,) = followed.finish([], 1.0).origins

    assert (found.kind, found.is_unseen) == origin
    assert found.op == "addmm" or found.kind is not OriginKind.OP


def test_it_comes_of_what_was_born_before() -> None:
    """An op overflows, fused code hands it on, and the next op reads what nobody saw being made."""
    followed = lineage()
    followed.unseen([])
    run(followed, op("first"), Tensor(1, FINE), Tensor(2, INF))
    followed.unseen([3])
    run(followed, op("second"), Tensor(3, INF), Tensor(4, INF))
    trace = followed.finish([("weight", Tensor(9, INF))], 1.0)

    (origin,) = trace.origins
    assert (origin.op, origin.spread_to) == ("first", {"second"})
    assert trace.bad_gradients == {"weight": frozenset({origin.index})}


def test_but_not_of_a_mask() -> None:
    """Rows that are masked are infinite in most models."""
    followed = lineage()
    run(followed, op("mask"), Tensor(1, FINE), Tensor(2, MASK))
    followed.unseen([3])
    run(followed, op("second"), Tensor(3, INF), Tensor(4, INF))
    origins = followed.finish([], 1.0).origins

    assert [(origin.op, origin.is_unseen) for origin in origins] == [
        ("mask", False),
        ("second", True),
    ]


def test_the_first_gradient_stays_the_first_when_clipping_has_made_all_of_them_nan() -> None:
    """The norm is NaN then, and one op multiplies all gradients by it, in place."""
    followed = lineage()
    run(followed, op("mul", Phase.BACKWARD), Tensor(1, FINE), Tensor(9, INF))
    norm = Tensor(2, NAN)
    run(followed, op("norm", Phase.OPTIMIZER), Tensor(9, INF), norm)
    both = [Tensor(8, NAN), Tensor(9, NAN)]
    given = [Tensor(8, FINE), Tensor(9, INF), norm]
    followed.failed(op("clip", Phase.OPTIMIZER), both, {0: NAN, 1: NAN}, given, {8, 9})
    trace = followed.finish([("embedding", both[0]), ("culprit", both[1])], 1.0)

    assert list(trace.bad_gradients) == ["culprit", "embedding"]


def test_a_gradient_in_memory_that_has_become_free_is_as_young_as_it_is() -> None:
    """What lay there before it was not finite for the same reason, and is no part of it."""
    followed = lineage()
    run(followed, op("div", Phase.BACKWARD), Tensor(1, FINE), Tensor(2, INF))
    run(followed, op("mm", Phase.BACKWARD), Tensor(2, INF), Tensor(3, INF))
    run(followed, op("mul", Phase.BACKWARD), Tensor(3, INF), Tensor(4, INF))
    first, later = Tensor(5, INF), Tensor(3, INF)
    run(followed, op("sum", Phase.BACKWARD), Tensor(4, INF), first)
    run(followed, op("t", Phase.BACKWARD), Tensor(4, INF), later)
    trace = followed.finish([("later", later), ("first", first)], 1.0)

    assert list(trace.bad_gradients) == ["first", "later"]


def _in_fp8(key: int) -> Tensor:
    """A tensor whose values are not read."""
    return Tensor(key, Values("float8_e4m3fn", 4), is_float=False, dtype_name="float8_e4m3fn")


@pytest.mark.parametrize(
    ("cast", "origins"),
    [
        (Tensor(2, INF), [("first", {"product"})]),
        # A scale makes NaN of it after that.
        (Tensor(5, FINE), [("first", set()), ("product", set())]),
    ],
)
def test_through_fp8_it_comes_of_what_was_cast_to_it(
    cast: Tensor, origins: list[tuple[str, set[str]]]
) -> None:
    """Nobody reads values of FP8: what is multiplied has no other origin, unless it was finite when it was cast."""
    followed = lineage()
    run(followed, op("first"), Tensor(1, FINE), Tensor(2, INF))
    followed.settle(op("cast"), [_in_fp8(3)], [cast])
    run(followed, op("product"), _in_fp8(3), Tensor(4, NAN))

    found = followed.finish([], 1.0).origins
    assert [(origin.op, origin.spread_to) for origin in found] == origins


def test_a_gradient_in_one_buffer_with_others_stays_bad_when_theirs_are_written() -> None:
    """DeepSpeed copies gradients one by one into a bucket, and divides the whole of it."""
    followed = lineage()
    run(followed, op("mm", Phase.BACKWARD), Tensor(1, FINE), Tensor(2, INF))
    run(followed, op("copy_", Phase.BACKWARD), Tensor(2, INF), Tensor(7, INF, is_part=True))
    followed.settle(op("copy_", Phase.BACKWARD), [Tensor(7, FINE, is_part=True)], [Tensor(3, FINE)])
    run(followed, op("div_", Phase.OPTIMIZER), Tensor(7, INF), Tensor(7, INF))

    (origin,) = followed.finish([], 1.0).origins
    assert origin.op == "mm"
