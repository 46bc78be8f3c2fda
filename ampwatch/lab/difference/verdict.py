"""Where two runs part: the first step, module and op, and how it spreads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ampwatch.errors import DiffError
from ampwatch.lab.difference.allowed import (
    GROWTH,
    ROUNDINGS,
    accumulated,
    condition,
    flushed,
    rounding_of,
    turned_share,
    unit_of,
)
from ampwatch.lab.difference.context import Contrast, contrast, profile_of
from ampwatch.lab.difference.pairs import (
    CASTS,
    Pair,
    PairedStep,
    distance,
    pair_state,
    pair_up,
)
from ampwatch.lab.tape.files import Tape
from ampwatch.lab.tape.rows import RowKind, TapeOutcome, TapeRow

UNSEEN_GROWTH = 16.0
"""Factor by which a module may increase what comes in, where its ops were not seen."""

LINEAR = frozenset({"SGD"})
"""Optimizers whose update is proportional to the gradient. Others divide by its magnitude, so that
noise in a gradient near zero turns an update around."""

SPLIT = 64.0
"""Units of rounding that gradients may be off whose batch was divided otherwise."""

RANDOM = frozenset(
    {
        "native_dropout",
        "bernoulli",
        "bernoulli_",
        "rand",
        "randn",
        "rand_like",
        "randn_like",
        "normal_",
    }
    | {"uniform_", "random_", "randint", "randperm", "multinomial", "normal", "exponential_"}
)


_ORDER = {RowKind.WEIGHT: 0, RowKind.BUFFER: 0, RowKind.INPUT: 1, RowKind.NEW_WEIGHT: 3}
_FLOW = 2


class Departure(NamedTuple):
    """A place at which two runs are further apart than what comes in and their formats explain."""

    step: int
    kind: RowKind  # what it was seen in
    module: str
    name: str  # the op, or the parameter or module
    phase: str  # ``forward``, ``backward``, ``state`` or ``update``
    distance: float  # how far they are apart there
    allowed: float  # how far they might be
    incoming: float  # how far what comes in is apart
    a: TapeRow  # the row of the one
    b: TapeRow  # the row of the other
    number: int = 0  # number of the row in the one
    only: tuple[str, ...] = ()  # ops that one of the runs alone has just before it: ``A runs mul``

    @property
    def order(self) -> tuple[int, int, int]:
        """When it comes: the same in all ranks, which run the same model."""
        return self.step, _ORDER.get(self.kind, _FLOW), self.number


class Spread(NamedTuple):
    """How far the runs are apart in one step; NaN where nothing was recorded."""

    step: int
    weights: float  # of all weights before it
    outputs: float  # the largest of all outputs of modules
    gradients: float  # the largest of all gradients of parameters
    losses: tuple[float, float]  # the losses of both
    scales: tuple[float, float]  # the loss scales of both


class ModuleSpread(NamedTuple):
    """How far the output of one module is apart in the step of the first departure."""

    module: str
    output: float  # distance of its output
    gradient: float  # distance of the gradient that comes back to it; NaN if none was seen
    amax: tuple[float, float]  # largest magnitudes of the output, of both
    dtypes: tuple[str, str]  # dtypes of the output, of both


@dataclass
class Difference:
    """What two runs held against each other say."""

    # places that formats do not explain, the first one first
    departures: list[Departure] = field(default_factory=list)
    # the first row that is not the same to the last bit, whether explained or not
    first_apart: Departure | None = None
    spreads: list[Spread] = field(default_factory=list)  # how far they are apart, by step
    # how far outputs are apart, in the step of the first departure, or the first step
    modules: list[ModuleSpread] = field(default_factory=list)
    # what the runs say of themselves that differs
    contrast: Contrast = field(default_factory=Contrast)
    notes: list[str] = field(default_factory=list)  # in sentences, what could not be compared
    steps: list[int] = field(default_factory=list)  # steps that were compared
    # in sentences, what at the place of the first departure differs
    causes: list[str] = field(default_factory=list)

    @property
    def is_explained(self) -> bool:
        """Whether all differences are what formats explain."""
        return not self.departures

    @property
    def is_same(self) -> bool:
        """Whether no difference was seen at all."""
        return self.first_apart is None and not self.departures


def compare(a: Tape, b: Tape) -> Difference:
    """Hold one rank of a run against one of another.

    Ranks that see other parts of the batch are compared by what is the same in all ranks alone.

    Raises:
        DiffError: If they are of different models or batches, or have recorded no step in common.

    Cost: some 50 us a row of both.
    """
    steps = sorted(a.steps.keys() & b.steps.keys())
    _check_steps(a, b, steps)
    is_split = _is_split(a, b, steps)
    divided = [frozenset(tape.head.divided) for tape in (a, b)]
    left_out = divided[0] | divided[1] if is_split else divided[0] ^ divided[1]
    if is_split:
        _check_whole(a, b, steps[0], left_out)
    found = Difference(steps=steps, contrast=contrast(a, b))
    found.notes += _notes(a, b, is_split=is_split, left_out=left_out)
    judge = _Judge(a, b, is_split=is_split)
    for step in steps:
        if is_split:
            paired = pair_state(a.steps[step], b.steps[step], left_out=left_out)
        else:
            ratio = _ratio(a, b, step)
            paired = pair_up(a.steps[step], b.steps[step], ratio, left_out=left_out)
        departures = judge.departures(paired)
        found.first_apart = found.first_apart or judge.first_apart(paired)
        found.departures += departures
        found.spreads.append(_spread(a, b, paired))
        is_first = departures and len(found.departures) == len(departures)
        if is_first or not found.modules:
            found.modules = list(_modules(paired))
    if found.departures:
        found.causes = judge.causes(found.departures[0], found.contrast)
    return found


def _check_steps(a: Tape, b: Tape, steps: list[int]) -> None:
    for tape in (a, b):
        if not tape.steps:
            msg = f"expected a tape with a recorded step, got {str(tape.path)!r} without; its run ended before one"
            raise DiffError(msg)
    if not steps:
        words = [f"{_listed(sorted(tape.steps))} in {str(tape.path)!r}" for tape in (a, b)]
        msg = (
            f"expected runs that recorded the same steps, got {words[0]} and {words[1]}; record both with"
            " the same record_first and record_every"
        )
        raise DiffError(msg)
    mine, theirs = (_weights(tape, steps[0]) for tape in (a, b))
    divided = {*a.head.divided, *b.head.divided}
    common = mine.keys() & theirs.keys()
    if (mine and theirs) and len(common) * 2 < max(len(mine), len(theirs)):
        only = min(mine.keys() ^ theirs.keys())
        msg = (
            f"expected two runs of one model, got {len(mine)} and {len(theirs)} parameters of which"
            f" {len(common)} have the same name ({only!r} is in one alone); compare runs of the same model"
        )
        raise DiffError(msg)
    whole = sorted(common - divided)
    other = next((name for name in whole if mine[name] != theirs[name]), None)
    if other is not None:
        msg = (
            f"expected two runs of one model, got parameter {other!r} of shape {mine[other]} and"
            f" {theirs[other]}; compare runs of the same model, whole or divided alike"
        )
        raise DiffError(msg)


def _check_whole(a: Tape, b: Tape, step: int, divided: frozenset[str]) -> None:
    names = _weights(a, step).keys() & _weights(b, step).keys()
    if names and names <= divided:
        msg = (
            f"expected parameters of which each rank has all, got {a.head.world_size} and"
            f" {b.head.world_size} ranks between which all {len(names)} are divided (FSDP, tensor parallel);"
            " record both with the same number of ranks, or one with DDP"
        )
        raise DiffError(msg)


def _weights(tape: Tape, step: int) -> dict[str, list[int]]:
    return {row.name: row.shape for row in tape.steps[step].rows if row.kind == RowKind.WEIGHT}


def _listed(steps: list[int]) -> str:
    ends = [str(step) for step in (steps if len(steps) < 4 else (steps[0], steps[1], steps[-1]))]
    return f"steps {', '.join(ends)}" if len(steps) > 1 else f"step {ends[0]}"


def _is_split(a: Tape, b: Tape, steps: list[int]) -> bool:
    """Whether the ranks of the two runs see other parts of the batch.

    Raises:
        DiffError: If as many ranks see batches of another shape.
    """
    if (a.head.rank, a.head.world_size) != (b.head.rank, b.head.world_size):
        return True
    for step in steps:
        mine, theirs = ([r.shape for r in t.steps[step].rows if _is_batch(r)] for t in (a, b))
        if mine != theirs:
            shapes = [", ".join(map(str, some[:4])) or "none" for some in (mine, theirs)]
            msg = (
                f"expected two runs of the same batches, got inputs of shapes {shapes[0]} and"
                f" {shapes[1]} in step {step}; give both the same batches, in the same order"
            )
            raise DiffError(msg)
    return False


def _is_batch(row: TapeRow) -> bool:
    return row.kind == RowKind.INPUT and not row.module and row.name == ""


def _notes(a: Tape, b: Tape, *, is_split: bool, left_out: frozenset[str]) -> list[str]:
    notes = []
    for letter, tape in (("A", a), ("B", b)):
        missing = {m for step in tape.steps.values() for m in step.missing}
        notes += [f"{letter} has not recorded {what}" for what in sorted(missing)]
        if tape.is_cut:
            notes.append(f"{letter} ends within a record: its run was killed, or still writes")
    if is_split:
        who = f"A has {a.head.world_size} ranks and B {b.head.world_size}"
        if a.head.world_size == b.head.world_size:
            who = f"A is rank {a.head.rank} and B rank {b.head.rank}"
        notes.append(
            f"{who}: each rank sees another part of the batch, so that only weights, gradients after"
            " their sum, and updates are compared"
        )
    if left_out:
        notes.append(
            f"{len(left_out)} parameters, {min(left_out)!r} for one, are divided between ranks (FSDP, tensor"
            " parallel), and not in the same way in A and B: their weights, gradients and updates"
        )
    if any(not any(r.kind == RowKind.OP for r in s.rows) for t in (a, b) for s in t.steps.values()):
        notes.append("ops were not recorded in all steps: there the place is a module, not an op")
    return notes


def _ratio(a: Tape, b: Tape, step: int) -> float:
    scales = [t.outcomes[step].scale if step in t.outcomes else math.nan for t in (a, b)]
    mine, theirs = (scale if scale > 0 and math.isfinite(scale) else 1.0 for scale in scales)
    return mine / theirs


class _Judge:
    """Judges step after step; remembers how far gradients and weights were apart before."""

    def __init__(self, a: Tape, b: Tape, *, is_split: bool) -> None:
        self._b = b
        self._is_split = is_split
        profiles = profile_of(a), profile_of(b)
        self._is_alike = profiles[0] == profiles[1]
        self._unit = max(max(map(unit_of, p), default=0.0) for p in profiles)
        self._tf32 = tuple(_has_tf32(tape) for tape in (a, b))
        self._gradients: dict[str, float] = {}
        self._turned: dict[str, float] = {}
        self._left: dict[str, float] = {}
        self._left_step = -1
        classes = {o.get("class", "") for tape in (a, b) for o in tape.head.optimizers}
        self._is_linear = bool(classes) and classes <= LINEAR

    def _rounded(self, a: TapeRow, b: TapeRow) -> float:
        units = [rounding_of(r, allows_tf32=t) for r, t in zip((a, b), self._tf32, strict=True)]
        # Runs that are set to the same formats have no reason to round otherwise at one op.
        return ROUNDINGS * (min(units) if self._is_alike else max(units))

    def first_apart(self, paired: PairedStep) -> Departure | None:
        """Return the first row that is not the same to the last bit."""
        for pair in paired.pairs:
            if pair.distance > 0.0 and paired.a[pair.a].kind != RowKind.NEW_WEIGHT:
                return _departure(paired, pair, math.nan, math.nan)
        return None

    def departures(self, paired: PairedStep) -> list[Departure]:
        """Return the places of one step that formats do not explain, in order."""
        found = [*self._of_state(paired)]
        if not self._is_split:
            inputs = list(self._of_inputs(paired))
            flow = self._of_flow(paired)
            # What has drawn another batch is no place of its own.
            found += inputs + [d for d in flow if not (inputs and d.name in RANDOM)]
        else:
            found += self._of_split(paired)
        for name, pair in paired.named(RowKind.GRADIENT).items():
            self._gradients[name] = max(self._gradients.get(name, 0.0), pair.distance)
            turned = turned_share(paired.a[pair.a], paired.b[pair.b], pair.distance)
            self._turned[name] = max(self._turned.get(name, 0.0), turned)
        found += self._of_updates(paired)
        self._left = {n: p.distance for n, p in paired.named(RowKind.NEW_WEIGHT).items()}
        self._left_step = paired.step
        return found

    def _of_state(self, paired: PairedStep) -> Iterator[Departure]:
        """Yield weights and buffers that differ before the step by more than after the one before."""
        is_first = self._left_step < 0
        for pair in paired.of_kind(RowKind.WEIGHT, RowKind.BUFFER):
            a, b = paired.a[pair.a], paired.b[pair.b]
            unit = max(unit_of(a.dtype), unit_of(b.dtype))
            before = self._left.get(a.name, math.inf)
            if is_first:
                allowed = ROUNDINGS * unit if a.dtype != b.dtype else 0.0
            elif self._left_step == paired.step - 1 and a.kind == RowKind.WEIGHT:
                allowed = GROWTH * before + ROUNDINGS * unit
            else:
                continue
            if pair.distance > allowed:
                yield _departure(paired, pair, allowed, 0.0 if is_first else before)

    def _of_inputs(self, paired: PairedStep) -> Iterator[Departure]:
        for pair in paired.of_kind(RowKind.INPUT):
            a, b = paired.a[pair.a], paired.b[pair.b]
            if a.exchanged or b.exchanged:
                continue
            unit = max(unit_of(a.dtype), unit_of(b.dtype))
            # What the step before has left, a state of the program's own, may be apart by now.
            carried = GROWTH * max(self._left.values(), default=0.0) if a.name else 0.0
            allowed = carried + ROUNDINGS * unit * (a.dtype != b.dtype or carried > 0.0)
            if pair.distance > allowed:
                yield _departure(paired, pair, allowed, 0.0)

    def _of_flow(self, paired: PairedStep) -> Iterator[Departure]:
        """Yield what was computed further apart than what it was computed from."""
        mine, theirs = _flow(paired.a, paired.pairs, 0), _flow(paired.b, paired.pairs, 1)
        so_far = max(
            (p.distance for p in paired.of_kind(RowKind.WEIGHT, RowKind.INPUT)), default=0.0
        )
        flow = {RowKind.OP, RowKind.OUTPUT, RowKind.OUTPUT_GRADIENT, RowKind.GRADIENT}
        for pair in paired.pairs:
            a, b = paired.a[pair.a], paired.b[pair.b]
            is_op, is_gradient = a.kind == RowKind.OP, a.kind == RowKind.GRADIENT
            if a.kind not in flow or (is_op and (a.exchanged or b.exchanged)):
                continue
            # Of all ranks, so that what this one has put in does not explain it by itself.
            is_summed = is_gradient and (_is_summed(paired.a, a) or _is_summed(paired.b, b))
            if a.sources and b.sources and not is_summed:
                coming = [mine[s] for s in a.sources] + [theirs[s] for s in b.sources]
                incoming = max(coming)
                allowed = self._allowed(paired, pair, incoming)
            elif is_op:
                incoming = 0.0
                allowed = self._rounded(a, b)
            else:
                incoming = so_far
                allowed = UNSEEN_GROWTH * (so_far + self._unit) + flushed(a, b)
            if not is_gradient:  # nor does one explain another
                so_far = max(so_far, min(pair.distance, 1.0))
            if pair.distance > allowed:
                only = (*_only(paired, pair, 0, "A"), *_only(paired, pair, 1, "B"))
                yield _departure(paired, pair, allowed, incoming)._replace(only=only)

    def _allowed(self, paired: PairedStep, pair: Pair, incoming: float) -> float:
        a, b = paired.a[pair.a], paired.b[pair.b]
        factor = max(
            condition(row, [rows[s] for s in row.sources], _siblings(rows, number))
            for row, rows, number in ((a, paired.a, pair.a), (b, paired.b, pair.b))
        )
        rest = accumulated(a, [paired.a[s] for s in a.sources])
        return factor * (GROWTH * incoming + rest + self._rounded(a, b)) + flushed(a, b)

    def _of_split(self, paired: PairedStep) -> Iterator[Departure]:
        before = max((p.distance for p in paired.of_kind(RowKind.WEIGHT)), default=0.0)
        for pair in paired.of_kind(RowKind.GRADIENT):
            a, b = paired.a[pair.a], paired.b[pair.b]
            allowed = SPLIT * self._unit + UNSEEN_GROWTH * before + flushed(a, b)
            if pair.distance > allowed:
                yield _departure(paired, pair, allowed, before)

    def _of_updates(self, paired: PairedStep) -> Iterator[Departure]:
        """Yield updates that are further apart than gradients make them."""
        before = paired.named(RowKind.WEIGHT)
        for name, pair in paired.named(RowKind.NEW_WEIGHT).items():
            if name not in before:
                continue
            old = before[name]
            apart, size = _update(paired, old, pair)
            a, b = paired.a[pair.a], paired.b[pair.b]
            incoming = self._gradients.get(name, 0.0)
            unit = max(unit_of(a.dtype), unit_of(b.dtype))
            rounded = ROUNDINGS * unit * a.norm / size if size else 0.0
            decayed = GROWTH * old.distance * a.norm / size if size else 0.0
            grown = GROWTH * (incoming if self._is_linear else math.sqrt(min(incoming, 1.0)))
            if not self._is_linear:
                # An element that turns around is off by twice the update.
                grown += 2.0 * math.sqrt(self._turned.get(name, 0.0))
            allowed = grown + rounded + decayed
            if apart > allowed:
                yield _departure(paired, pair._replace(distance=apart), allowed, incoming)

    def causes(self, first: Departure, known: Contrast) -> list[str]:
        """Return, in sentences, what differs at the place of a departure."""
        causes = list(first.only)
        a, b = first.a, first.b
        if first.kind == RowKind.OP and (a.dtype, a.inputs) != (b.dtype, b.inputs):
            causes.append(f"{first.name} computes {_dtypes(a)} in A and {_dtypes(b)} in B")
        if first.kind == RowKind.OP and a.name in RANDOM:
            causes.append("it draws random numbers, and the runs draw other ones")
        if a.nonfinite != b.nonfinite:
            causes.append(f"{a.nonfinite} elements are not finite in A, {b.nonfinite} in B")
        if first.kind in (RowKind.WEIGHT, RowKind.BUFFER) and math.isfinite(first.incoming):
            causes.append(_cause_of_state(first))
        if first.kind == RowKind.INPUT and not first.name:
            causes.append(self._cause_of_batch(first))
        causes += known.of_module(first.module)
        if first.kind == RowKind.NEW_WEIGHT:
            causes += known.optimizers
        is_product = any(word in first.name for word in ("mm", "linear", "conv", "matmul"))
        causes += [
            fact for fact in known.facts if is_product and ("tf32" in fact or "precision" in fact)
        ]
        return list(dict.fromkeys(causes))

    def _cause_of_batch(self, first: Departure) -> str:
        for step, there in sorted(self._b.steps.items()):
            rows = [r for r in there.rows if _is_batch(r) and r.index == first.a.index]
            if any(r.shape == first.a.shape and distance(first.a, r) == 0.0 for r in rows):
                return f"A's batch of step {first.step} is B's batch of step {step}: another order"
        return "other data, other augmentation, or another order"


def _departure(paired: PairedStep, pair: Pair, allowed: float, incoming: float) -> Departure:
    a, b = paired.a[pair.a], paired.b[pair.b]
    kind = RowKind(a.kind)
    phase = _PHASES.get(kind) or ("backward" if a.phase == 1 else "forward")
    how_far = pair.distance, allowed, incoming
    return Departure(paired.step, kind, a.module, a.name, phase, *how_far, a, b, pair.a)


_PHASES = {
    RowKind.WEIGHT: "state",
    RowKind.BUFFER: "state",
    RowKind.INPUT: "input",
    RowKind.OUTPUT: "forward",
    RowKind.OUTPUT_GRADIENT: "backward",
    RowKind.GRADIENT: "backward",
    RowKind.NEW_WEIGHT: "update",
}
"""Of all but ops, which have their own."""


def _dtypes(row: TapeRow) -> str:
    read = " and ".join(row.inputs) or "nothing"
    return f"{row.dtype} from {read}"


def _cause_of_state(first: Departure) -> str:
    if first.incoming:
        return "the weights were changed between two steps, by something else than an optimizer"
    if first.step:
        return "they differ before the first step that both recorded: record from the start"
    return "another seed, another checkpoint, or another way to initialise it"


def _flow(rows: Sequence[TapeRow], pairs: Sequence[Pair], side: int) -> list[float]:
    """Return how far each row of one run is apart from the other run, or what it was made of is."""
    known = {(pair.b if side else pair.a): pair.distance for pair in pairs}
    found: list[float] = []
    for number, row in enumerate(rows):
        if number in known:
            found.append(min(known[number], 1.0))
        else:
            found.append(max((found[s] for s in row.sources), default=0.0))
    return found


def _is_summed(rows: Sequence[TapeRow], row: TapeRow) -> bool:
    """Whether a gradient was made of memory that ranks exchange."""
    return row.exchanged or any(rows[source].exchanged for source in row.sources)


def _siblings(rows: Sequence[TapeRow], number: int) -> list[TapeRow]:
    """Return all that the op of a row has made: neighbours of the same name that read the same."""
    row = rows[number]
    begin, end = number, number + 1
    while begin and _is_like(rows[begin - 1], row):
        begin -= 1
    while end < len(rows) and _is_like(rows[end], row):
        end += 1
    return list(rows[begin:end])


def _is_like(row: TapeRow, other: TapeRow) -> bool:
    return (row.kind, row.name, row.sources) == (other.kind, other.name, other.sources)


def _only(paired: PairedStep, pair: Pair, side: int, letter: str) -> Iterator[str]:
    """Yield the ops between a pair and what both runs have, which one of them alone runs."""
    rows = paired.b if side else paired.a
    matched = {p.b if side else p.a for p in paired.pairs}
    mine = pair.b if side else pair.a
    left, alone = list(rows[mine].sources), set[int]()
    while left:
        number = left.pop()
        if number not in matched and number not in alone:
            alone.add(number)
            left += rows[number].sources
    for number in sorted(alone):
        row = rows[number]
        if row.kind == RowKind.OP and row.name not in CASTS:
            where = f" in {row.module}" if row.module else ""
            yield f"{letter} alone runs {row.name}{where} before it"


def _update(paired: PairedStep, old: Pair, new: Pair) -> tuple[float, float]:
    """Return how far two updates are apart as a share of the larger, and the norm of that."""
    before_a, after_a = paired.a[old.a].sums(), paired.a[new.a].sums()
    before_b, after_b = paired.b[old.b].sums(), paired.b[new.b].sums()
    mine = [y - x for x, y in zip(before_a, after_a, strict=True)]
    theirs = [y - x for x, y in zip(before_b, after_b, strict=True)]
    size = max(math.hypot(*mine), math.hypot(*theirs))
    apart = math.hypot(*(x - y for x, y in zip(mine, theirs, strict=True)))
    return (apart / size if size else 0.0), size


def _has_tf32(tape: Tape) -> bool:
    facts = tape.head.facts
    on_gpu = facts.get("device", "cpu") not in ("cpu", "")
    return on_gpu and "true" in (facts.get("allow_tf32"), facts.get("cudnn_allow_tf32"))


def _spread(a: Tape, b: Tape, paired: PairedStep) -> Spread:
    def largest(kind: RowKind) -> float:
        return max((p.distance for p in paired.of_kind(kind)), default=math.nan)

    unknown = TapeOutcome(paired.step, math.nan, math.nan, skipped=False)
    mine, theirs = (tape.outcomes.get(paired.step, unknown) for tape in (a, b))
    return Spread(
        paired.step,
        largest(RowKind.WEIGHT),
        largest(RowKind.OUTPUT),
        largest(RowKind.GRADIENT),
        (mine.loss, theirs.loss),
        (mine.scale, theirs.scale),
    )


def _modules(paired: PairedStep) -> Iterator[ModuleSpread]:
    gradients = paired.named(RowKind.OUTPUT_GRADIENT)
    for name, pair in paired.named(RowKind.OUTPUT).items():
        a, b = paired.a[pair.a], paired.b[pair.b]
        gradient = gradients[name].distance if name in gradients else math.nan
        yield ModuleSpread(name, pair.distance, gradient, (a.amax, b.amax), (a.dtype, b.dtype))
