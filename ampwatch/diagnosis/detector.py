"""What a detector is: it declares what it takes, asks for the others that it needs, and reads what sensors know."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeVar

from msgspec import Struct, field

from ampwatch.diagnosis.evidence.iteration import SamplingCost
from ampwatch.diagnosis.evidence.ops import Machine
from ampwatch.diagnosis.steps.skips import SkipClassifier
from ampwatch.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ampwatch.diagnosis.book import FindingBook
    from ampwatch.diagnosis.evidence.iteration import Iteration
    from ampwatch.diagnosis.evidence.ops import LayerShape
    from ampwatch.diagnosis.steps.steps import StepVerdict


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


_D = TypeVar("_D")
_E = TypeVar("_E")


def takes(
    kind: type[_E], *, is_aside: bool = False
) -> Callable[[Callable[[_D, _E], None]], Callable[[_D, _E], None]]:
    """Have a method of a detector called with each observation of a type, as soon as it is made.

    Args:
        kind: The type.
        is_aside: Whether it says nothing of the numbers of an iteration, which stays a quiet one.
    """

    def declare(method: Callable[[_D, _E], None]) -> Callable[[_D, _E], None]:
        method.takes, method.is_aside = kind, is_aside  # type: ignore[attr-defined]
        return method

    return declare


class Shared(Struct):
    """What the detectors of one training have in common.

    Attributes:
        book: Where findings go.
        settings: Thresholds.
        known: What the sensors know.
        put: Where records go.
        sampling_cost: Returns what sampling has cost and missed so far.
        loss_scale: Returns the newest loss scale that has reached the host.
        skips: Sorts the steps that were skipped.
        built: The detectors so far, by their types.
    """

    book: FindingBook
    settings: Settings = field(default_factory=lambda: Settings.resolve({}, {}))
    known: Known = field(default_factory=Known)
    put: Callable[..., None] = lambda *_records: None
    sampling_cost: Callable[[], SamplingCost] = lambda: SamplingCost(0, 0, 0, 0)
    loss_scale: Callable[[], float] = lambda: math.nan
    skips: SkipClassifier = field(default_factory=SkipClassifier)
    built: dict[type, Any] = field(default_factory=dict)

    def build(self, kind: Callable[[Shared], _D]) -> _D:
        """Make a detector, for those that come after it as well."""
        detector = kind(self)
        self.built[type(detector)] = detector
        return detector

    def of(self, kind: type[_D]) -> _D:
        """Return the detector of a type, which comes before the one that asks in ``DETECTORS``."""
        detector: _D = self.built[kind]
        return detector


class Detector:
    """Judges one family of findings, or makes one kind of records, of one training.

    ``takes`` marks the methods that observations go to. The others are called for iterations, in
    the order of ``DETECTORS``; those that a detector does not have of its own are not called.

    Args:
        shared: What the detectors have in common, with those that come before this one.

    Attributes:
        observers: Names of the methods that take observations, by the type of these.
        aside: Types of those that say nothing of the numbers of an iteration.
    """

    observers: ClassVar[Mapping[type, str]] = {}
    aside: ClassVar[frozenset[type]] = frozenset()

    def __init_subclass__(cls) -> None:
        """Collect what is taken."""
        marked = {name: method for name, method in vars(cls).items() if hasattr(method, "takes")}
        declared = [(method.takes, name) for name, method in marked.items()]
        cls.observers = {**cls.observers, **dict(declared)}
        cls.aside |= {method.takes for method in marked.values() if method.is_aside}
        if len(dict(declared)) < len(declared):
            msg = f"expected one method of {cls.__name__} for each type, got {declared}"
            raise TypeError(msg)

    def __init__(self, shared: Shared) -> None:
        self._book = shared.book

    def detect(self, iteration: Iteration, verdict: StepVerdict) -> None:
        """Take in one judged iteration."""

    def count(self, quiet: Sequence[Iteration]) -> None:
        """Take in iterations in a row that are quiet: like the one before (``QuietForm``)."""

    @property
    def is_at_rest(self) -> bool:
        """Whether a quiet iteration would be nothing to it but what it counts."""
        return True
