"""Memory that watching holds: counted as it is, and bounded."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import nn

import ampwatch
from ampwatch.training.kernels.eager import EagerKernel
from ampwatch.training.kernels.rows import ROW_BYTES
from ampwatch.training.memory import MIN_LIMIT, HeldBytes, MemoryBudget, limit_of
from ampwatch.training.replay.kept_calls import KeptCall, own_bytes
from ampwatch.training.transfer.measuring import SLABS, Item, Measuring
from ampwatch.training.transfer.slabs import NORM_BYTES
from ampwatch.wire.records import MEMORY_PARTS, Topic
from tests.training.transfer.test_measuring import FakeLink

STEPS = 12


def allocated(but: set[int] = frozenset()) -> dict[int, int]:  # type: ignore[assignment]
    """Return the size of each storage that Python knows of, by its address, but for some."""
    found: dict[int, int] = {}
    for thing in gc.get_objects():
        if type(thing) not in (torch.Tensor, nn.Parameter) or thing.device.type != "cpu":
            continue
        with suppress(RuntimeError, NotImplementedError):  # of a tracer of another test
            storage = thing.untyped_storage()
            if storage.data_ptr() not in but:
                found[storage.data_ptr()] = storage.nbytes()
    return found


def kept(*args: Any) -> KeptCall:
    return KeptCall(nn.Identity(), args, {}, ())


class Batches:
    """A training that makes a batch for each step, and lets go of it."""

    def __init__(self, layers: int = 8, size: int = 64) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(*(nn.Linear(size, size) for _ in range(layers)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
        self.size = size

    def steps(self, number: int) -> Iterator[torch.Tensor]:
        """Take steps, and yield the batch of each."""
        for _ in range(number):
            x = torch.randn(16, self.size)
            self.optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = self.model(x).float().pow(2).mean()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            yield x


def test_a_model_of_any_size_may_be_watched_with_the_least_and_a_large_one_with_its_share() -> None:
    """A hundredth of its bytes, which no memory is needed to find; the setting goes before both."""
    large = torch.empty(10**9, 25, device="meta", dtype=torch.float16)

    assert limit_of([], 0) == MIN_LIMIT == 64 * 2**20
    assert limit_of([large, nn.parameter.UninitializedParameter()], 0) == 5 * 10**8
    assert limit_of([large], 1234) == 1234


def test_what_is_left_is_the_limit_less_what_all_hold_in_each_place() -> None:
    """And never less than nothing."""
    budget = MemoryBudget(100)
    held = [HeldBytes(30, 5), HeldBytes(20, 110)]
    budget.add("updates", lambda: held[0])
    budget.add("updates", lambda: held[1])

    assert budget.held()["updates"] == (50, 115)
    assert budget.left() == (50, 0)
    assert not budget.is_kept()
    held[1] = HeldBytes(70, 95)
    assert budget.is_kept()


def test_inputs_count_once_the_training_has_let_go_of_them() -> None:
    """Not while a name, a view or a graph of its own holds their memory."""
    x = torch.zeros(256)
    weight = torch.ones(256, requires_grad=True)
    calls = [kept(x, x[:3]), kept(x.view(16, 16))]

    assert own_bytes(calls) == (0, 0)
    y = (x * weight).sum()
    part = x[2:]
    del x
    assert own_bytes(calls) == (0, 0)
    del part
    assert own_bytes(calls) == (0, 0)  # the graph needs it for the gradient of the weight
    y.backward()
    assert own_bytes(calls) == (1024, 0)
    assert calls[0].arguments()[0][1].shape == (3,)


def test_a_call_whose_inputs_were_written_to_is_refused_after_it_was_counted() -> None:
    """Counting does not lose the version of a tensor, nor whether it wants a gradient."""
    x = torch.zeros(4, requires_grad=True)
    call = kept(x)
    own_bytes([call])

    assert call.arguments()[0][0].requires_grad
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(Exception, match="changed in place"):
        call.arguments()


@pytest.mark.parametrize("level", ["standard", "deep"])
def test_the_account_has_all_tensors_that_are_there_because_of_watching(level: str) -> None:
    """Those that Python finds besides the training's own."""
    training = Batches()
    list(training.steps(2))
    gc.collect()
    before = set(allocated())
    watch = ampwatch.monitor(training.model, training.scaler, level=level, serve=False)
    batches = list(training.steps(STEPS))
    gc.collect()
    own = {t.untyped_storage().data_ptr() for t in batches}
    own |= {
        p.grad.untyped_storage().data_ptr()
        for p in training.model.parameters()
        if p.grad is not None
    }
    there = sum(allocated(before | own).values())
    held = watch._session._context.memory.held()
    watch.close()

    counted = sum(h.host for part, h in held.items() if part not in ("ring", "report"))
    small = 2**15  # states of random numbers, sums of an iteration
    assert there - small <= counted <= there + 2**20
    assert counted > 0


def test_a_step_is_not_kept_for_a_replay_beyond_the_limit_and_the_report_says_so() -> None:
    """Its inputs are held by nobody else: the accumulation of gradients has let go of them.

    Those of the newest call are the training's when it is made, and count from the next one on.
    """
    model = nn.Sequential(nn.Linear(64, 64))
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watch = ampwatch.monitor(model, scaler, serve=False, memory_bytes=2**20)
    for _ in range(STEPS):
        for _ in range(4):
            scaler.scale(model(torch.randn(2048, 64)).pow(2).mean()).backward()  # 2**19 bytes each
            assert watch._session._context.memory.held()["replay"].host <= 2**20 + 2**19
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    said = " ".join(watch.report().split())
    watch.close()

    assert "its calls take more than the setting `memory_bytes`" in said


def test_updates_are_not_measured_without_room_for_them_and_the_report_says_so() -> None:
    """Training goes on."""
    training = Batches()
    watch = ampwatch.monitor(
        training.model, training.scaler, level="deep", serve=False, memory_bytes=1
    )
    list(training.steps(4))
    held = watch._session._context.memory.held()
    said = " ".join(watch.report().split())
    watch.close()

    assert held["updates"] == (0, 0)
    assert "updates of weights are not measured" in said


@pytest.mark.parametrize("limit", [2**21, 2**23])
def test_rows_on_a_device_and_their_landing_places_are_within_half_of_the_limit(limit: int) -> None:
    """What no row is left for is not measured, is counted, and is said."""
    budget = MemoryBudget(limit)
    link: Any = FakeLink()
    measuring = Measuring(lambda _device: EagerKernel(), 16384, link, budget)
    items = [Item(str(number), "", torch.ones(1)) for number in range(2000)]
    measuring.measure(Topic.WEIGHT, items)

    block = 2 ** int(math.log2(limit / 2 / SLABS))  # PyTorch pins powers of two
    rows = block // (ROW_BYTES + NORM_BYTES)
    assert measuring.held_bytes() == (SLABS * block, SLABS * rows * (ROW_BYTES + NORM_BYTES))
    assert measuring.dropped == (rows < 2000)
    assert any(f"no more than {rows} tensors" in said for said in budget.refused.values()) == (
        rows < 2000
    )


def test_where_no_row_has_room_nothing_is_measured_on_the_device_and_why_is_said() -> None:
    """As on a machine whose device has no memory to spare."""
    link: Any = FakeLink()
    measuring = Measuring(lambda _device: EagerKernel(), 64, link, MemoryBudget(1000))
    measuring.measure(Topic.WEIGHT, [Item("w", "", torch.ones(1))])

    assert measuring.held_bytes() == (0, 0)
    assert "memory_bytes" in next(iter(measuring.not_measured.values()))


def test_the_facts_have_each_part_that_holds_anything_until_it_holds_nothing() -> None:
    """In whole steps of 64 KiB, so that a batch of another length is no news."""
    budget = MemoryBudget(MIN_LIMIT)
    held = [HeldBytes(1, 2**17)]
    budget.add(MEMORY_PARTS[-1], lambda: held[0])
    limit = {"memory_limit": str(MIN_LIMIT)}

    assert budget.facts() == limit | {
        "memory_host_replay": "65536",
        "memory_device_replay": "131072",
    }
    held[0] = HeldBytes()
    assert budget.facts() == limit | {"memory_host_replay": "0", "memory_device_replay": "0"}
