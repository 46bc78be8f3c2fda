"""Blocks beside exponents: when they are measured, and that they arrive."""

from __future__ import annotations

import torch

from ampwatch.numerics.blocks import BLOCK_SIZES
from ampwatch.training.kernels.eager import EagerKernel
from ampwatch.training.transfer.measuring import BLOCKS_APART_NS, Item, Measuring
from ampwatch.wire.records import Topic
from tests.numerics.block_oracle import counted
from tests.training.transfer.test_measuring import taken

VALUES = torch.arange(1, 129).float()


class _Clock:
    """Stands still until it is told otherwise."""

    now = 0

    def __call__(self) -> int:
        return self.now


def _measuring(clock: _Clock, *, with_blocks: bool = True) -> Measuring:
    return Measuring(lambda _d: EagerKernel(), 8, with_blocks=with_blocks, clock=clock)


def _blocks(measuring: Measuring, topic: Topic) -> tuple[object, ...]:
    measuring.measure(topic, [Item("m.weight", "m", VALUES), Item("n.weight", "n", VALUES)])
    found = taken(measuring)
    assert len(found) == 2
    assert found[0].blocks == found[1].blocks
    return tuple(found[0].blocks)


def test_blocks_are_measured_in_the_first_sample_and_five_seconds_later() -> None:
    """Of each topic by itself, and of all tensors of a sample or of none."""
    clock = _Clock()
    measuring = _measuring(clock)
    rows = VALUES.tolist()
    expected = tuple(
        counted([rows[i : i + size] for i in range(0, 128, size)], size, 128.0)
        for size in BLOCK_SIZES
    )

    assert _blocks(measuring, Topic.WEIGHT) == expected
    clock.now = BLOCKS_APART_NS - 1
    assert _blocks(measuring, Topic.WEIGHT) == ()
    assert _blocks(measuring, Topic.GRADIENT) == expected
    clock.now = BLOCKS_APART_NS
    assert _blocks(measuring, Topic.WEIGHT) == expected


def test_blocks_of_updates_and_blocks_that_nobody_wants_are_not_measured() -> None:
    """No matmul reads an update."""
    assert _blocks(_measuring(_Clock()), Topic.UPDATE) == ()
    assert _blocks(_measuring(_Clock(), with_blocks=False), Topic.WEIGHT) == ()
