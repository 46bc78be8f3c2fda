"""What is known of the map of a rank at one time, taken while the fleet is locked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ampwatch.report.accounts import place
from ampwatch.report.words import number
from ampwatch.wire.blackbox.culprit import module_of
from ampwatch.wire.records import ALL_MODULES

if TYPE_CHECKING:
    from ampwatch.host.fleet import RankView
    from ampwatch.host.page.rows import State
    from ampwatch.numerics.formats import FloatFormat
    from ampwatch.wire.records import BudgetRecord, CensusRecord, Finding, PlanRecord, Topic


@dataclass(frozen=True, slots=True)
class SeenColumn:
    """The steps and the bytes of a column; these are replaced, never changed."""

    first_step: int
    last_step: int
    planes: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class KnownMap:
    """What is known of a rank at one time; ``roots`` are the modules that findings name which nothing explains."""

    columns: list[SeenColumn]
    names: list[str]
    called: dict[str, int]
    dtypes: dict[str, dict[Topic, str]]
    left_out: int
    autocast: FloatFormat | None
    census: CensusRecord | None
    culprit: State | None
    roots: frozenset[str]
    plan: dict[str, PlanRecord]
    budgets: dict[tuple[str, ...], dict[str, BudgetRecord]]


def known_map(rank: RankView) -> KnownMap:
    """Return what is known of a rank now, in copies: the fleet goes on meanwhile."""
    map_ = rank.ranges.map
    verdict = rank.verdict
    root = None if verdict is None else verdict.root
    stories = () if verdict is None else verdict.stories
    return KnownMap(
        columns=[SeenColumn(span.first_step, span.last_step, span.planes) for span in map_.spans],
        names=list(map_.dtypes),
        called=dict(map_.called),
        dtypes={name: dict(dtypes) for name, dtypes in map_.dtypes.items()},
        left_out=map_.left_out + getattr(rank.totals, "modules_left_out", 0),
        autocast=rank.ranges.autocast,
        census=rank.precision.census,
        culprit=None if root is None else _culprit(root.finding),
        roots=frozenset(module_of(story.finding.where) for story in stories),
        plan=dict(rank.plan),
        budgets={key: dict(budget) for key, budget in rank.budgets.items()},
    )


def _culprit(root: Finding) -> State | None:
    """Return the module that a verdict names by its root, if it names one."""
    module = module_of(root.where)
    if module == ALL_MODULES:
        return None
    return {
        "module": module,
        "step": root.first_step,
        "words": f"{root.kind} in {place(root)}, since step {number(root.first_step)}",
    }
