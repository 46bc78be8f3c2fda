"""Accounts of a finding, in parts; the terminal and the HTML report arrange them.

ASCII only: a report can be printed in any locale.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from ampwatch.diagnosis.kinds.kind import KindFamily
from ampwatch.diagnosis.kinds.registry import certainty, row_of
from ampwatch.wire.records import OUTSIDE, in_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ampwatch.report.incidents import Incident
    from ampwatch.wire.records import Finding

_PHASES = {
    "forward": "forward pass",
    "backward": "backward pass",
    "optimizer": "optimizer step",
    "eval": "evaluation",
    "config": "set-up of the training",
}
_MANY = 8

_END_OF_SENTENCE = re.compile(r"(?<!\be\.g)(?<!\bi\.e)(?<!\bcf)(?<!\bvs)[.!?](?=\s+[A-Z])")
_END_OF_CLAUSE = re.compile(r"[,;:](?= )")
_NUMBER = re.compile(r"\W*\d[\d.,e^+%-]*\W*")
_JOIN = re.compile(
    r"an?|about|above|and|are|as|at|be|became|becomes?|below|between|but|by|every|for|from|had|has|have"
    r"|if|in|into|is|its?|not|now|of|on|only|or|over|per|since|so|step|than|that|the|then|there|this|to"
    r"|under|until|was|were|when|where|which|while|will|with",
    re.IGNORECASE,
)
"""Words that want another one after them: alone they end nothing."""


def sentence(text: str) -> str:
    """Return ``text`` with a full stop."""
    text = text.rstrip()
    return text if not text or text.endswith((".", "!", "?")) else f"{text}."


def first_sentence(text: str) -> str:
    """Return the first sentence of ``text``, in one line, with a full stop."""
    text = " ".join(text.split())
    # A full stop within a name, as in torch.finfo, ends no sentence, nor does one after "e.g".
    end = _END_OF_SENTENCE.search(text)
    return sentence(text if end is None else text[: end.end()])


def fitting(text: str, max_characters: int) -> str:
    """Return ``text`` in one line without the last sentences that there is no room for.

    One sentence alone that is too long is cut (``cut``).
    """
    text = sentence(" ".join(text.split()))
    ends = [match.end() for match in _END_OF_SENTENCE.finditer(text)]
    fit = max((end for end in (*ends, len(text)) if end <= max_characters), default=0)
    return text[:fit] if fit else cut(first_sentence(text), max_characters)


def cut(text: str, max_characters: int) -> str:
    """Return ``text``, or as much of it as there is room for, up to where it can be left.

    That is the end of a clause in the second half and outside of brackets, else a word. It is
    never a number, of which nobody could say whether it is whole, nor a word that leads up to one.
    """
    if len(text) <= max_characters:
        return text
    room = max_characters - len("...")
    ends = (match.start() for match in _END_OF_CLAUSE.finditer(text, room // 2, room + 1))
    clauses = [text[:end] for end in ends if text.count("(", 0, end) <= text.count(")", 0, end)]
    for clause in reversed(clauses):
        if not _NUMBER.fullmatch(clause.rpartition(" ")[2]):
            return f"{clause}..."
    # With the character after it: a word that just fits is whole.
    words = clauses[0].split(" ") if clauses else text[: room + 1].split(" ")[:-1]
    while words and (_JOIN.fullmatch(words[-1]) or _NUMBER.fullmatch(words[-1])):
        words.pop()
    return f"{' '.join(words).rstrip(',;: ') or text[:room]}..."


def place(finding: Finding) -> str:
    """Say where it happened: what is called ``where`` in a finding, in words."""
    return in_words(finding.where)


def circumstances(incident: Incident) -> list[str]:
    """Say op, dtype, phase, source line and ranks, those that are known."""
    f = incident.finding
    parts = [
        f"op {f.op}" if f.op else "",
        f"in {f.dtype}" if f.dtype else "",
        _PHASES.get(f.phase, f.phase),
        f"at {f.source}" if f.source else "",
        ranks(incident.ranks),
    ]
    return [part for part in parts if part]


def ranks(numbers: Sequence[int], of: int = 0) -> str:
    """Write ranks, as in "rank 3 of 8" or "ranks 0-3, 7"; at most ``_MANY`` parts.

    Args:
        numbers: The ranks.
        of: How many the run has; not stated if these are all of them.
    """
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    if not spans:
        return ""
    parts = [str(a) if a == b else f"{a}-{b}" for a, b in spans]
    if len(parts) > _MANY:
        parts = [*parts[:_MANY], f"{len(parts) - _MANY} more"]
    num = len(set(numbers))
    some = f" of {of}" if num < of else ""
    return f"{'rank' if num == 1 else 'ranks'} {', '.join(parts)}{some}"


def parts(incident: Incident) -> list[tuple[str, str]]:
    """Return what is reported about a finding after its summary, each part with its name, in reading order."""
    f, sure = incident.finding, certainty(incident.finding.kind)
    return [
        ("What to change", sentence(f.advice)),
        ("Where", "; ".join([place(f), *circumstances(incident)])),
        ("Since", since(incident)),
        ("How sure", sentence(f"{sure.word}: {sure.why}")),
    ]


def steps(finding: Finding) -> str:
    """Write since when, until when, and how often."""
    first, last, count = finding.first_step, finding.last_step, finding.count
    if first == last and not finding.is_gone:
        return f"step {first}"
    return (
        f"step {first}; {finding.last_seen}, in {count} {'step' if count == 1 else 'steps'} so far"
    )


def since(incident: Incident) -> str:
    """Write since when, until when, and how often, and if what it explains was seen before it."""
    text = steps(incident.finding)
    if incident.first_step < incident.finding.first_step:
        text += f". What it explains was seen first, at step {incident.first_step}"
    return text


def path(finding: Finding) -> list[str]:
    """Return the way to the culprit through the model, from the outside in; empty for no module."""
    prefix, colon, name = finding.where.partition(":")
    if finding.where in OUTSIDE or (colon and prefix == "optimizer"):
        return []
    inside = name if colon and prefix in ("param", "buffer") else finding.where
    return list(filter(None, inside.split("."))) or ["the model"]


def explained(shown: Iterable[Incident]) -> list[str]:
    """Return the texts of findings whose terms a report explains at its end."""
    return [text for s in shown for text in (s.finding.summary, s.finding.advice)]


def evidence(
    finding: Finding, written: Callable[[str, float], str] = lambda _, value: figure(value)
) -> list[tuple[str, str]]:
    """Return the numbers that a finding rests on, each with its label.

    Args:
        finding: The finding.
        written: Writes a number, given its name.
    """
    op = finding.op.rstrip("_").removeprefix("_foreach_")
    labels = _LABELS | {"number": _NUMBERS.get(op, "number of the call")}
    row = row_of(finding.kind)
    if row is not None and row.family is KindFamily.UPDATE_PRECISION:
        labels["lost_share"] = "share of elements lost"
    return [
        (labels.get(name) or name.replace("_", " "), written(name, value))
        for name, value in finding.evidence.items()
        # A scale that is below 1 has no way to it.
        if (name, value) != ("steps_to_one", 0.0)
    ]


_NUMBERS = {"mul": "factor", "div": "divisor", "pow": "exponent"}
"""What the Python number is that an op was given."""

_LABELS = {
    "addend": "newest addend",
    "amax": "largest magnitude",
    "angle": "largest error of the angle, in rad",
    "attempted": "steps attempted",
    "dtype_max": "largest number of the dtype",
    "in_amax": "largest magnitude of the inputs",
    "in_amin": "smallest magnitude of the inputs",
    "infs": "infinite elements",
    "is_bound": "is an upper bound (0 or 1)",
    "largest_of_format": "largest number of the format",
    "looks": "checks in a row",
    "lost_share": "underflow share",
    "lost_share_here": "underflow share here",
    "max": "largest number of the dtype",
    "nans": "NaN elements",
    "nchw_share": "share of FLOPs on NCHW tensors",
    "nchw_share_here": "share of FLOPs on NCHW tensors here",
    "nonfinite": "non-finite elements",
    "numel": "elements",
    "other_births": "other origins in this step",
    "out_amax": "largest magnitude of the output",
    "records": "times the loss was larger than ever",
    "residue": "step modulo the period",
    "skips_first_step": "first skipped step",
    "steps_back": "steps until the scale has grown back",
    "steps_to_floor": "steps until 1/scale is infinite",
    "steps_to_one": "steps until the scale is 1",
    "tried_step": "step on which remedies were tried",
    "waiting_share": "share of time the host waits",
    "wall_share": "share of the time of a step",
}
"""Names of numbers that their words alone do not explain."""


def figure(value: object) -> str:
    """Write a number with all the digits that matter; powers of two as such, too."""
    if not isinstance(value, (int, float)):
        return ascii(value)  # written there by a callback of the user's
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "infinity" if value > 0 else "-infinity"
    if value == int(value) and abs(value) < 1e15:
        text = str(int(value))
    else:
        text = f"{value:.7g}"
    mantissa, exponent = math.frexp(value)
    # Those from 1/8 to 8 anybody knows.
    is_notable = mantissa == 0.5 and abs(exponent - 1) > 3
    return f"{text} (2^{exponent - 1})" if is_notable else text
