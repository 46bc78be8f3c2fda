"""A kind of finding: one row with all that is known of it, beside the detector that makes it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from ampwatch.wire.records import Finding

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Unpack

    from ampwatch.wire.records import Severity, Tried

    Fits = Callable[[Finding, Finding], bool]


class KindFamily(Enum):
    """The families, in the order of the pages.

    Attributes:
        title: Heading in the index of pages.
        introduction: Sentence under it; empty without one.
        trouble: What is wrong, in the words of the README.
    """

    FORWARD_RANGE = (
        "Forward range",
        "Values in the forward pass that are too large for float16.",
        "Overflow in the forward pass",
    )
    FORWARD_SMALL_NUMBERS = (
        "Forward small numbers",
        "Values that are too small, or too close together, for the dtype.",
        "Underflow and rounding in the forward pass",
    )
    GRADIENT_RANGE = ("Gradient range", "", "Gradients outside the range of float16")
    SCALE_DYNAMICS = (
        "Scale dynamics",
        "What the history of the loss scale shows.",
        "Loss scale problems",
    )
    STEP_BOOKKEEPING = (
        "Step bookkeeping",
        "Optimizer, scheduler and ranks that took different numbers of steps.",
        "Optimizer, scheduler and ranks out of step",
    )
    API_MISUSE = (
        "API misuse",
        "Calls in the wrong order or in the wrong place.",
        "Calls in the wrong order",
    )
    AUTOCAST_STATE = ("Autocast state", "", "Autocast not active where expected")
    POISONED_STATE = (
        "Poisoned state",
        "Weights and buffers, which outlive a step.",
        "Corrupted weights or buffers",
    )
    UPDATE_PRECISION = (
        "Update precision",
        "Small updates that are lost when they are added to large values.",
        "Updates and sums lost to rounding",
    )
    FP8 = ("FP8", "", "FP8")
    COMMUNICATION = ("Communication", "", "Sums over ranks")
    PERFORMANCE = (
        "Performance",
        "The results are right, but training could be faster or use less memory.",
        "Speed and memory",
    )
    TIME = (
        "Step time",
        "Where the time of a step goes, and which rank waits.",
        "Slow steps",
    )
    NOT_AMP = (
        "Not AMP",
        "Problems that mixed precision does not cause.",
        "Not caused by mixed precision",
    )

    def __init__(self, title: str, introduction: str, trouble: str) -> None:
        self.title = title
        self.introduction = introduction
        self.trouble = trouble


class Certainty(NamedTuple):
    """Degree to which a finding is sure, and why.

    Attributes:
        word: ``certain``, ``very likely``, ``likely``; ``not stated`` of an unknown kind.
        why: What it was concluded from, a sentence without its full stop.
    """

    word: str
    why: str


certain = partial(Certainty, "certain")
"""The certainty of what was observed itself."""

very_likely = partial(Certainty, "very likely")
"""The certainty of what a measurement and a rule leave little else to explain."""

likely = partial(Certainty, "likely")
"""The certainty of what rests on a trend or a sample."""


class When(Enum):
    """Moments at which the book compares a symptom with a finding that may explain it.

    Findings are reported when they are made, so what is known before that is reported with them,
    and what is concluded later is reported as a change. Each edge keeps its moment for that reason.
    """

    BEFORE = auto()
    """Before the symptom is reported. Wins over an op at fault."""

    AT_FAULT = auto()
    """Every moment at which an op at fault is known, within ``causes.INCIDENT_STEPS`` of it."""

    AT_FAULT_FOR_LONG = auto()
    """Every moment at which an op is at fault that was so in ``causes.LASTING`` iterations or from the first
    one on."""

    SINCE = auto()
    """The making of either of the two: the symptom began no earlier than the cause, less the
    iterations that it takes to prove the cause (``Kind.proven_late``)."""

    AFTER = auto()
    """Once the symptom has been reported, of the causes that are known by then."""

    BACKWARDS = auto()
    """Once the cause has been reported, of the symptoms that are known by then."""

    DURING = auto()
    """At the end of an iteration in which anything was found: the symptom was still seen when the
    cause had begun. Only causes that are proven by several iterations need it."""

    BY_DETECTOR = auto()
    """Moment chosen by the detector: it takes numbers that findings do not hold."""


def _fits_always(_symptom: Finding, _cause: Finding) -> bool:
    return True


class Cause(NamedTuple):
    """An edge from a symptom to a kind of finding that explains it.

    Attributes:
        kind: Slug of the cause; empty for whichever op is at fault.
        when: When the two are compared.
        fits: Whether a cause explains a symptom, beyond what ``when`` asks.
    """

    kind: str
    when: When
    fits: Fits = _fits_always


def _edges(when: When, *kinds: str, fits: Fits = _fits_always) -> tuple[Cause, ...]:
    return tuple(Cause(kind, when, fits) for kind in kinds)


before = partial(_edges, When.BEFORE)
"""Makes the edges to causes that are searched for before a symptom is reported."""

since = partial(_edges, When.SINCE)
"""Makes the edges to causes that explain each symptom that begins with them or later."""

after = partial(_edges, When.AFTER)
"""Makes the edges to causes that are searched for once a symptom was reported."""

backwards = partial(_edges, When.BACKWARDS)
"""Makes the edges to causes that explain, once made, what was found before them."""

during = partial(_edges, When.DURING)
"""Makes the edges to causes that explain what is still seen when they have begun."""

by_detector = partial(_edges, When.BY_DETECTOR)
"""Makes the edges that a detector attaches by itself."""

at_fault = partial(_edges, When.AT_FAULT, "")
"""Makes the edge to an op that makes non-finite values, where its steps fit the symptom."""

AT_FAULT = at_fault()
"""The edge to an op that makes non-finite values, as long as it does."""

AT_FAULT_FOR_LONG = (Cause("", When.AT_FAULT_FOR_LONG),)
"""The edge of what a few bad batches leave behind, and then are explained by, to an op that has
been at fault for too long to be a few bad batches."""


class Precedence(Enum):
    """Condition under which a new finding is the root of the op at fault, not the other way round."""

    NEVER = auto()
    ALWAYS = auto()

    IF_PASSING = auto()
    """Root if the op may be a few bad batches."""

    IF_OVER = auto()
    """Root as for ``IF_PASSING``, or if the op has recovered before the new finding began."""

    IF_BLOWN_UP = auto()
    """Root if numbers had blown up before any format was too small for them."""


class Details(TypedDict, total=False):
    """What a detector may add to a finding, by the names of the attributes of ``Finding``."""

    kind_advice: str
    tried: tuple[Tried, ...]
    op: str
    phase: str
    dtype: str
    source: str
    count: int
    evidence: dict[str, float]
    root: bool
    caused_by: str


@dataclass(frozen=True)
class Kind:
    """One kind of finding. It never changes once released: it is a label, a link and a page.

    Attributes:
        slug: The name that findings carry.
        number: Place in the order of release, which label values and series keep. A new kind takes
            the next one.
        family: Where the pages list it.
        meaning: What it is, as the index of pages says it in a line.
        severities: The severity it is made with unless its detector says otherwise, then the others
            that it may have.
        certainty: How sure it is.
        advice: What to change. One sentence or two, naming the API.
        explained_by: What makes a finding of this kind a symptom. Of several the first one counts.
        precedence: When it takes an op at fault for its own symptom.
        is_transient: One bad batch may be the reason. A scaler skips the step, so that nothing is
            lost if it comes once.
        is_aftermath: It stays when a few bad batches are over, or brings them about.
        is_state: It outlives steps, and is measured now and then: it holds, however long ago it was last
            seen, until its detector sees that it is gone (``FindingBook.end``).
        proven_late: Iterations that consequences may be found earlier, as it takes as long to prove.
    """

    slug: str
    number: int
    family: KindFamily
    meaning: str
    severities: tuple[Severity, ...]
    certainty: Certainty
    advice: str
    explained_by: tuple[Cause, ...] = ()
    precedence: Precedence = Precedence.NEVER
    is_transient: bool = False
    is_aftermath: bool = False
    is_state: bool = False
    proven_late: int = 0

    @property
    def severity(self) -> Severity:
        """The severity it is made with unless its detector says otherwise."""
        return self.severities[0]

    @property
    def page(self) -> str:
        """The page about it, by its place in the repository."""
        return f"docs/diagnoses/{self.slug}.md"

    def finding(
        self,
        where: str,
        step: int,
        *,
        summary: str,
        severity: Severity | None = None,
        first_step: int | None = None,
        **details: Unpack[Details],
    ) -> Finding:
        """Return a new finding of this kind.

        Args:
            where: Its place, as of ``Finding``.
            step: The iteration it was seen in, the last of several.
            summary: One sentence: what happened, where, since when.
            severity: How bad it is; ``severity`` of the row by default.
            first_step: The first iteration it was seen in; ``step`` by default.
            details: Other attributes of the finding; ``kind_advice`` is that of the row by default.
        """
        details.setdefault("kind_advice", self.advice)
        return Finding(
            kind=self.slug,
            severity=self.severity if severity is None else severity,
            where=where,
            summary=summary,
            first_step=step if first_step is None else first_step,
            last_step=step,
            **details,
        )

    def is_explained(self, when: When) -> bool:
        """Whether anything explains it that is compared at that moment."""
        return any(cause.when is when for cause in self.explained_by)
