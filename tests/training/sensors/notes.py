"""A stand-in for ``Measuring`` that keeps what it is asked to measure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

from ampwatch.training.transfer.measuring import Item
from ampwatch.training.transfer.slabs import How
from ampwatch.wire.records import Topic
from tests.training.bench import Bench


class Note(NamedTuple):
    """One tensor as it was when it was measured."""

    step: int
    topic: Topic
    name: str
    module: str
    values: torch.Tensor
    how: How


class FixedGovernor:
    """Wants the same in every iteration, until the test says otherwise."""

    def __init__(self, *wanted: Topic) -> None:
        self.wanted = frozenset(wanted)
        self.part = (0, 1)
        self.step = 0
        self.observes_skips = True
        self.is_alert = True
        self.first_check = True
        self.skips_taken = 0

    def takes_skip(self) -> bool:
        self.skips_taken += 1
        return True

    def takes_first_check(self) -> bool:
        return self.first_check


class Notes:
    """Copies every item; a test reads them."""

    def __init__(self, governor: FixedGovernor) -> None:
        self.governor = governor
        self.notes: list[Note] = []
        self.finite: set[tuple[str, int]] = set()

    def know(self, parameters: Iterable[tuple[str, int]], *, finite: bool) -> None:
        if finite:
            self.finite.update(parameters)

    def measure(self, topic: Topic, items: Sequence[Item], how: How) -> None:
        self.notes += [
            Note(
                self.governor.step,
                topic,
                item.name,
                item.module,
                item.tensor.detach().clone(),
                how,
            )
            for item in items
        ]

    def of(self, topic: Topic, step: int | None = None) -> dict[str, torch.Tensor]:
        """The tensors of a topic, the newest of each name."""
        return {n.name: n.values for n in self.notes if n.topic is topic and step in (None, n.step)}


class Parts(Bench):
    """Parts that a sensor of ranges is made with, around some models."""

    def __init__(self, models: Sequence[torch.nn.Module], *wanted: Topic, **options: Any) -> None:
        self.governor: Any = FixedGovernor(*wanted)
        self.notes: Any = Notes(self.governor)
        parts = {"governor": self.governor, "measuring": self.notes}
        super().__init__(models, parts=parts | options.pop("parts", {}), **options)
