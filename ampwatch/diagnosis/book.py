"""The findings of a run: each made once, counted after that, linked to its root."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Protocol

from ampwatch.diagnosis.causes import (
    FOUND_LATE,
    INCIDENT_STEPS,
    causes_of,
    explains,
    is_aftermath,
    is_of_fault,
    is_passing,
    is_symptom_of_op,
    outranks,
)
from ampwatch.diagnosis.kinds.kind import When
from ampwatch.diagnosis.news import News, Reason, is_worse
from ampwatch.wire.records import GONE_STEP, Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Unpack

    from ampwatch.diagnosis.evidence.iteration import Iteration
    from ampwatch.diagnosis.kinds.kind import Details, Kind
    from ampwatch.wire.records import Finding

    Says = Callable[[int], str]
    """Makes a summary, given the iteration that the finding began in."""


REPORTED_EACH_TIME = 256
"""Up to this count a finding is reported each time: a scale that collapses from 65536 is gone
after 166 steps, and until then its numbers should be current."""

REPORTED_AGAIN_STEPS = 32
"""Steps after which a finding that lasts is reported again: whoever reads it beside the newest step
must not take for over what goes on. A record more in 32 steps, of which each makes two or more."""

REPORTED_AGAIN_NS = 60 * 10**9
"""Time after which it is reported again where steps take longer. Unit: ns."""


class Notify(Protocol):
    """Takes the news of a run, one call each time."""

    def __call__(self, news: News, /) -> None:
        """Take news of a finding that was made, or has changed."""


class _Reported:
    """A severity as it was reported last.

    One that goes up and down about a limit is reported when it first goes up, and not again
    until it has been down for ``REPORTED_AGAIN_NS``.
    """

    __slots__ = ("_fell_from", "_fell_ns", "severity")

    def __init__(self, severity: Severity) -> None:
        self.severity = severity
        self._fell_from = Severity.INFO
        self._fell_ns = 0

    def move(self, severity: Severity, now_ns: int) -> Severity | None:
        """Return the severity from which it has risen; ``None`` if it has not, or not for long."""
        before, self.severity = self.severity, severity
        if is_worse(before, severity):
            self._fell_from, self._fell_ns = before, now_ns
        if not is_worse(severity, before):
            return None
        is_back = not is_worse(severity, self._fell_from)
        return None if is_back and now_ns - self._fell_ns < REPORTED_AGAIN_NS else before


class _Entry:
    """A finding and what was reported of it: its severity, that of its incident, whether it is a root."""

    __slots__ = ("cause", "finding", "incident", "is_root", "own", "severity")

    def __init__(self, finding: Finding) -> None:
        self.finding = finding
        self.own = _Reported(finding.severity)
        self.incident = _Reported(finding.severity)
        self.is_root = finding.root
        # As they were when incidents were last gone through.
        self.severity: Severity | None = None
        self.cause = ""

    @property
    def has_moved(self) -> bool:
        """Whether its severity or its cause is another one since incidents were last gone through."""
        return self.finding.severity is not self.severity or self.finding.caused_by != self.cause


class FindingBook:
    """Keeps the findings of one run.

    Args:
        notify: Called with news of a finding when it is made, when its severity or that of its
            incident rises, and again when it has changed enough.

    Attributes:
        findings: In the order in which they were made; the objects are updated in place.
        now_ns: Unix time of the iteration that is being judged. Unit: ns.
    """

    def __init__(self, notify: Notify) -> None:
        self.findings: list[Finding] = []
        self._notify = notify
        self._by_key: dict[str, Finding] = {}
        self._entries: dict[str, _Entry] = {}
        self._unreported: dict[str, Finding] = {}
        self._reported_ns: dict[str, int] = {}
        self._reported_step: dict[str, int] = {}
        self.now_ns = 0
        self._culprit: Finding | None = None
        self._attached = 0

    def get(self, kind: str, where: str) -> Finding | None:
        """Return the finding of a kind at a place, if it has been made."""
        return self._by_key.get(f"{kind}@{where}")

    def of_kind(self, kind: str) -> list[Finding]:
        """Return the findings of a kind."""
        return [f for f in self.findings if f.kind == kind]

    def root_of(self, finding: Finding) -> Finding:
        """Return the finding that explains ``finding``; itself if it is a root."""
        return self._by_key.get(finding.caused_by, finding)

    def fault_behind(self, finding: Finding) -> Finding | None:
        """Return the op at fault that ``finding`` is the root of, or will be once it is made."""
        culprit = self._culprit
        if culprit is None:
            return None
        root = self.root_of(culprit)
        is_made = finding.key in self._by_key
        is_behind = root is finding if is_made else outranks(finding, culprit, root)
        return culprit if is_behind else None

    def place_of(self, kind: Kind, where: str) -> str:
        """Return the place where a kind was found last; ``where`` if it has not been made."""
        made = self.of_kind(kind.slug)
        return made[-1].where if made else where

    def report(
        self,
        kind: Kind,
        where: str,
        step: int,
        *,
        summary: str | Says,
        severity: Severity | None = None,
        first_step: int | None = None,
        is_once: bool = False,
        **details: Unpack[Details],
    ) -> Finding:
        """Make a finding, or count the one of this kind and place again as it stands now.

        Of one that is counted again the sentence and the numbers are brought up to date, and the
        severity if one is given; what else is given is that of a new one.

        Args:
            kind: Kind of the finding.
            where: Its place.
            step: The iteration.
            summary: The sentence, or what makes it of the iteration that the finding began in.
            severity: What the present evidence makes of it. Another one is reported at once.
            first_step: The iteration that a new one began in; ``step`` by default.
            is_once: The kind is made once, with a severity that stays. At another place it is only
                counted: its numbers would stand beside the name of the first.
            details: Other attributes of the finding, as of ``Kind.finding``.
        """
        known = self.of_kind(kind.slug)[-1:] if is_once else []
        made = known[0] if known else self.get(kind.slug, where)
        first_step = step if first_step is None else first_step
        if made is not None and made.where != where:
            self.again(made, step)
            return made
        if not isinstance(summary, str):
            summary = summary(first_step if made is None else made.first_step)
        if made is None:
            made = kind.finding(
                where, step, summary=summary, severity=severity, first_step=first_step, **details
            )
            self.make(made)
            return made
        if is_once or severity is None:
            severity = made.severity
        has_moved = made.severity is not severity
        made.severity, made.summary = severity, summary
        made.evidence.update(details.get("evidence", {}))
        if self.count(made, step) or has_moved:
            self.report_change(made)
        return made

    def make(self, finding: Finding) -> None:
        """Enter a new finding, and attach it, and what is known, to what explains it.

        It is reported between the two: what explains it by then is reported with it, what is
        concluded after that as a change.
        """
        takes_over = self._explain_before(finding)
        self.findings.append(finding)
        self._by_key[finding.key] = finding
        self._entries[finding.key] = _Entry(finding)
        self._pass_on(finding, Reason.MADE)
        if self._culprit is not None and takes_over:
            self.explain(self.root_of(self._culprit), finding)
        for symptom in self.findings:
            if explains(finding, symptom, When.SINCE):
                self.explain(symptom, self.root_of(finding))
        for symptom in self.findings:
            if explains(finding, symptom, When.BACKWARDS):
                self.explain(symptom, self.root_of(finding))
        for cause in causes_of(finding, self.findings, When.AFTER):
            self.explain(finding, self.root_of(cause))

    def _explain_before(self, finding: Finding) -> bool:
        """Attach a finding that nobody knows of yet; return whether it takes over from the culprit."""
        cause = next(causes_of(finding, self.findings, When.BEFORE), None)
        if finding.root and cause is not None:
            self._attach(finding, cause)
        takes_over = False
        if self._culprit is not None and finding.root:
            root = self.root_of(self._culprit)
            takes_over = outranks(finding, self._culprit, root)
            if not takes_over and is_symptom_of_op(finding, self._culprit, root):
                self._attach(finding, root)
        # Of several mistakes the one that was made first: the order of the book, not of the row.
        for known in self.findings:
            if finding.root and explains(known, finding, When.SINCE):
                self._attach(finding, known)
        return takes_over and finding.root

    def _attach(self, finding: Finding, cause: Finding) -> None:
        finding.root, finding.caused_by = False, self.root_of(cause).key

    def attach_symptoms(self) -> None:
        """Attach what is still seen to causes that take several iterations to prove.

        Called at the end of an iteration, when all detectors have had their say: until then a
        finding may be explained by what is nearer. Does nothing unless something was found since.
        """
        if len(self.findings) == self._attached:
            return
        self._attached = len(self.findings)
        # Of findings of one kind the first one stands for the incident.
        firsts = list({f.kind: f for f in reversed(self.findings)}.values())
        for symptom in self.findings:
            # All of them: the first one may be a symptom of this very finding.
            for cause in causes_of(symptom, firsts, When.DURING):
                self.explain(symptom, self.root_of(cause))

    def count(self, finding: Finding, step: int) -> bool:
        """Count an iteration, once; return whether it is time to report the finding again.

        Every time at first, then every ``REPORTED_AGAIN_STEPS``, or once a minute: whoever watches
        sees that it lasts.
        """
        num = int(step != finding.last_step)  # two parts may see it in one iteration
        is_due = self._is_due(finding, num, step)
        self._count(finding, num, step)
        return is_due

    def _is_due(self, finding: Finding, num: int, step: int) -> bool:
        """Whether it is time to report a finding again once it is counted ``num`` times more, last in ``step``."""
        key = finding.key
        return (
            finding.count + num <= REPORTED_EACH_TIME
            or step - self._reported_step.get(key, 0) >= REPORTED_AGAIN_STEPS
            or self.now_ns - self._reported_ns.get(key, 0) >= REPORTED_AGAIN_NS
        )

    def _count(self, finding: Finding, num: int, step: int) -> None:
        finding.count += num
        finding.last_step = step
        finding.evidence.pop(GONE_STEP, None)
        self._unreported[finding.key] = finding

    def again_each(self, finding: Finding, quiet: Sequence[Iteration], **evidence: float) -> None:
        """Count iterations as ``again`` does each: of one kind, in a row, none of them counted before.

        Their times rise: the newest says whether it is time to report the finding again.
        """
        num, newest = len(quiet), quiet[-1]
        self.now_ns = newest.time_ns
        if num == 1:
            self.again(finding, newest.step, **evidence)
        elif finding.count < REPORTED_EACH_TIME or self._is_due(finding, num, newest.step):
            # It is reported again after one of them.
            self.again_each(finding, quiet[: num // 2], **evidence)
            self.again_each(finding, quiet[num // 2 :], **evidence)
        else:
            finding.evidence.update(evidence)
            self._count(finding, num, newest.step)

    def again(self, finding: Finding, step: int, **evidence: float) -> None:
        """Count one more iteration of a finding, with some numbers as they stand now."""
        finding.evidence.update(evidence)
        if self.count(finding, step):
            self.report_change(finding)

    def end(self, finding: Finding, step: int) -> None:
        """Report that what a finding is about was seen to be gone, in iteration ``step``.

        It is over until it is counted again. Of a kind that is a state nothing else ends it.
        """
        finding.evidence[GONE_STEP] = float(step)
        self.report_change(finding)

    def report_change(self, finding: Finding) -> None:
        """Pass on a finding that has changed, as an escalation if its severity has risen."""
        self._unreported.pop(finding.key, None)
        self._reported_ns[finding.key] = self.now_ns
        self._reported_step[finding.key] = finding.last_step
        entry = self._entries.get(finding.key)
        risen_from = None
        if entry is not None and entry.own.severity is not finding.severity:
            risen_from = entry.own.move(finding.severity, self.now_ns)
            # Its incident has been reported with it, and is not to be again at the end of the iteration.
            entry.incident.move(self._severity_of_incident(finding), self.now_ns)
        reason = Reason.CHANGED if risen_from is None else Reason.WORSE
        self._pass_on(finding, reason, risen_from)

    def report_changes(self) -> None:
        """Pass on every finding that has changed since it was last reported."""
        self.report_escalations()
        for finding in list(self._unreported.values()):
            self.report_change(finding)

    def report_escalations(self) -> None:
        """Report each finding that has become worse, or is explained by another one since.

        Called at the end of an iteration, when all detectors have had their say. Severities are
        held against those that were reported last, so no detector can forget to tell.

        Cost: 0.3 us a finding, 5 us in an iteration in which one of them has moved.
        """
        if not any(entry.has_moved for entry in self._entries.values()):
            return
        worst = self._severities_of_incidents()
        for key, entry in tuple(self._entries.items()):
            finding = entry.finding
            entry.severity, entry.cause = finding.severity, finding.caused_by
            before, was_root = entry.incident.severity, entry.is_root
            risen_from = entry.own.move(finding.severity, self.now_ns)
            incident_risen_from = entry.incident.move(worst.get(key, finding.severity), self.now_ns)
            entry.is_root = finding.root
            if since := risen_from or incident_risen_from:
                self._pass_on(finding, Reason.WORSE, since)
            elif was_root and before is Severity.CRITICAL and not finding.root:
                self._pass_on(finding, Reason.EXPLAINED)
            elif is_worse(before, entry.incident.severity):
                self._pass_on(finding, Reason.CHANGED)

    def _severities_of_incidents(self) -> dict[str, Severity]:
        """Return the worst severity of each root and what it explains, by the root's key."""
        worst: dict[str, Severity] = defaultdict(lambda: Severity.INFO)
        for key, entry in self._entries.items():
            finding = entry.finding
            root = key if finding.root else finding.caused_by
            if is_worse(finding.severity, worst[root]):
                worst[root] = finding.severity
        return worst

    def _pass_on(self, finding: Finding, reason: Reason, since: Severity | None = None) -> None:
        severity, root = self._severity_of_incident(finding), self.root_of(finding)
        self._notify(News(finding, reason, severity, root, since))

    def _severity_of_incident(self, finding: Finding) -> Severity:
        entry = self._entries.get(finding.key)
        if not finding.root or entry is None:
            return finding.severity
        if finding.severity is entry.severity:
            return entry.incident.severity
        return self._severities_of_incidents()[finding.key]

    def led_to_by(self, culprit: Finding) -> None:
        """Attach the symptoms there are, and those that come, to the op that is at fault."""
        self._culprit = culprit
        if culprit.root and is_passing(culprit):
            for left in self.findings:
                is_left = is_aftermath(left) and left.root and not is_of_fault(left, culprit)
                if is_left and 0 <= culprit.first_step - left.first_step <= FOUND_LATE:
                    self.explain(culprit, left)
        root = self.root_of(culprit)
        for finding in self.findings:
            recent = culprit.last_step - finding.last_step <= INCIDENT_STEPS
            if finding.root and recent and is_of_fault(finding, culprit):
                self.explain(finding, root)

    def promote(self, symptom: Finding) -> None:
        """Make a symptom the root of what had been taken for its root."""
        former = self.root_of(symptom)
        if explains(former, symptom, When.SINCE):
            return
        symptom.root, symptom.caused_by = True, ""
        self.explain(former, symptom)
        self.report_change(symptom)

    def explain(self, symptom: Finding, root: Finding) -> None:
        """Attach a symptom, and what was attached to it, to the root that explains it."""
        if symptom.root and symptom is not root and root.caused_by != symptom.key:
            for finding in self.findings:
                if finding is symptom or finding.caused_by == symptom.key:
                    finding.root = False
                    finding.caused_by = root.key
                    self.report_change(finding)
