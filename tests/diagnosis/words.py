"""A reader of findings: each number in a sentence is known, and no word is refuted by what came since.

It knows the findings as they were reported and the iterations themselves, and nothing of how the
sentences are made. What it asks for:

* a number of a summary is the finding's evidence, its steps or its count, a setting of the scaler or
  a limit of a format, rounded as it is written; a step is one of its steps, a percentage a share;
* a number of advice is one too, or stands in what the kind advises always, and what an API is to be
  called with fits the scaler that is there;
* a sentence in the present tense is shown only while it is so, one in the past tense only after.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, ClassVar, NamedTuple

from ampwatch.diagnosis.calls.api_misuse import MAX_NAMES
from ampwatch.diagnosis.calls.kinds import API_ERROR
from ampwatch.diagnosis.calls.known_errors import KNOWN
from ampwatch.diagnosis.evidence.iteration import Iteration, ScalerSettings
from ampwatch.diagnosis.forward.kinds import KEEP_OFF_ZERO
from ampwatch.diagnosis.kinds.registry import row_of
from ampwatch.diagnosis.pipeline import Diagnosis
from ampwatch.numerics.formats import FORMATS
from ampwatch.wire.records import Finding

MIN_REACH, MAX_REACH, GAPS = 32, 1000, 10.0
"""Steps since a finding was seen last up to which it goes on: ten times its own mean gap between two
sightings, within these limits."""

NEAR = 2.0**-4
"""Ratio of a scale to the one before from which it has come back."""

_NUMBER = re.compile(
    r"(?<![\w.^\-])(?:(?P<power>2\^-?\d+)|(?P<number>-?\d+(?:\.\d+)?(?:e[+-]?\d+)?))"
    r"(?P<ordinal>(?:st|[nr]d|th)\b)?(?P<percent>%)?(?![\w^])"
)
_NAMES = re.compile(
    r"\b(?:\d+\.)+[A-Za-z_][\w.]*|\b[A-Za-z_][\w]*(?:\.\w+)*|'[^']*'|\"[^\"]*\"|`[^`]*`"
)
_IDIOMS = re.compile(
    r"\bmodule \d+(?:\.\d+)*|\b0/0\b|\b0 \* inf\b|\b1/scale\b|1/(?=\d)|compute capability \d\.\d|\bwith 8\.0\b"
    r"|growth_interval(?:=|\()\d+"  # held against the scaler's own
)
_STEP = re.compile(r"\b(?:in|of|at|up to|until|since|from|by|after|the|between)? ?steps? ?$")
_SINCE = re.compile(r"\b(?:since|from) step $")
_BETWEEN = re.compile(r"\bsteps \d+ (?:and|to) $")
_SCALE = re.compile(
    r"\b(?:scales?(?: of| at| is| was)?|stuck at|left at|back to|fell from|down from) $"
)
_SHARES = re.compile(r"share|rate|ratio|error|distance")

STYLE = {
    r"(?<![\w.])1 (?:steps|times|parameters|buffers|weights|layers|updates|elements|replicas|additions)\b": "one of many",
    r"(?<!\.)\.\.(?!\.)|\. \.|;\.|,\.": "two full stops",
    r"\b(?:param|buffer|optimizer):": "a place that is not in words",
    r"\w@\w": "a key that is not in words",
    r"  ": "two spaces",
    r"\bsince \w+ times\b": "times are no beginning",
    r"\bnan\b": "a number that is not known",
}

GOES_ON = re.compile(
    r"\bis collapsing\b|\bat this rate\b|\bgoes on\b|\bis stuck\b|\bthe present\b|\bnow\b"
)
RECOVERED = re.compile(r"\brecovered\b|\bcome back to (\S+)")
QUIET = re.compile(r"\bno step (?:has been |was )?skipped since\b")
PRESENT_SCALE = re.compile(
    r"(?:scale now|is stuck at|goes on with a loss scale of|the present) (?P<value>2\^-?\d+|[\d.]+(?:e[+-]?\d+)?)"
)


class Complaint(NamedTuple):
    """A sentence that does not hold.

    Attributes:
        kind: Kind of the finding.
        step: The iteration in which it was shown.
        why: What is wrong.
        text: The sentence.
    """

    kind: str
    step: int
    why: str
    text: str


class Known(NamedTuple):
    """What is known besides a finding.

    Attributes:
        scaler: Settings of the scaler, ``None`` without one.
        has_tensor_cores: Whether the machine may have any.
    """

    scaler: ScalerSettings | None = None
    has_tensor_cores: bool = False


def complaints_of(finding: Finding, known: Known) -> Iterator[str]:
    """Yield what is wrong with a finding by itself."""
    yield from _style(finding)
    for said, number in _numbers_in(finding.summary, finding):
        if not _is_known(said, number, finding, known):
            yield f"the summary says {said.text!r}, which is nowhere in the finding"
    usual = f"{_advice_of(finding.kind)} {KEEP_OFF_ZERO}"
    always = {n.text for n, _ in _numbers_in(usual, finding)}
    for said, number in _numbers_in(finding.advice, finding):
        if said.text not in always and not _is_known(said, number, finding, known):
            yield f"the advice says {said.text!r}, which is nowhere in the finding"
    yield from _contradicted_calls(finding, known)
    if not known.has_tensor_cores:
        for text in (finding.summary, finding.advice):
            if re.search(r"tensor cores?|A100|cuBLAS|TF32", text):
                yield "it speaks of tensor cores to a machine that has none"


class Said(NamedTuple):
    """A number as it stands in a sentence.

    Attributes:
        text: As it is written.
        before: What is written before it.
        after: What is written after it.
        is_percent: Whether a percent sign follows.
    """

    text: str
    before: str
    after: str
    is_percent: bool


def _numbers_in(text: str, finding: Finding) -> Iterator[tuple[Said, float]]:
    name = finding.where.partition(":")[2] or finding.where
    if name and not finding.where.startswith("optimizer:"):
        # A module of a Sequential is called 0; masked letter for letter, so that places stay.
        place = rf"(?<![\w.])((?:in|of|module|parameter|buffer) ){re.escape(name)}(?![\w.]*\w)"
        text = re.sub(place, lambda m: m[1] + "x" * len(name), text)
    yield from _plain_numbers(text)


def _plain_numbers(text: str) -> Iterator[tuple[Said, float]]:
    text = text.replace("2.0**", "2^")  # as Python writes it, in a call that is advised
    plain = _IDIOMS.sub(lambda m: "_" * len(m[0]), _NAMES.sub(_masked, text))
    for match in _NUMBER.finditer(plain):
        power, number = match["power"], match["number"]
        value = 2.0 ** int(power[2:]) if power else float(number)
        before, after = text[: match.start()], text[match.end() :]
        yield Said(power or number, before, after, bool(match["percent"])), value


def _masked(match: re.Match[str]) -> str:
    """Keep words, mask names that hold digits."""
    text = match[0]
    return "x" * len(text) if re.search(r"\d", text) else text


def _is_known(said: Said, number: float, finding: Finding, known: Known) -> bool:
    if said.before.endswith("optimizer "):
        return finding.where in (f"optimizer:{said.text}", "api") or finding.where.startswith(
            "param"
        )
    if _STEP.search(said.before) or _BETWEEN.search(said.before):
        return number in _steps_of(finding, _SINCE.search(said.before) is not None)
    return any(_reads_as(said.text, value) for value in _candidates(said, finding, known))


def _steps_of(finding: Finding, is_beginning: object) -> set[float]:
    """Return the steps that a sentence may name; of a beginning only those that are one."""
    ending = "first_step" if is_beginning else "step"
    steps = {v for k, v in finding.evidence.items() if k.endswith(ending)}
    return steps | ({float(finding.first_step)} if is_beginning else _seen_at(finding))


def _seen_at(finding: Finding) -> set[float]:
    return {float(finding.first_step), float(finding.last_step)}


def _candidates(said: Said, finding: Finding, known: Known) -> list[float]:
    """Return the numbers that a number may be, by what is written around it."""
    evidence = {k: float(v) for k, v in finding.evidence.items() if not k.endswith("step")}
    units = {" ms": 1e3, " MiB": 2.0**-20, " GiB": 2.0**-30}
    scales = [v for k, v in evidence.items() if "scale" in k or k == "overflows_at"]
    if said.is_percent:
        return [100.0 * v for k, v in evidence.items() if _SHARES.search(k)]
    if said.before.endswith("1 step in "):
        return [1.0 / v for k, v in evidence.items() if "rate" in k and v > 0.0]
    if scales and _SCALE.search(said.before):
        return scales
    for unit, factor in units.items():
        if said.after.startswith(unit):
            return [factor * v for v in evidence.values()]
    return [*evidence.values(), float(finding.count), *_constants(said, finding, known)]


def _constants(said: Said, finding: Finding, known: Known) -> Iterator[float]:
    yield from _limits(finding.dtype)
    yield from known.scaler or ()
    if said.after.startswith(" more"):
        yield from (v - MAX_NAMES for v in finding.evidence.values())
    if finding.kind == API_ERROR.slug:
        texts = " ".join(f"{each.meaning} {each.remedy}" for each in KNOWN)
        yield from (number for _, number in _plain_numbers(texts))


def _reads_as(text: str, value: float) -> bool:
    """Whether a number, rounded as it is written, is ``text``."""
    if text.startswith("2^"):
        return value == 2.0 ** int(text[2:])
    written = Decimal(text)
    exponent = written.as_tuple().exponent
    assert isinstance(exponent, int)
    digits = len(written.as_tuple().digits)
    if "e" not in text and exponent == 0 and digits == 6 and abs(value) >= 1e5:
        return f"{value:.6g}" == text or round(value) == int(text)
    return math.isfinite(value) and abs(value - float(text)) <= 0.5000001 * 10.0**exponent


def _limits(dtype: str) -> list[float]:
    """Return the numbers that a format is known by: its limits, and where it rounds away."""
    fmt = FORMATS.get(dtype) or FORMATS["float16"]
    mantissa = fmt.mantissa_bits
    apart = [2.0**mantissa, 2.0 ** (mantissa + 1), 2.0 ** (mantissa + 2)]
    return [fmt.max, float(f"{fmt.max:.6g}"), fmt.min_normal, fmt.flush_at, fmt.eps, *apart]


def _advice_of(kind: str) -> str:
    row = row_of(kind)
    return "" if row is None else row.advice


def _style(finding: Finding) -> Iterator[str]:
    for text in (finding.summary, finding.advice):
        for pattern, why in STYLE.items():
            if found := re.search(pattern, text):
                yield f"{why}: {found[0]!r}"
    if finding.summary.rstrip().endswith("."):
        yield "the summary ends with a full stop, and gets another one"
    if not finding.advice.endswith((".", "!")):
        yield "the advice does not end with a full stop"


def _contradicted_calls(finding: Finding, known: Known) -> Iterator[str]:
    scales = [v for k, v in finding.evidence.items() if "scale" in k and v > 0]
    for interval in re.findall(r"growth_interval(?:=|\()(\d+)", finding.advice):
        if known.scaler is not None and int(interval) >= known.scaler.growth_interval:
            yield f"it advises growth_interval={interval}, and it is {known.scaler.growth_interval}"
    knows_one = any("scale_before" in k or k == "scale_needed" for k in finding.evidence)
    if knows_one and re.search(r"update\(new_scale\)|init_scale=\.\.\.", finding.advice):
        yield "it advises a scale without saying which, and knows one"
    for called in re.findall(r"(?:scaler\.update\(|init_scale=)([\d.e+*-]+)\)", finding.advice):
        scale = called.replace("2.0**", "2^").removesuffix(".0")
        if scale == called:
            yield f"scaler.update takes floats, and it advises {called}"
        present = finding.evidence.get("loss_scale", 0.0)
        fits = scales and any(present < v and _reads_as(scale, v) for v in scales)
        if not fits and finding.kind != "scale_reset":
            yield f"it advises a scale of {scale}, which is none that is known to fit"


def reach_of(finding: Finding) -> float:
    """Return how many steps after it was seen last a finding still goes on."""
    if finding.count < 2:
        return MAX_REACH
    gap = (finding.last_step - finding.first_step) / (finding.count - 1)
    return min(MAX_REACH, max(MIN_REACH, GAPS * gap))


class Reader:
    """Reads what is shown of one training, step by step.

    Attributes:
        complaints: What does not hold, each sentence once.
        sentences: How many sentences were read.
    """

    def __init__(self, *, has_tensor_cores: bool = False) -> None:
        self.complaints: list[Complaint] = []
        self.sentences = 0
        self._known = Known(None, has_tensor_cores)
        self.shown: dict[str, Finding] = {}
        self._skipped_at: list[int] = []
        self._newest: Iteration | None = None
        self._seen: set[tuple[str, str]] = set()

    def attempt(self, work: Callable[[Any], None], read: Any) -> None:
        """Read, and keep what goes wrong with that as a complaint of its own."""
        try:
            work(read)
        except Exception as error:  # noqa: BLE001
            text = f"{type(error).__name__}: {error}"
            self.complaints.append(Complaint("reader", -1, "the reader failed", text))

    def begin(self, iteration: Iteration) -> None:
        """Take in an iteration that is about to be judged."""
        self._newest = iteration
        if iteration.scaler is not None:
            self._known = self._known._replace(scaler=iteration.scaler)
        if any(iteration.found_inf.values()):
            self._skipped_at.append(iteration.step)

    def hear(self, finding: Finding) -> None:
        """Take in a finding as it is reported, and read it."""
        self.shown[finding.key] = copy.deepcopy(finding)
        self.sentences += 2
        for why in complaints_of(finding, self._known):
            self._complain(finding, why)

    def end(self, iteration: Iteration) -> None:
        """Hold all that is shown against the iteration that was judged last."""
        for finding in self.shown.values():
            for why in self._refuted(finding, iteration):
                self._complain(finding, why)

    def _refuted(self, finding: Finding, newest: Iteration) -> Iterator[str]:
        summary, behind = finding.summary, newest.step - finding.last_step
        if GOES_ON.search(summary) and behind > reach_of(finding):
            yield "what it says goes on was not seen any more for long"
        skipped = self._skipped_at[-1] if self._skipped_at else -math.inf
        if finding.last_step < skipped and QUIET.search(summary):
            yield "it says that no step was skipped since, and one was"
        if "is collapsing" in summary and newest.step - skipped > reach_of(finding):
            yield "it is collapsing, and nothing is skipped"
        patience = max(MIN_REACH, reach_of(finding)) / 2
        has_forecast = "collapsing" in summary and "at this rate" in summary
        if has_forecast and newest.step - skipped > patience:
            yield "a forecast while nothing is skipped"
        now = newest.loss_scale
        present = PRESENT_SCALE.search(summary)
        if present and behind <= reach_of(finding) and not _reads_as(present["value"], now):
            yield f"it says that the scale is {present['value']}, and it is {now:.6g}"
        if RECOVERED.search(summary):
            before = finding.evidence.get("loss_scale_before", math.nan)
            floor = 1.0 if finding.kind == "scale_below_one" else NEAR * before
            if not finding.evidence.get("loss_scale", now) >= floor:
                yield "it has not recovered"

    def _complain(self, finding: Finding, why: str) -> None:
        step = self._newest.step if self._newest is not None else -1
        if (finding.summary + finding.advice, why) not in self._seen:
            self._seen.add((finding.summary + finding.advice, why))
            self.complaints.append(Complaint(finding.kind, step, why, finding.summary))


class ReadDiagnosis(Diagnosis):
    """A diagnosis whose every word is read.

    Attributes:
        readers: One for each diagnosis made since the list was cleared.
    """

    readers: ClassVar[list[Reader]] = []

    def __init__(self, *args: Any, notify: Any, known: Any, **options: Any) -> None:
        self.reader = Reader(has_tensor_cores=known.machine.device_type != "cpu")
        self.readers.append(self.reader)

        def hear(news: Any, **more: Any) -> None:
            # A detector that raises is switched off, and would say no more that could be read.
            self.reader.attempt(self.reader.hear, getattr(news, "finding", news))
            notify(news, **more)

        told: Any = hear
        super().__init__(*args, notify=told, known=known, **options)

    def deliver(self, *iterations: Iteration) -> None:
        """Take in iterations, and read what is shown after each."""
        for iteration in iterations:
            self.reader.begin(iteration)
            super().deliver(iteration)
            self.reader.attempt(self.reader.end, iteration)
