"""The map of a model for the page: modules down, samples across, the worst trouble in each cell.

A cell is a letter, one of ``CODES``; what it means in words is defined here, once, and the page draws
it. It is asked for by itself (``/map.json``), for one rank at a time and only while it is looked at:
of 2000 modules it is larger than all else that a page is sent. No torch, no network.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from ampwatch import laboratory
from ampwatch.host.page.as_json import encoded
from ampwatch.host.page.map_codes import (
    CODES,
    FIRST_NOTABLE,
    FOLLOWS,
    LEGEND,
    LETTERS,
    NONFINITE,
    TABLES,
)
from ampwatch.host.page.map_words import history_of, in_words, islands, sentence
from ampwatch.report.accounts import place
from ampwatch.report.words import number
from ampwatch.wire.blackbox.culprit import module_of
from ampwatch.wire.records import ALL_MODULES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ampwatch.host.fleet import Fleet, RankView
    from ampwatch.host.fleet.module_map import MapColumn
    from ampwatch.host.page.rows import State
    from ampwatch.numerics.formats import FloatFormat
    from ampwatch.wire.records import BudgetRecord, CensusRecord, Finding, PlanRecord, Topic

_T = TypeVar("_T")

MAX_IN_WORDS = 64
"""Modules that are described in words, the worst ones."""

MAX_KNOWN = 8
"""Ranks whose columns are kept ready: more are hardly looked at at a time."""


@dataclass(frozen=True, slots=True)
class KnownMap:
    """What is known of a rank at one time; ``roots`` are the modules that findings name which nothing explains."""

    columns: list[MapColumn]
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
    incidents = () if verdict is None else verdict.incidents
    return KnownMap(
        columns=[replace(span) for span in map_.spans],
        names=list(map_.dtypes),
        called=dict(map_.called),
        dtypes={name: dict(dtypes) for name, dtypes in map_.dtypes.items()},
        left_out=map_.left_out + getattr(rank.totals, "modules_left_out", 0),
        autocast=rank.ranges.autocast,
        census=rank.precision.census,
        culprit=None if root is None else _culprit(root.finding),
        roots=frozenset(module_of(incident.finding.where) for incident in incidents),
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


class MapAnswer(NamedTuple):
    """A map as it is sent.

    Attributes:
        packed: Its JSON, gzipped.
        etag: Another one for each content.
    """

    packed: bytes
    etag: str


class Maps:
    """The maps of the ranks of a fleet. For one thread.

    Args:
        fleet: Whose they are.

    Cost:
        Of 2000 modules and 96 columns a tenth of a second, without the fleet's lock; 230 kB of JSON,
        a twentieth of that compressed. Asked again while nothing is new of the rank: 1 ms.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._answers: WeakKeyDictionary[RankView, tuple[KnownMap, MapAnswer]] = WeakKeyDictionary()
        self._codes: WeakKeyDictionary[RankView, dict[int, tuple[tuple[bytes, ...], bytes]]] = (
            WeakKeyDictionary()
        )

    def answer(self, run: str, rank: str, module: str | None = None) -> MapAnswer | None:
        """Return the map of a rank as it is sent, or the history of a ``module`` of it; ``None`` if there is none.

        The map is made once for all pages, until there is something new of the rank.
        """
        view, known = self._known_map(run, rank)
        if view is None or known is None:
            return None
        if module is not None:
            history = history_of(known, module)
            return None if history is None else self._sent(history)
        before, answer = self._answers.get(view, (None, None))
        if answer is None or before != known:
            answer = self._sent(self._map(view, known))
            _keep(self._answers, view, (known, answer))
        return answer

    def _sent(self, state: State) -> MapAnswer:
        body = b"".join(encoded(state, self._fleet.priority.step_aside))
        # Quickly: this is done in one piece, while other threads wait.
        packed = gzip.compress(body, compresslevel=1, mtime=0)
        return MapAnswer(packed, f'"{hashlib.sha256(body).hexdigest()[:32]}"')

    def _map(self, view: RankView, known: KnownMap) -> State:
        columns = self._columns(view, known)
        culprit = known.culprit
        names = known.names
        if culprit is not None and culprit["module"] not in names:
            # Not measured, but at the root of it all: it has its row, without a sample.
            names = [*names, culprit["module"]]
        order = model_order(names, known.called)
        rows = _mark_consequences(known, names, _rows(columns, len(names)))
        state: State = {
            "sentence": sentence(known, rows),
            "columns": [[column.first_step, column.last_step] for column in known.columns],
            "modules": [names[i] for i in order],
            "rows": [rows[i].translate(LETTERS.ljust(256)).decode() for i in order],
            "worst": _worst(known, names, rows, None if culprit is None else culprit["module"]),
            "islands": islands(known.census),
            "codes": [code._asdict() for code in CODES],
            "legend": [reason._asdict() for reason in LEGEND],
        }
        if known.plan:
            state["plan"] = laboratory.load("page.map_plan").plan_of_map(
                known.plan, state["modules"]
            )
        if known.budgets:
            state["errors"] = laboratory.load("page.map_errors").errors_of_map(
                known.budgets, state["modules"]
            )
        return state if culprit is None else {**state, "culprit": culprit}

    def _known_map(self, run: str, rank: str) -> tuple[RankView | None, KnownMap | None]:
        with self._fleet.lock:
            view = self._fleet.rank(run, rank)
            if view is not None and view.verdict is None:
                self._fleet.judge()  # nobody has asked for anything yet
            return view, None if view is None else known_map(view)

    def _columns(self, view: RankView, known: KnownMap) -> list[bytes]:
        """Return the places among ``CODES`` of each module, by column."""
        before = self._codes.get(view, {})
        now: dict[int, tuple[tuple[bytes, ...], bytes]] = {}
        for column in known.columns:
            planes, codes = before.get(column.first_step, ((), b""))
            # By identity: bytes are replaced, never changed.
            if planes is not column.planes:
                codes = _worst_of(column.planes)
            now[column.first_step] = column.planes, codes
        _keep(self._codes, view, now)
        return [codes for _, codes in now.values()]


def _keep(kept: WeakKeyDictionary[RankView, _T], view: RankView, value: _T) -> None:
    """Keep a value of a rank, and those of the others that were made last."""
    kept.pop(view, None)
    for oldest in list(kept)[: max(len(kept) - MAX_KNOWN + 1, 0)]:
        kept.pop(oldest, None)
    kept[view] = value


def _worst_of(planes: Sequence[bytes]) -> bytes:
    """Return the place among ``CODES`` of each module in a column."""
    size = max(map(len, planes))
    each = (plane.translate(table) for plane, table in zip(planes, TABLES, strict=False))
    return bytes(map(max, *(codes.ljust(size, b"\0") for codes in each)))


def _rows(columns: Sequence[bytes], num_modules: int) -> list[bytes]:
    """Return the columns of each module instead of the modules of each column."""
    if not columns:
        return [b""] * num_modules
    return [bytes(row) for row in zip(*(c.ljust(num_modules, b"\0") for c in columns), strict=True)]


def _mark_consequences(known: KnownMap, names: Sequence[str], rows: Sequence[bytes]) -> list[bytes]:
    """Return the rows with what only follows the culprit distinguished from where trouble began.

    A module follows from the culprit's step on, if the culprit is non-finite itself or was never
    measured, and no finding has its root in that module.
    """
    culprit = known.culprit
    if culprit is None:
        return list(rows)
    since = sum(column.last_step < culprit["step"] for column in known.columns)
    own = rows[names.index(culprit["module"])][since:]
    if any(own) and not any(code in NONFINITE for code in own):
        return list(rows)  # what it is about is nothing that spreads
    return [
        row if name in known.roots else row[:since] + row[since:].translate(FOLLOWS)
        for name, row in zip(names, rows, strict=True)
    ]


def _worst(
    known: KnownMap, names: Sequence[str], rows: Sequence[bytes], culprit: str | None
) -> State:
    """Return the modules in trouble, the worst first, and how many more there are.

    Of equally bad ones that comes first which was so first; the culprit before all others.
    """
    worst = [(max(row, default=0), index) for index, row in enumerate(rows)]
    notable = [(code, index) for code, index in worst if code >= FIRST_NOTABLE]
    notable.sort(key=lambda one: (names[one[1]] != culprit, -one[0], rows[one[1]].index(one[0])))
    return {
        "modules": [
            [names[index], CODES[code].reason, next(in_words(known, index, CODES[code].reason))]
            for code, index in notable[:MAX_IN_WORDS]
        ],
        "more": max(0, len(notable) - MAX_IN_WORDS),
    }


def model_order(names: Sequence[str], called: Mapping[str, int]) -> list[int]:
    """Return the order in which modules stand in the model, as far as it is known.

    Those with outputs stand in the order in which they are called, siblings that are numbered by
    their number, and each of them with all that is in it.
    """
    first: dict[str, tuple[int, int]] = {}
    for index, name in enumerate(names):
        # What is never called itself stands where the first of its own is.
        own = (0, called[name]) if name in called else (1, index)
        for path in _paths(name):
            first[path] = min(first.get(path, own), own)

    def key(index: int) -> list[tuple[int, int, int, str]]:
        return [_among_siblings(path, first[path]) for path in _paths(names[index])]

    return sorted(range(len(names)), key=key)


def _among_siblings(path: str, first: tuple[int, int]) -> tuple[int, int, int, str]:
    last = path.rpartition(".")[2]
    if last.isdecimal():
        return 0, 0, int(last), last
    return (1, *first, last)


def _paths(name: str) -> list[str]:
    """Return the names of a module and of all that it is in, from the outside; the root has none."""
    parts = name.split(".") if name else []
    return [".".join(parts[: i + 1]) for i in range(len(parts))]
