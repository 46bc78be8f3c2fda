"""The map of a model by a precision plan: modules down, their three products across, the format in each cell."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from ampwatch.host.page.rows import State
from ampwatch.numerics.formats import FORMATS
from ampwatch.report.words import number, percent, plural
from ampwatch.wire.records import PRODUCTS, PlanRecord, formats_of_words

NONE, AS_IS = "none", "as is"

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
"""Formats of a plan that are distinguished; a plan has nine to choose from, unless it was asked for others."""


def plan_of_map(plan: Mapping[str, PlanRecord], modules: Sequence[str]) -> State:
    """Return a plan as a map is sent: rows of letters, and what these stand for.

    The codes are in the order of their bits, so that what holds other modules shows the widest of them.
    """
    used = {name for record in plan.values() for name in record.formats if name}
    formats = sorted(used, key=lambda name: (_bits(name), name))[: len(_LETTERS)]
    letters = dict(zip(formats, _LETTERS, strict=False)) | {"": "."}
    names = [*modules, *(module for module in plan if module not in set(modules))]
    unplanned = ("",) * len(PRODUCTS)
    of_each = [plan[module].formats if module in plan else unplanned for module in names]
    return {
        "sentence": _sentence(next(iter(plan.values())), len(plan)),
        "columns": list(PRODUCTS),
        "modules": names,
        "rows": ["".join(letters.get(name, ".") for name in formats) for formats in of_each],
        "codes": [
            {"letter": ".", "reason": NONE, "grade": 0, "words": "no product of a layer"},
            *({"letter": letters[n], "reason": _key(n), "grade": 2, "words": n} for n in formats),
        ],
        "legend": [*_legend(formats)],
        "details": {
            module: list(map(_detail, record.formats, record.sqnr_db, record.why))
            for module, record in plan.items()
        },
    }


def _detail(name: str, ratio: float, why: str) -> str | None:
    """Return the dB of a product, and why it has no cheaper format; ``None`` where there is no such product."""
    if not name:
        return None
    decibels = "" if math.isnan(ratio) else "no loss" if ratio == math.inf else f"{ratio:.1f} dB"
    if name != AS_IS:
        why = f"not {why}" if why else "no cheaper format was considered"
    return "; ".join(filter(None, (decibels, why))) or None


def _bits(name: str) -> int:
    """Return the bits of the widest format of a product; what was left as it is comes last."""
    known = [FORMATS[part].bits for part in formats_of_words(name) if part in FORMATS]
    return max(known, default=64)


def _key(name: str) -> str:
    return f"bits{_bits(name)}" if _bits(name) < 64 else "as_is"


def _legend(formats: Iterable[str]) -> Iterable[State]:
    by_key: dict[str, list[str]] = {}
    for name in formats:
        by_key.setdefault(_key(name), []).append(name)
    for key, names in by_key.items():
        if key == "as_is":
            sign, word, meaning = "?", AS_IS, "no format was chosen"
        else:
            sign = key.removeprefix("bits")
            word, meaning = f"{sign} bits", ", ".join(names)
        yield {"key": key, "sign": sign, "word": word, "meaning": meaning}
    yield {
        "key": NONE,
        "sign": "",
        "word": "no product",
        "meaning": "it multiplies nothing, its input has no gradient, or it was not planned",
    }


def _sentence(record: PlanRecord, layers: int) -> str:
    gpu = f" on {record.gpu}" if record.gpu else ""
    span = (
        f"step {number(record.first_step)}"
        if record.first_step == record.last_step
        else f"steps {number(record.first_step)} to {number(record.last_step)}"
    )
    return (
        f"Precision plan{gpu} that was asked for at step {number(record.step)}, for"
        f" {plural(layers, 'layer')}: the cheapest format of each product that keeps {record.limit_db:g} dB and has"
        f" at most {percent(record.max_flushed)} of an operand become zero. It rests on"
        f" {plural(record.steps, 'measured iteration')}, of {span}, and says nothing of those to come."
    )
