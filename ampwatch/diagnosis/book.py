"""The findings of a run: each made once, counted after that, linked to its root."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ampwatch.records import Finding


TOLD_EACH_TIME = 256
"""Up to this count a finding is told each time: a scale that collapses from 65536 is gone
after 166 steps, and until then its numbers should be current."""


TOLD_AGAIN_NS = 60 * 10**9
"""After that a finding that lasts is told again so long after the last time. Unit: ns."""


SYMPTOMS = frozenset(
    {
        *("scale_collapse", "scale_below_one", "grad_underflow"),
        *("param_nonfinite", "range_too_wide", "fp16_without_scaler"),
    }
)
"""Kinds that an op that makes non-finite values explains, as long as it does."""

DIVERGENCE = "divergence"
"""Explains whatever stops being finite after it."""

AFTERMATHS = frozenset({"scale_stuck_low", "periodic_skip", "buffer_nonfinite", "divergence"})
"""Kinds that stay when a few bad batches are over, or that bring them about: they are the root."""

TRANSIENT = frozenset({"forward_overflow", "forward_nan_underflow"})
"""Kinds of which one bad batch may be the reason."""

BIRTHS = frozenset(
    {
        *("forward_overflow", "silent_overflow", "forward_nan_underflow", "masked_row_nan"),
        *("backward_nonfinite_any_scale", "nonfinite_input"),
    }
)
"""Kinds that name an op that non-finite values come out of."""

LEFT_BY_NONFINITE = frozenset({"param_nonfinite", "buffer_nonfinite", "clip_nonfinite_norm"})

CONSEQUENCES: dict[str, frozenset[str]] = {
    "clip_nonfinite_norm": frozenset({"param_nonfinite", "buffer_nonfinite"}),
    # A training whose steps are too large by the loss scale.
    "unscaled_step": frozenset(
        {
            *("param_nonfinite", "buffer_nonfinite", "headroom_low", "scale_collapse"),
            *("scale_below_one", "forward_overflow", "silent_overflow", "range_too_wide"),
            *("backward_nonfinite_any_scale", "grad_underflow"),
        }
    ),
    # Ops of backward in half precision whose forward was in float32.
    "backward_under_autocast": frozenset({"grad_underflow", "backward_nonfinite_any_scale"}),
    # The region goes on from step to step, and backward with it.
    "stale_autocast_cache": frozenset({"backward_under_autocast"}),
    # What is multiplied by such a scale, or divided by it, is not finite.
    "fp8_scale_nonfinite": BIRTHS | LEFT_BY_NONFINITE | SYMPTOMS,
    # A replica that takes the step takes the infinities of the one that does not.
    "rank_found_inf_mismatch": BIRTHS | LEFT_BY_NONFINITE,
}
"""What becomes of a training, by kind of what was done wrong, from that iteration on."""

PROVEN_LATE = {"fp8_scale_nonfinite": 2, "stale_autocast_cache": 2}
"""Iterations that consequences may be found earlier, by kinds that take as long to prove."""

LASTING = 16
"""Iterations from which it is not, and the op is the root of what it has left behind as well."""

FOUND_LATE = 4
"""Iterations that an op may be found at fault after what it has left behind: it is looked for then."""

INCIDENT_STEPS = 64
"""Iterations after which what has gone wrong says nothing about what goes wrong now."""


class Teller(Protocol):
    """Whoever wants to know of findings."""

    def __call__(self, finding: Finding, *, new: bool) -> None:
        """Take a finding that was made, or (``new=False``) has changed."""


class FindingBook:
    """Keeps the findings of one run.

    Args:
        tell: Told of a finding when it is made, and again when it has changed enough.

    Attributes:
        findings: In the order in which they were made; the objects are updated in place.
        now_ns: Unix time of the iteration that is being looked at. Unit: ns.
    """

    def __init__(self, tell: Teller) -> None:
        self.findings: list[Finding] = []
        self._tell = tell
        self._by_key: dict[str, Finding] = {}
        self._untold: dict[str, Finding] = {}
        self._told_ns: dict[str, int] = {}
        self.now_ns = 0
        self._culprit: Finding | None = None

    def get(self, kind: str, where: str) -> Finding | None:
        """Return the finding of a kind at a place, if it has been made."""
        return self._by_key.get(f"{kind}@{where}")

    def of_kind(self, kind: str) -> list[Finding]:
        """Return the findings of a kind."""
        return [f for f in self.findings if f.kind == kind]

    def root_of(self, finding: Finding) -> Finding:
        """Return the finding that explains ``finding``; itself if it is a root."""
        return self._by_key.get(finding.caused_by, finding)

    def make(self, finding: Finding) -> None:
        """Enter a new finding; a symptom of the culprit that is known is attached to it."""
        culprit = self._culprit
        takes_over = finding.kind in AFTERMATHS and finding.root
        if culprit is not None and finding.root and (finding.kind in SYMPTOMS or takes_over):
            root = self.root_of(culprit)
            diverges = DIVERGENCE in (finding.kind, root.kind)
            is_over = _is_passing(culprit) or _is_over(culprit, finding)
            takes_over = takes_over and (is_over or finding.kind == DIVERGENCE)
            blown_up = finding.kind == "param_nonfinite" and not _is_of_format(culprit)
            takes_over |= blown_up and not diverges
            recent = finding.first_step - root.last_step <= INCIDENT_STEPS
            if recent and not takes_over and (finding.kind in SYMPTOMS or _is_lasting(culprit)):
                finding.root, finding.caused_by = False, root.key
        for root in self.findings:
            if finding.root and _is_consequence(finding, root):
                finding.root, finding.caused_by = False, self.root_of(root).key
        self.findings.append(finding)
        self._by_key[finding.key] = finding
        self._tell(finding, new=True)
        if culprit is not None and finding.root and takes_over:
            self.explain(self.root_of(culprit), finding)
        for symptom in self.findings:
            if _is_consequence(symptom, finding):
                self.explain(symptom, self.root_of(finding))

    def announce(self, finding: Finding) -> None:
        """Tell a finding that has become worse as if it were new."""
        self._tell(finding, new=True)

    def count(self, finding: Finding, step: int) -> bool:
        """Count one more iteration; return whether it is time to tell it again.

        Every time at first, then once a minute: whoever watches sees that it lasts.
        """
        finding.count += 1
        finding.last_step = step
        self._untold[finding.key] = finding
        waited_ns = self.now_ns - self._told_ns.get(finding.key, 0)
        return finding.count <= TOLD_EACH_TIME or waited_ns >= TOLD_AGAIN_NS

    def again(self, kind: str, where: str, step: int, **evidence: float) -> bool:
        """Count one more iteration of a finding; return whether it had been made at all.

        Args:
            kind: Kind of the finding.
            where: Its place.
            step: The iteration.
            evidence: Numbers as they stand now.
        """
        finding = self.get(kind, where)
        if finding is None:
            return False
        finding.evidence.update(evidence)
        if self.count(finding, step):
            self.retell(finding)
        return True

    def again_anywhere(self, kind: str, step: int, **evidence: float) -> Finding | None:
        """Count one more iteration of a kind that is made once, and return it if it was.

        The newest counts, at the place where it was made. Arguments as of ``again``.
        """
        made = self.of_kind(kind)
        if not made:
            return None
        self.again(kind, made[-1].where, step, **evidence)
        return made[-1]

    def make_once(self, finding: Finding) -> None:
        """Enter a finding, or count its kind again if that has been made, wherever it was."""
        if self.again_anywhere(finding.kind, finding.last_step, **finding.evidence) is None:
            self.make(finding)

    def retell(self, finding: Finding) -> None:
        """Pass on a finding that has changed."""
        self._untold.pop(finding.key, None)
        self._told_ns[finding.key] = self.now_ns
        self._tell(finding, new=False)

    def retell_all(self) -> None:
        """Pass on every finding that has changed since it was last told."""
        for finding in list(self._untold.values()):
            self.retell(finding)

    def led_to_by(self, culprit: Finding) -> None:
        """Attach the symptoms there are, and those that come, to the op that is at fault."""
        self._culprit = culprit
        if culprit.root and _is_passing(culprit):
            for left in self.findings:
                is_left = left.kind in AFTERMATHS and left.root
                if is_left and 0 <= culprit.first_step - left.first_step <= FOUND_LATE:
                    self.explain(culprit, left)
        root = self.root_of(culprit)
        for finding in self.findings:
            recent = culprit.last_step - finding.last_step <= INCIDENT_STEPS
            if finding.kind in SYMPTOMS and finding.root and recent:
                self.explain(finding, root)

    def promote(self, symptom: Finding) -> None:
        """Make a symptom the root of what had been taken for its root."""
        former = self.root_of(symptom)
        if _is_consequence(symptom, former):
            return
        symptom.root, symptom.caused_by = True, ""
        self.explain(former, symptom)
        self.retell(symptom)

    def explain(self, symptom: Finding, root: Finding) -> None:
        """Attach a symptom, and what was attached to it, to the root that explains it."""
        if symptom.root and symptom is not root and root.caused_by != symptom.key:
            for finding in self.findings:
                if finding is symptom or finding.caused_by == symptom.key:
                    finding.root = False
                    finding.caused_by = root.key
                    self.retell(finding)


def _is_consequence(finding: Finding, root: Finding) -> bool:
    """Whether what was done wrong, ``root``, brings about what ``finding`` says."""
    since = root.first_step - PROVEN_LATE.get(root.kind, 0)
    return finding.kind in CONSEQUENCES.get(root.kind, ()) and finding.first_step >= since


def _is_passing(culprit: Finding) -> bool:
    """Whether a culprit may be a few bad batches: all was well before, and it has not lasted."""
    return culprit.kind in TRANSIENT and culprit.first_step > 0 and culprit.count < LASTING


def _is_over(culprit: Finding, left: Finding) -> bool:
    """Whether a burst, however long, has ended before the scale came to the rest it is stuck at."""
    return (
        left.kind == "scale_stuck_low"
        and culprit.kind in TRANSIENT
        and 0 < culprit.first_step <= culprit.last_step < left.first_step
    )


def _is_lasting(culprit: Finding) -> bool:
    return culprit.kind in TRANSIENT and not _is_passing(culprit)


def _is_of_format(culprit: Finding) -> bool:
    """Whether it is the range of the format that does not fit, and not the numbers that blew up."""
    return culprit.kind != "forward_overflow" or culprit.dtype == "float16"
