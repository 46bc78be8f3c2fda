"""Lineage of values that code has made of which no op is seen."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from ampwatch.diagnosis.evidence.births import Origin, Values
from ampwatch.diagnosis.evidence.lineage import Lineage, OpFacts, SeenOp
from ampwatch.numerics.units.ops import Phase

FACTS = OpFacts(
    "aten.addmm",
    needs_grad=True,
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
        facts=lambda: FACTS,
    )


def lineage() -> Lineage:
    """One in which nothing has an owner."""
    return Lineage(3, lambda _key: (Origin.INPUT, ""))


def run(made: Lineage, what: SeenOp, given: Tensor, out: Tensor) -> None:
    """An op whose only output is not finite."""
    made.failed(what, [out], {0: out.known}, [given], {out.key})


def test_what_fused_code_made_is_born_where_it_is_read_first() -> None:
    """The op did not make it, and the birth says so."""
    followed = lineage()
    followed.unseen([1])
    run(followed, op("addmm"), Tensor(1, INF), Tensor(2, INF))
    (birth,) = followed.finish([], 1.0).births

    assert (birth.origin, birth.op, birth.is_unseen) == (Origin.OP, "addmm", True)


def test_what_was_given_to_it_is_an_input_as_ever() -> None:
    """Fused code has run, but has not made this."""
    followed = lineage()
    followed.unseen([7])
    run(followed, op("addmm"), Tensor(1, INF), Tensor(2, INF))
    (birth,) = followed.finish([], 1.0).births

    assert (birth.origin, birth.is_unseen) == (Origin.INPUT, False)


def test_it_comes_of_what_was_born_before() -> None:
    """An op overflows, fused code hands it on, and the next op reads what nobody saw being made."""
    followed = lineage()
    followed.unseen([])
    run(followed, op("first"), Tensor(1, FINE), Tensor(2, INF))
    followed.unseen([3])
    run(followed, op("second"), Tensor(3, INF), Tensor(4, INF))
    trace = followed.finish([("weight", Tensor(9, INF))], 1.0)

    (birth,) = trace.births
    assert (birth.op, birth.spread_to) == ("first", {"second"})
    assert trace.bad_gradients == {"weight": frozenset({birth.index})}


def test_but_not_of_a_mask() -> None:
    """Rows that are masked are infinite in most models."""
    followed = lineage()
    run(followed, op("mask"), Tensor(1, FINE), Tensor(2, MASK))
    followed.unseen([3])
    run(followed, op("second"), Tensor(3, INF), Tensor(4, INF))
    births = followed.finish([], 1.0).births

    assert [(birth.op, birth.is_unseen) for birth in births] == [("mask", False), ("second", True)]


@pytest.mark.parametrize("phase", [Phase.BACKWARD, Phase.OPTIMIZER])
def test_a_gradient_that_nobody_saw_being_made_blames_no_op(phase: Phase) -> None:
    """Compiled backward has returned it."""
    followed = lineage()
    followed.unseen([])
    run(followed, op("mul", phase), Tensor(1, INF), Tensor(2, INF))
    (birth,) = followed.finish([], 1.0).births

    assert birth.origin is Origin.OTHER


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


def test_through_fp8_it_comes_of_what_was_cast_to_it() -> None:
    """Nobody reads values of FP8; what is cast out of them or multiplied is born nowhere else."""
    followed = lineage()
    run(followed, op("first"), Tensor(1, FINE), Tensor(2, INF))
    followed.settle(op("cast"), [_in_fp8(3)], [Tensor(2, INF)])
    run(followed, op("product"), _in_fp8(3), Tensor(4, NAN))
    (birth,) = followed.finish([], 1.0).births

    assert (birth.op, birth.spread_to) == ("first", {"product"})


def test_what_was_finite_when_it_was_cast_is_no_excuse() -> None:
    """A scale makes NaN of it after that."""
    followed = lineage()
    run(followed, op("elsewhere"), Tensor(1, FINE), Tensor(2, INF))
    followed.settle(op("cast"), [_in_fp8(3)], [Tensor(5, FINE)])
    run(followed, op("product"), _in_fp8(3), Tensor(4, NAN))
    births = followed.finish([], 1.0).births

    assert [birth.op for birth in births] == ["elsewhere", "product"]
