"""Two runs held against each other, in words."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ampwatch.lab.difference.ranks import Parting, RankDifference, RunsDifference, ranks_in_words
from ampwatch.lab.difference.verdict import Departure, Difference, ModuleSpread, Spread
from ampwatch.lab.tape.files import Tape
from ampwatch.lab.tape.rows import RowKind

SHOWN_STEPS = 12
SHOWN_MODULES = 16
SHOWN_PLACES = 5
SHOWN_LINES = 12
INDENT = 10

_WHAT = {
    RowKind.WEIGHT: "parameter",
    RowKind.BUFFER: "buffer",
    RowKind.INPUT: "what is read by",
    RowKind.OP: "op",
    RowKind.OUTPUT: "output of",
    RowKind.OUTPUT_GRADIENT: "gradient at the output of",
    RowKind.GRADIENT: "gradient of",
    RowKind.NEW_WEIGHT: "update of",
}


def render_difference(runs: RunsDifference, width: int = 100) -> str:
    """Return two runs held against each other as text for a terminal."""
    found = runs.lead
    lines = [f"A  {_named(runs.a, runs)}", f"B  {_named(runs.b, runs)}", ""]
    for label, words in _verdict(runs):
        lines += textwrap.wrap(
            words,
            width,
            initial_indent=f"{label:<{INDENT}}",
            subsequent_indent=" " * INDENT,
            break_long_words=False,
            break_on_hyphens=False,
        )
    lines.append("")
    lines += _steps(found.spreads)
    lines += _modules(found.modules, found)
    lines += _listed("also different", runs.contrasts, width)
    lines += _listed("not compared", runs.notes, width)
    return "\n".join(lines).rstrip() + "\n"


def place_of(departure: Departure) -> str:
    """Return the place of a departure in words: ``op addmm in blocks.1.mlp, forward of step 0``."""
    if departure.kind == RowKind.INPUT and not departure.name:
        return f"the batch of step {departure.step}"
    name, inside = departure.name or "the model", ""
    if departure.kind in (RowKind.OP, RowKind.INPUT):
        inside = f" in {departure.module or 'the model, outside of its parts'}"
    what = _WHAT[departure.kind]
    return f"{what} {name}{inside}, {departure.phase} of step {departure.step}"


def _named(tape: Tape, runs: RunsDifference) -> str:
    head = tape.head
    steps = sorted(tape.steps)
    of = f"{len(steps)} steps, {steps[0]} to {steps[-1]}" if len(steps) > 1 else f"step {steps[0]}"
    rank = f", rank {head.rank} of {head.world_size}" if head.world_size > 1 else ""
    if runs.has_ranks and head.world_size > 1:
        rank = f", {head.world_size} ranks; below, rank {head.rank}"
    return f"{head.run}{rank}: {of}  ({tape.path})"


def _verdict(runs: RunsDifference) -> Iterator[tuple[str, str]]:
    """Yield what is said of two runs first: labels, and words."""
    found = runs.lead
    if runs.is_same:
        yield "verdict", "the same: no sum of any tensor differs"
        yield from _ranks(runs)
        return
    first = found.departures[0] if found.departures else None
    if first is None:
        words = "they differ as their formats explain, and no further"
        if runs.partings:
            words = "ranks of one run differ where they should have the same"
        yield "verdict", words
        yield from _ranks(runs)
    else:
        yield "verdict", "they differ by more than their formats explain"
        yield "where", f"{place_of(first)}{_in_ranks(runs)}"
        yield from _ranks(runs)
        yield "size", _size(first)
        for cause in found.causes or [_without_cause(first)]:
            yield "there", cause
    apart = found.first_apart
    if apart is not None and (first is None or place_of(apart) != place_of(first)):
        yield "begins", f"{place_of(apart)}: {_share(apart.distance)} apart"
    others = _others(found.departures)
    for other in others[:SHOWN_PLACES]:
        yield "then", f"{place_of(other)}: {_size(other)}"
    if len(others) > SHOWN_PLACES:
        yield "then", f"{len(others) - SHOWN_PLACES} more places: --json has all"


def _without_cause(first: Departure) -> str:
    if first.kind == RowKind.GRADIENT:
        return "the tapes do not say why: what was computed before it, and how ranks add it up, do"
    return (
        "the tapes do not say why: same op, same dtypes, same options; what runs inside of it does"
    )


def _in_ranks(runs: RunsDifference) -> str:
    """Return where a place is, in words that end a sentence: ``, rank 2``."""
    here = runs.at_the_place()
    if not runs.has_ranks:
        return ""
    if len(here) == len(runs.pairs):
        return ", in both ranks" if len(here) == 2 else f", in all {len(here)} ranks"
    return f", {ranks_in_words(sorted(max(pair.a, pair.b) for pair in here))}"


def _ranks(runs: RunsDifference) -> Iterator[tuple[str, str]]:
    """Yield what the other ranks say, and what the ranks of one run say of each other."""
    if runs.has_ranks:
        yield from (("ranks", words) for words in _other_ranks(runs))
    yield from (("parted", _parted(parting)) for parting in runs.partings)


def _other_ranks(runs: RunsDifference) -> Iterator[str]:
    silent = [pair for pair in runs.pairs if pair.first is None]
    later = runs.later()
    if not runs.at_the_place():
        if not runs.partings:
            yield f"so in each of the {len(runs.pairs)} ranks that were compared"
    elif silent:
        who = _others_in_words(silent, is_rest=not later)
        yield f"{who} as their formats explain"
    if later and later[0].first is not None:
        who = _others_in_words(later, is_rest=not silent)
        yield (
            f"{who} by more from {place_of(later[0].first)} on, as what ranks add up brings it to all of them"
            if later[0].first.kind in (RowKind.GRADIENT, RowKind.NEW_WEIGHT)
            else f"{who} by more from {place_of(later[0].first)} on"
        )


def _others_in_words(pairs: Sequence[RankDifference], *, is_rest: bool) -> str:
    who = ranks_in_words(sorted(max(pair.a, pair.b) for pair in pairs))
    if is_rest and len(pairs) > 1:
        who = f"the other {len(pairs)} ranks"
    return f"{who} {'differ' if len(pairs) > 1 else 'differs'}"


def _parted(parting: Parting) -> str:
    what = {
        RowKind.WEIGHT: f"parameter {parting.name}, before step {parting.step}",
        RowKind.GRADIENT: f"gradient of {parting.name} after its sum, in step {parting.step}",
    }.get(parting.kind, f"parameter {parting.name}, as step {parting.step} has left it")
    are_all = len(parting.ranks) == parting.num_ranks
    who = f"all {parting.num_ranks} ranks have values of their own"
    if not are_all:
        who = f"{ranks_in_words(parting.ranks)} of {parting.num_ranks} have other values than the rest"
        who = who if len(parting.ranks) > 1 else who.replace(" have ", " has ")
    elif parting.num_ranks == 2:
        who = f"{ranks_in_words(parting.ranks)} have not the same values"
    more = f"; {parting.num_parameters - 1} more parameters" if parting.num_parameters > 1 else ""
    return f"in {parting.run}, {what}: {who}, {_share(parting.distance)} apart{more}"


def _others(departures: Sequence[Departure]) -> list[Departure]:
    """Return the departures after the first, of each place that of the first step."""
    places: dict[tuple[object, ...], Departure] = {}
    for departure in departures:
        key = departure.kind, departure.module, departure.name, departure.phase
        places.setdefault(key, departure)
    return list(places.values())[1:]


def _size(departure: Departure) -> str:
    words = f"{_share(departure.distance)} apart; formats and inputs explain {_share(departure.allowed)}"
    if departure.kind in (RowKind.OP, RowKind.OUTPUT, RowKind.OUTPUT_GRADIENT):
        words += f", what it reads is {_share(departure.incoming)} apart"
    return words


def _share(value: float) -> str:
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "not finite in one alone"
    return f"{value:.2g}" if value else "0"


def _steps(spreads: Sequence[Spread]) -> Iterator[str]:
    yield "by step: how far apart, as a share of the norm"
    yield f"{'step':>8}{'weights':>11}{'outputs':>11}{'gradients':>11}{'loss A':>12}{'loss B':>12}{'scale A':>10}{'scale B':>10}"
    half = SHOWN_STEPS // 2
    shown = spreads if len(spreads) <= SHOWN_STEPS else [*spreads[:half], *spreads[-half:]]
    for spread in shown:
        shares = [spread.weights, spread.outputs, spread.gradients]
        cells = "".join(f"{_cell(x):>11}" for x in shares)
        losses = "".join(f"{_number(x):>12}" for x in spread.losses)
        scales = "".join(f"{_number(x):>10}" for x in spread.scales)
        yield f"{spread.step:>8}{cells}{losses}{scales}"
    yield ""


def _cell(value: float) -> str:
    return "inf" if math.isinf(value) else _share(value)


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.6g}"


def _modules(modules: Sequence[ModuleSpread], found: Difference) -> Iterator[str]:
    if not modules:
        return
    step = found.departures[0].step if found.departures else found.steps[0]
    place = found.departures[0].module if found.departures else None
    begin = next((n for n, m in enumerate(modules) if m.module == place), 0)
    begin = max(0, min(begin - SHOWN_MODULES // 2, len(modules) - SHOWN_MODULES))
    shown = modules[begin : begin + SHOWN_MODULES]
    wide = max(len("module"), *(len(m.module or "(model)") for m in shown))
    yield f"by module, in the order of their ends in step {step}"
    yield f"  {'module':<{wide}}{'output':>10}{'gradient':>10}{'amax A':>11}{'amax B':>11}  dtypes"
    for module in shown:
        mark = ">" if module.module == place else " "
        shares = "".join(f"{_cell(x):>10}" for x in (module.output, module.gradient))
        amax = "".join(f"{x:>11.4g}" for x in module.amax)
        dtypes = ", ".join(dict.fromkeys(module.dtypes))
        yield f"{mark} {module.module or '(model)':<{wide}}{shares}{amax}  {dtypes}"
    if len(modules) > len(shown):
        yield f"  {len(modules) - len(shown)} more: --json has all"
    yield ""


def _listed(title: str, sentences: Iterable[str], width: int) -> Iterator[str]:
    lines = list(sentences)
    if not lines:
        return
    yield title
    for line in lines[:SHOWN_LINES]:
        yield from textwrap.wrap(
            line, width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False
        )
    if len(lines) > SHOWN_LINES:
        yield f"  {len(lines) - SHOWN_LINES} more: --json has all"
    yield ""


def difference_document(runs: RunsDifference) -> dict[str, Any]:
    """Return two runs held against each other for programs: names of fields are an interface."""
    found = runs.lead
    document = {
        "a": _run(runs.a),
        "b": _run(runs.b),
        "verdict": _word(runs),
        "steps": found.steps,
        "departures": [_departure(departure) for departure in found.departures],
        "causes": found.causes,
        "first_apart": None if found.first_apart is None else _departure(found.first_apart),
        "by_step": [spread._asdict() for spread in found.spreads],
        "by_module": [module._asdict() for module in found.modules],
        "also_different": runs.contrasts,
        "not_compared": runs.notes,
        "ranks": [_of_rank(pair) for pair in sorted(runs.pairs, key=lambda pair: pair[:2])],
        "parted": [
            parting._asdict() | {"kind": parting.kind.name.lower(), "place": _parted(parting)}
            for parting in runs.partings
        ],
    }
    finite: dict[str, Any] = _finite(document)
    return finite


def _word(found: Difference | RunsDifference) -> str:
    return "same" if found.is_same else "explained" if found.is_explained else "differ"


def _of_rank(pair: RankDifference) -> dict[str, Any]:
    first = pair.first
    return {
        "rank": [pair.a, pair.b],
        "verdict": _word(pair.found),
        "steps": pair.found.steps,
        "first": None if first is None else _departure(first),
        "causes": pair.found.causes,
    }


def _run(tape: Tape) -> dict[str, Any]:
    known = ("run", "rank", "world_size", "facts")
    return {"path": str(tape.path)} | {name: getattr(tape.head, name) for name in known}


def _departure(departure: Departure) -> dict[str, Any]:
    a, b = departure.a, departure.b
    return {
        "step": departure.step,
        "kind": departure.kind.name.lower(),
        "module": departure.module,
        "name": departure.name,
        "phase": departure.phase,
        "distance": departure.distance,
        "allowed": departure.allowed,
        "incoming": departure.incoming,
        "dtypes": [a.dtype, b.dtype],
        "inputs": [a.inputs, b.inputs],
        "amax": [a.amax, b.amax],
        "norm": [a.norm, b.norm],
        "place": place_of(departure),
    }


def _finite(value: Any) -> Any:
    """Return a value as JSON knows it: what is not finite as a word."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "inf"
    return value
