"""Results of collectives, which hold anything until another process has done its part."""

from __future__ import annotations

import math
from datetime import timedelta
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import distributed, nn
from torch._C._distributed_c10d import AllgatherOptions

from ampwatch.diagnosis.evidence.origins import OriginKind
from ampwatch.training.ops.info import op_info
from ampwatch.training.sensors.origins.follower import OriginFollower, Surroundings
from tests.training.sensors.listening import STEPPED, Listening
from tests.training.sensors.origins.test_follower import Following, Told

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from ampwatch.diagnosis.evidence.origins import OpTrace

HALF = torch.float16

Begin = Any
"""A function that begins a collective of a group, and returns its handle and its result."""


class Pair:
    """Two ranks in one process, so that a test decides when the second one comes."""

    def __init__(self) -> None:
        self._store = distributed.HashStore()
        self.groups: list[Any] = [None, None]
        second = Thread(target=self._join, args=(1,))
        second.start()
        self._join(0)
        second.join()

    def _join(self, rank: int) -> None:
        options = distributed.ProcessGroupGloo._Options()
        options._timeout = timedelta(seconds=60)
        options._devices = [distributed.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        gloo = distributed.ProcessGroupGloo(
            distributed.PrefixStore("pair", self._store), rank, 2, options
        )
        group = distributed.ProcessGroup(self._store, rank, 2)
        kind = distributed.ProcessGroup.BackendType.GLOO
        group._register_backend(torch.device("cpu"), kind, gloo)
        group._set_default_backend(kind)
        self.groups[rank] = group

    def _wait(self, begin: Begin, given: Tensor) -> None:
        begin(self.groups[1], given)[0].wait()

    def run(self, begin: Begin, mine: Tensor, theirs: Tensor) -> Tensor:
        """Return the result of a collective that the second rank has joined late."""
        work, result = begin(self.groups[0], mine)
        # Made and sent beside the ops that are observed, as by another process.
        other = Thread(target=self._wait, args=(begin, theirs))
        other.start()
        work.wait()
        other.join()
        return result


def _all_reduce(group: Any, given: Tensor) -> tuple[Any, Tensor]:
    return group.allreduce([given], distributed.AllreduceOptions()), given


def _reduce_scatter(group: Any, given: Tensor) -> tuple[Any, Tensor]:
    result = torch.empty(4, dtype=given.dtype)
    _poison(result)
    options = distributed.ReduceScatterOptions()
    return group._reduce_scatter_base(result, torch.cat([given, given]), options), result


def _all_gather(group: Any, given: Tensor) -> tuple[Any, Tensor]:
    result = torch.empty(8, dtype=given.dtype)
    _poison(result)
    return group._allgather_base(result, given, AllgatherOptions()), result


def _all_gather_of_lists(group: Any, given: Tensor) -> tuple[Any, Tensor]:
    result = torch.empty(2, 4, dtype=given.dtype)
    _poison(result)
    options = AllgatherOptions()
    return group.allgather([list(result.unbind())], [given], options), result


def _poison(tensor: Tensor) -> None:
    """Write NaN where nobody sees it, as memory that is used again may hold."""
    tensor.numpy().fill(math.nan)


COLLECTIVES = [_all_reduce, _reduce_scatter, _all_gather, _all_gather_of_lists]
SUMS = COLLECTIVES[:2]


@pytest.fixture(scope="module")
def pair() -> Pair:
    return Pair()


def _at_once(work: Callable[[], Any]) -> OpTrace:
    listening = Listening(
        lambda context: Told(OriginFollower(Surroundings(context)), is_late=False)
    )
    listening.place = STEPPED
    with listening:
        work()
    trace: OpTrace = listening.seen[-1]
    return trace


def _later(work: Callable[[], Any]) -> OpTrace:
    following = Following()
    following.listening.place = STEPPED
    following.follow(work)
    return following.arrive()


followed = pytest.mark.parametrize("follow", [_at_once, _later])


@pytest.mark.rotating
@followed
@pytest.mark.parametrize("begin", COLLECTIVES)
def test_what_a_collective_has_not_written_yet_is_not_read(
    pair: Pair, begin: Begin, follow: Callable[[Callable[[], Any]], OpTrace]
) -> None:
    """The memory of its result holds NaN when it returns, and finite numbers when it is used."""
    kept: list[Tensor] = []

    def work() -> None:
        kept.append(pair.run(begin, torch.ones(4), torch.ones(4)) * 2.0)

    assert not follow(work).origins
    assert kept[0].isfinite().all()


@followed
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("begin", SUMS)
def test_a_sum_that_overflows_is_born_in_the_collective(
    pair: Pair,
    begin: Begin,
    in_place: bool,  # noqa: FBT001 - a case
    follow: Callable[[Callable[[], Any]], OpTrace],
) -> None:
    """Two ranks with 6e4 in float16; the division comes after the sum, in place or not."""
    mine, theirs = torch.full((2, 4), 6e4, dtype=HALF).unbind()

    def work() -> None:
        result = pair.run(begin, mine, theirs)
        _ = result.div_(2.0) if in_place else result / 2.0

    (origin,) = follow(work).origins
    assert origin.kind is OriginKind.OP
    assert origin.overload.startswith("c10d.")
    assert "reduce" in origin.op
    assert origin.out.posinf
    assert not origin.out.nans


@pytest.mark.rotating
@followed
@pytest.mark.parametrize("begin", COLLECTIVES)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_another_rank_has_sent_is_not_the_collectives_doing(
    pair: Pair, begin: Begin, bad: float, follow: Callable[[Callable[[], Any]], OpTrace]
) -> None:
    """In float32 no sum of ones is infinite: the rank that sent it knows where it comes from."""
    theirs = torch.full((4,), bad)

    def work() -> None:
        _ = pair.run(begin, torch.ones(4), theirs) * 2.0

    (origin,) = follow(work).origins
    assert origin.kind is OriginKind.SENT


@followed
@pytest.mark.parametrize("begin", SUMS)
def test_what_this_rank_has_sent_keeps_its_history(
    pair: Pair, begin: Begin, follow: Callable[[Callable[[], Any]], OpTrace]
) -> None:
    """The logarithm of zero goes through the sum, and is no second origin."""

    def work() -> None:
        _ = pair.run(begin, torch.zeros(4).log(), torch.ones(4)) * 2.0

    (origin,) = follow(work).origins
    assert (origin.kind, origin.op) == (OriginKind.OP, "log")
    assert "loss" in origin.spread_to


@followed
def test_memory_that_was_sent_and_holds_other_values_by_now_has_not_sent_those(
    pair: Pair, follow: Callable[[Callable[[], Any]], OpTrace]
) -> None:
    """As FSDP's buckets do, which are freed before their sums are there: NaN came from the other rank."""
    theirs = torch.full((4,), math.nan)

    def work() -> None:
        mine = torch.ones(4)
        result = pair.run(_all_gather, mine, theirs)
        mine.copy_(torch.zeros(4).log())
        _ = result * 2.0

    made, sent = follow(work).origins
    assert (made.op, sent.kind) == ("log", OriginKind.SENT)


@followed
def test_a_result_that_is_overwritten_is_forgotten(
    pair: Pair, follow: Callable[[Callable[[], Any]], OpTrace]
) -> None:
    """What is written there afterwards comes from where it was copied from."""
    theirs = torch.full((4,), math.nan)

    def work() -> None:
        bad = torch.zeros(4).log()
        _ = pair.run(_all_reduce, torch.ones(4), torch.ones(4)).copy_(bad) * 2.0
        _ = pair.run(_all_reduce, torch.ones(4), theirs).zero_() * 2.0

    assert [origin.op for origin in follow(work).origins] == ["log"]


def test_a_gradient_that_is_still_on_its_way_is_not_judged(pair: Pair) -> None:
    """At the end of an iteration, if the program waits for it in the next one."""
    model = nn.Linear(4, 1, bias=False)
    model.weight.grad = torch.ones(1, 4)
    listening = Listening(
        lambda context: Told(OriginFollower(Surroundings(context)), is_late=False), model
    )
    listening.place = STEPPED
    with listening:
        torch.zeros(1).log()
        work, _ = _all_reduce(pair.groups[0], model.weight.grad)
        _poison(model.weight.grad)
    other, _ = _all_reduce(pair.groups[1], torch.ones(1, 4))
    work.wait()
    other.wait()

    (trace,) = listening.seen
    assert [origin.op for origin in trace.origins] == ["log"]
    assert not trace.bad_gradients


def test_collectives_are_known_by_what_their_schemas_return() -> None:
    """A handle to wait for; functional ones have none, and a namespace of their own."""
    from torch.distributed import _functional_collectives as functional  # noqa: PLC0415 - registers

    assert functional
    c10d = torch.ops.c10d
    ours = torch.ops._c10d_functional
    begun = (
        c10d.allreduce_,
        c10d._reduce_scatter_base_,
        c10d.recv_,
        ours.all_reduce,
        ours.all_reduce_,
    )
    done = (ours.wait_tensor, torch.ops.aten.relu, torch.ops.aten._foreach_add_)
    assert all(op_info(packet.default).is_collective for packet in begun)
    others = [op_info(getattr(packet, packet.overloads()[0])) for packet in done]
    assert not any(info.is_collective for info in others)
    # What comes of a collective is the collective's: nobody is to read that the wait made it.
    assert others[0].is_ignored
    assert not op_info(ours.all_reduce.default).is_ignored
