"""The map of a model in words: one module over the samples, and what is noted beside the cells."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ampwatch.host.fleet.module_map import (
    GRADIENT_ENDS,
    MAP_REASONS,
    NOTABLE,
    OUTPUT_ENDS,
    UNKNOWN,
    amount_of,
    ends_of,
)
from ampwatch.host.page.map_codes import BY_KEY, FIRST_NOTABLE, FOLLOWING, bits
from ampwatch.numerics.formats import FORMATS, format_of_gradient
from ampwatch.report.precision_words import FALLBACKS
from ampwatch.report.words import number, percent, plural
from ampwatch.wire.records import ALL_MODULES, Topic

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ampwatch.host.fleet.module_map import MapColumn
    from ampwatch.host.page.map_state import KnownMap
    from ampwatch.host.page.rows import State
    from ampwatch.numerics.formats import FloatFormat
    from ampwatch.wire.records import CensusRecord

NOTHING_YET = "Nothing was measured yet: this shows, for each module and sample, which values leave its number format."


def history_of(known: KnownMap, module: str) -> State | None:
    """Return the history of one module; ``None`` if it was never measured."""
    if module not in known.names:
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
        "words": list(in_words(known, index)),
    }


def sentence(known: KnownMap, rows: Sequence[bytes]) -> str:
    """Return how many modules are in trouble, what the others follow from, and how many are not in the map."""
    if not known.columns:
        return NOTHING_YET
    troubled = sum(max(row, default=0) >= FIRST_NOTABLE for row in rows)
    following = sum(max(row, default=0) == FOLLOWING for row in rows)
    parts = [f"{plural(len(known.names), 'module')} measured"]
    if troubled:
        parts.append(f"{number(troubled)} in trouble at some time")
    if following and known.culprit is not None:
        others = f"{plural(following, 'other')} follow{'s' * (following == 1)} from it"
        parts.append(f"the fault is in {known.culprit['module'] or 'the model itself'}, {others}")
    elif not troubled:
        parts.append("none in trouble")
    if known.left_out:
        left_out = plural(known.left_out, "module")
        parts.append(f"{left_out} left out of the newest sample (see the setting max_modules)")
    return "; ".join(parts)


def in_words(known: KnownMap, index: int, only: str = "") -> Iterator[str]:
    """Yield each trouble of a module in words, the worst first: how bad, and in which steps.

    Args:
        known: What is known of the rank.
        index: Which module.
        only: One of ``MAP_REASONS``; empty for all.
    """
    for plane, reason in enumerate(MAP_REASONS):
        if only not in ("", reason):
            continue
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


def _byte(column: MapColumn, plane: int, index: int) -> int:
    bytes_ = column.planes[plane]
    return bytes_[index] if index < len(bytes_) else UNKNOWN


def _ends(known: KnownMap, index: int, title: str, topic: Topic, plane: int) -> State:
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
    """Return where a format ends: the name of each limit, and its exponent."""
    return [
        ["overflow", math.log2(limit.overflow_from)],
        ["smallest normal", math.log2(limit.min_normal)],
        ["flush to zero", math.log2(limit.min_subnormal) - 1],
    ]


def islands(census: CensusRecord | None) -> dict[str, str]:
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
