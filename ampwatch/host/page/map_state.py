"""The map of a model for the page: modules down, samples across, the worst trouble in each cell.

A cell is a letter, one of ``CODES``; what it means in words is said here, once, and the page draws
it. It is asked for by itself (``/map.json``), for one rank at a time and only while it is looked at:
of 2000 modules it is larger than all else that a page is sent. No torch, no network.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ampwatch.host.fleet.module_map import (
    GRADIENT_ENDS,
    MAP_REASONS,
    NOTABLE,
    OUTPUT_ENDS,
    UNKNOWN,
    amount_of,
    ends_of,
)
from ampwatch.host.page.map_codes import (
    BY_KEY,
    CODES,
    FIRST_NOTABLE,
    LEGEND,
    LETTERS,
    TABLES,
    bits,
)
from ampwatch.host.page.map_order import model_order
from ampwatch.numerics.formats import FORMATS, format_of_gradient
from ampwatch.report.accounts import place
from ampwatch.report.precision_words import FALLBACKS
from ampwatch.report.words import number, percent, plural
from ampwatch.wire.records import ALL_MODULES, Topic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ampwatch.host.fleet import Fleet, RankView
    from ampwatch.numerics.formats import FloatFormat
    from ampwatch.wire.records import CensusRecord, Finding

State = dict[str, Any]

MAX_TOLD = 64
"""Modules that are told in words, the worst ones."""

MAX_KNOWN = 8
"""Ranks whose columns are kept ready: more are hardly looked at at a time."""

NOTHING_YET = "Nothing was measured yet: here stands, for each module and sample, what leaves its number format."

_NOT_MODULES = frozenset({"loss", "api", "env"})
"""Places of findings that are no module; those with a colon are not either, but for a few."""

_OF_A_MODULE = re.compile(r"(?:param|buffer):(?:(.*)\.)?[^.]+")


@dataclass(frozen=True, slots=True)
class _Seen:
    """The steps and the bytes of a column; these are replaced, never changed."""

    first_step: int
    last_step: int
    planes: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of a rank at one time."""

    columns: list[_Seen]
    names: list[str]
    called: dict[str, int]
    dtypes: dict[str, dict[Topic, str]]
    left_out: int
    autocast: FloatFormat | None
    census: CensusRecord | None
    root: Finding | None


class Maps:
    """The maps of the ranks of a fleet. For one thread.

    Args:
        fleet: Whose they are.

    Cost:
        Of 2000 modules and 96 columns a tenth of a second, without the fleet's lock; 230 kB of JSON,
        a twentieth of that compressed.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._codes: WeakKeyDictionary[RankView, dict[int, tuple[tuple[bytes, ...], bytes]]] = (
            WeakKeyDictionary()
        )
        self._orders: WeakKeyDictionary[RankView, tuple[tuple[int, list[str]], list[int]]] = (
            WeakKeyDictionary()
        )

    def of(self, run: str, rank: str) -> State | None:
        """Return the map of a rank; ``None`` if there is no such rank."""
        view, known = self._look(run, rank)
        if view is None or known is None:
            return None
        columns = self._columns(view, known)
        culprit = _culprit(known)
        names = known.names
        if culprit is not None and culprit["module"] not in names:
            # Not measured, but at the root of it all: it has its row, without a sample.
            names = [*names, culprit["module"]]
        order = self._order(view, names, known.called)
        rows = _rows(columns, len(names))
        state: State = {
            "sentence": _sentence(known, rows),
            "columns": [[column.first_step, column.last_step] for column in known.columns],
            "modules": [names[i] for i in order],
            "rows": [rows[i].translate(LETTERS.ljust(256)).decode() for i in order],
            "worst": _worst(known, names, rows, None if culprit is None else culprit["module"]),
            "islands": _islands(known.census),
            "codes": [code._asdict() for code in CODES],
            "legend": [reason._asdict() for reason in LEGEND],
        }
        return state if culprit is None else {**state, "culprit": culprit}

    def course(self, run: str, rank: str, module: str) -> State | None:
        """Return the course of one module of a rank; ``None`` if there is none."""
        _, known = self._look(run, rank)
        if known is None or module not in known.names:
            return None
        index = known.names.index(module)
        return {
            "module": module,
            "columns": [[column.first_step, column.last_step] for column in known.columns],
            "charts": [
                _ends(known, index, title, topic, plane)
                for title, topic, plane in (
                    ("Outputs", Topic.ACTIVATION, OUTPUT_ENDS),
                    ("Gradients, times the loss scale", Topic.GRADIENT, GRADIENT_ENDS),
                )
            ],
            "words": list(_told(known, index)),
        }

    def _look(self, run: str, rank: str) -> tuple[RankView | None, _Known | None]:
        with self._fleet.lock:
            views = (r for r in self._fleet.ranks() if r.run == run)
            view = next((r for r in views if str(r.identity.rank) == rank), None)
            if view is not None and view.verdict is None:
                self._fleet.judge()  # nobody has asked for anything yet
            return view, None if view is None else _known(view)

    def _order(self, view: RankView, names: list[str], called: Mapping[str, int]) -> list[int]:
        """Return ``model_order``, made again only where there is another module."""
        source = (len(called), names)
        before, order = self._orders.get(view, (None, []))
        if source != before:
            order = model_order(names, called)
            while len(self._orders) >= MAX_KNOWN:
                self._orders.popitem()
            self._orders[view] = source, order
        return order

    def _columns(self, view: RankView, known: _Known) -> list[bytes]:
        """Return the places among ``CODES`` of each module, by column."""
        before = self._codes.pop(view, {})
        now: dict[int, tuple[tuple[bytes, ...], bytes]] = {}
        for column in known.columns:
            planes, codes = before.get(column.first_step, ((), b""))
            # By identity: bytes are replaced, never changed.
            if planes is not column.planes:
                codes = _worst_of(column.planes)
            now[column.first_step] = column.planes, codes
        while len(self._codes) >= MAX_KNOWN:
            self._codes.popitem()
        self._codes[view] = now
        return [codes for _, codes in now.values()]


def _known(rank: RankView) -> _Known:
    map_ = rank.ranges.map
    root = None if rank.verdict is None else rank.verdict.root
    return _Known(
        columns=[_Seen(span.first_step, span.last_step, span.planes) for span in map_.spans],
        names=list(map_.dtypes),
        called=dict(map_.called),
        dtypes={name: dict(dtypes) for name, dtypes in map_.dtypes.items()},
        left_out=map_.left_out + getattr(rank.ranges.totals, "modules_left_out", 0),
        autocast=rank.ranges.autocast,
        census=rank.precision.census,
        root=None if root is None else root.finding,
    )


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


def _worst(
    known: _Known, names: Sequence[str], rows: Sequence[bytes], culprit: str | None
) -> State:
    """Return the modules in trouble, the worst first, and how many more there are.

    Of equally bad ones that comes first which was so first; the culprit before all others.
    """
    worst = [(max(row, default=0), index) for index, row in enumerate(rows)]
    notable = [(code, index) for code, index in worst if code >= FIRST_NOTABLE]
    notable.sort(key=lambda one: (names[one[1]] != culprit, -one[0], rows[one[1]].index(one[0])))
    return {
        "modules": [
            [names[index], CODES[code].reason, next(iter(_told(known, index)))]
            for code, index in notable[:MAX_TOLD]
        ],
        "more": max(0, len(notable) - MAX_TOLD),
    }


def _sentence(known: _Known, rows: Sequence[bytes]) -> str:
    if not known.columns:
        return NOTHING_YET
    troubled = sum(max(row, default=0) >= FIRST_NOTABLE for row in rows)
    parts = [
        plural(len(known.names), "module"),
        f"{number(troubled)} of them in trouble at some time" if troubled else "none in trouble",
    ]
    if known.left_out:
        left_out = plural(known.left_out, "module")
        parts.append(f"{left_out} left out of the newest sample (see the setting max_modules)")
    return "; ".join(parts)


def _told(known: _Known, index: int) -> Iterator[str]:
    """Yield each trouble of a module in words, the worst first: how bad, and in which steps."""
    for plane, reason in enumerate(MAP_REASONS):
        bytes_ = [_byte(column, plane, index) for column in known.columns]
        places = [place for place, byte in enumerate(bytes_) if byte >= NOTABLE]
        if not places:
            continue
        amount = _amount(reason, max(bytes_))
        first, last = known.columns[places[0]], known.columns[places[-1]]
        known_bytes = [byte for byte in bytes_ if byte != UNKNOWN]
        since = f"since step {number(first.first_step)}"
        if known_bytes[-1] < NOTABLE:
            since = _steps(first.first_step, last.last_step)
        often = f"{number(len(places))} of {plural(len(known_bytes), 'column')}"
        yield f"{BY_KEY[reason].word} {since}, in {often}; at worst {amount}"


def _amount(reason: str, byte: int) -> str:
    amount = amount_of(reason, byte)
    if reason == "activation_headroom":
        return f"{bits(amount)} of headroom"
    of = {"lost": "gradient", "unchanged": "weights"}.get(reason, "elements")
    return (
        f"all of the {of}"
        if amount == 1.0
        else f"about {percent(float(f'{amount:.1g}'))} of the {of}"
    )


def _steps(first: int, last: int) -> str:
    if first == last:
        return f"in step {number(first)}"
    return f"in steps {number(first)} to {number(last)}"


def _byte(column: _Seen, plane: int, index: int) -> int:
    bytes_ = column.planes[plane]
    return bytes_[index] if index < len(bytes_) else UNKNOWN


def _ends(known: _Known, index: int, title: str, topic: Topic, plane: int) -> State:
    """Return the exponents of one topic over the columns, and the limits of their format."""
    dtype = known.dtypes[known.names[index]].get(topic, "")
    limit = FORMATS.get(dtype)
    if topic is Topic.GRADIENT:
        limit = format_of_gradient(dtype, known.autocast)
    ends = [
        ends_of(_byte(column, plane, index), _byte(column, plane + 1, index))
        for column in known.columns
    ]
    return {
        "title": title,
        "format": "" if limit is None else limit.name,
        "ends": [None if one is None else list(one) for one in ends],
        "limits": [] if limit is None else _limits(limit),
    }


def _limits(limit: FloatFormat) -> list[list[Any]]:
    """Return where a format ends, as exponents: how bad, in words, and where."""
    return [
        ["critical", "overflow", math.log2(limit.overflow_from)],
        ["warning", "smallest normal", math.log2(limit.min_normal)],
        ["critical", "flush to zero", math.log2(limit.min_subnormal) - 1],
    ]


def _culprit(known: _Known) -> State | None:
    """Return the module that the verdict names, if it names one."""
    root = known.root
    if root is None or root.where in _NOT_MODULES:
        return None
    module = root.where
    if ":" in root.where:
        match = _OF_A_MODULE.fullmatch(root.where)
        if match is None:
            return None
        module = match[1] or ""
    return {
        "module": module,
        "step": root.first_step,
        "words": f"{root.kind} in {place(root)}, since step {number(root.first_step)}",
    }


def _islands(census: CensusRecord | None) -> dict[str, str]:
    """Return the modules whose arithmetic ran in float32 although autocast is used, and why."""
    if census is None:
        return {}
    flops: dict[str, list[int]] = {}
    why: dict[str, tuple[int, str]] = {}
    for row in census.rows:
        if row.module == ALL_MODULES or not row.flops:
            continue
        both = flops.setdefault(row.module, [0, 0])
        both[0] += row.flops
        if row.fallback in FALLBACKS:
            both[1] += row.flops
            why[row.module] = max(
                why.get(row.module, (0, "")), (row.flops, FALLBACKS[row.fallback])
            )
    return {
        module: f"{percent(flops[module][1] / flops[module][0])} of its FLOPs in float32: {reason}"
        for module, (_, reason) in why.items()
    }
