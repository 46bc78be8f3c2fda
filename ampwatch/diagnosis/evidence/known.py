"""What the sensors know, beside what they observe."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ampwatch.diagnosis.evidence.ops import Machine

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ampwatch.diagnosis.evidence.ops import LayerShape


class OtherRanks(Protocol):
    """The other ranks of a run, as far as one of them knows."""

    are_there: bool
    """Whether there are any."""

    def is_sharded(self) -> bool:
        """Whether they have gradients of the model that this rank has not."""

    def note(self, parameter: str, since: int) -> None:
        """Leave word that a gradient of this rank is not finite, in steps skipped since ``since``."""

    def ask(self, since: int) -> tuple[str, list[int]]:
        """Return a parameter whose gradient is not finite in other ranks, and these ranks."""


class Known(NamedTuple):
    """Knowledge of the sensors that the diagnosis reads and never copies.

    Attributes:
        autocast_dtypes: Names of the autocast dtypes seen.
        lost_eps: Parameters whose ``eps`` is zero in their dtype.
        machine: What the training runs on.
        layers: The weights of the model's layers at set-up.
        other_ranks: The other ranks of the run; ``None`` where nothing is known of any.
    """

    autocast_dtypes: Sequence[str] = ()
    lost_eps: Mapping[str, float] = MappingProxyType({})
    machine: Machine = Machine()
    layers: Sequence[LayerShape] = ()
    other_ranks: OtherRanks | None = None
