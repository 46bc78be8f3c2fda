"""What two runs say of themselves, and where that differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ampwatch.lab.tape.files import Tape
from ampwatch.lab.tape.rows import RowKind, TapeModule


@dataclass
class Contrast:
    """In sentences, what differs between two runs, whether or not it changes a number."""

    facts: list[str] = field(default_factory=list)  # versions, device, flags
    optimizers: list[str] = field(default_factory=list)  # their classes and numbers
    modules: dict[str, list[str]] = field(default_factory=dict)  # by module, what it says of itself

    def of_module(self, name: str) -> list[str]:
        """Return what differs of a module, and of those around it, the innermost first."""
        found = list(self.modules.get(name, ()))
        while name:
            name = name.rpartition(".")[0]
            found += self.modules.get(name, ())
        return found

    def all(self) -> list[str]:
        """Return all sentences."""
        modules = [sentence for known in self.modules.values() for sentence in known]
        return [*self.facts, *self.optimizers, *modules]


def profile_of(tape: Tape) -> frozenset[str]:
    """Return the formats that a run is set to: dtypes of autocast, and those of its parameters."""
    autocast = {dtype for step in tape.steps.values() for dtype in step.autocast}
    first = tape.steps[min(tape.steps)]
    return frozenset(autocast | {r.dtype for r in first.rows if r.kind == RowKind.WEIGHT})


def contrast(a: Tape, b: Tape) -> Contrast:
    """Return what differs between what two runs say of themselves."""
    found = Contrast()
    found.facts += _differing(a.head.facts, b.head.facts)
    profiles = [", ".join(sorted(profile_of(tape))) for tape in (a, b)]
    if profiles[0] != profiles[1]:
        found.facts.append(f"formats: {profiles[0]} in A, {profiles[1]} in B")
    for mine, theirs in zip(a.head.optimizers, b.head.optimizers, strict=False):
        found.optimizers += [f"optimizer: {line}" for line in _differing(mine, theirs)]
    if len(a.head.optimizers) != len(b.head.optimizers):
        found.optimizers.append(
            f"{len(a.head.optimizers)} optimizers in A, {len(b.head.optimizers)} in B"
        )
    _contrast_modules(a, b, found)
    return found


def _contrast_modules(a: Tape, b: Tape, found: Contrast) -> None:
    # DDP and what it wraps both have the name that the model has.
    theirs = dict(_numbered(b.head.modules))
    evaluating = [{n for s in tape.steps.values() for n in s.evaluating} for tape in (a, b)]
    for key, mine in _numbered(a.head.modules):
        name, other = mine.name, theirs.pop(key, None)
        called = name or "the model"
        lines: list[str] = []
        if other is None:
            lines.append(f"{called} ({mine.type}) is in A alone")
        else:
            if mine.type != other.type:
                lines.append(f"{called} is a {mine.type} in A, a {other.type} in B")
            lines += [f"{called}: {line}" for line in _differing(mine.options, other.options)]
        if (name in evaluating[0]) != (name in evaluating[1]):
            where, elsewhere = ("A", "B") if name in evaluating[0] else ("B", "A")
            lines.append(f"{called} is in eval() in {where}, in train() in {elsewhere}")
        if lines:
            found.modules.setdefault(name, []).extend(lines)
    for (name, _), other in theirs.items():
        line = f"{name or 'the model'} ({other.type}) is in B alone"
        found.modules.setdefault(name, []).append(line)


def _numbered(modules: Iterable[TapeModule]) -> Iterator[tuple[tuple[str, int], TapeModule]]:
    """Yield modules with their names, and which of several of one name each is, from the inside."""
    seen = Counter[str]()
    for module in reversed(list(modules)):
        yield (module.name, seen[module.name]), module
        seen[module.name] += 1


def _differing(a: Mapping[str, str], b: Mapping[str, str]) -> Iterator[str]:
    for name in dict.fromkeys((*a, *b)):
        mine, other = a.get(name, "nothing"), b.get(name, "nothing")
        if mine != other:
            yield f"{name} is {mine or 'empty'} in A, {other or 'empty'} in B"
