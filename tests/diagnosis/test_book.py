"""Findings: made once, counted after that, linked to their root."""

from __future__ import annotations

import pytest

from ampwatch.diagnosis.book import REPORTED_AGAIN_NS, FindingBook
from ampwatch.diagnosis.causes import FOUND_LATE, INCIDENT_STEPS, LASTING
from ampwatch.diagnosis.gradients.kinds import GRAD_UNDERFLOW
from ampwatch.diagnosis.kinds.kind import Kind, When, since
from ampwatch.diagnosis.kinds.registry import ROWS
from ampwatch.diagnosis.news import News, Reason
from ampwatch.diagnosis.state.kinds import DIVERGENCE
from ampwatch.wire.records import Finding, Severity

# An exception has one step, and is of what was seen in that one: tests/diagnosis/calls.
OF_AN_OP = [r.slug for r in ROWS if r.is_explained(When.AT_FAULT) and r.slug != "api_error"]
AFTERMATHS = [row.slug for row in ROWS if row.is_aftermath]
AT_ANY_TIME = {
    (row.slug, cause.kind)
    for row in ROWS
    for cause in row.explained_by
    if cause.when is When.BEFORE
}
ALWAYS = since("a")[0].fits
MISTAKES = {
    row: [
        each.slug
        for each in ROWS
        if any(
            (c.kind, c.when, c.fits) == (row.slug, When.SINCE, ALWAYS) for c in each.explained_by
        )
        and (each.slug, row.slug) not in AT_ANY_TIME
    ]
    for row in ROWS
}


class Ear:
    """Hears what the book tells."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, int, bool]] = []
        self.news: list[tuple[str, Reason, Severity, Severity | None]] = []

    def __call__(self, news: News) -> None:
        key = news.finding.key
        self.heard.append((key, news.finding.count, news.reason is Reason.MADE))
        if news.reason is not Reason.CHANGED:
            self.news.append((key, news.reason, news.severity, news.escalated_from))


def _finding(kind: str, where: str = "optimizer:0") -> Finding:
    return Finding(kind, Severity.WARNING, where, "what happened", "what to change")


def test_a_finding_is_reported_each_time_at_first_and_then_every_few_steps() -> None:
    """Current while it is young; one that lasts for ever stays fresh and does not flood."""
    ear = Ear()
    book = FindingBook(ear)
    finding = _finding("a")
    book.make(finding)
    for step in range(1, 2000):
        book.now_ns = step * 10**9 // 10  # ten steps a second
        book.again(finding, step, loss_scale=float(step))

    later = [*range(288, 2001, 32)]
    assert [count for _, count, _ in ear.heard] == [*range(1, 257), *later]
    assert [new for _, _, new in ear.heard] == [True] + [False] * (255 + len(later))
    assert book.findings[0].evidence == {"loss_scale": 1999.0}
    assert book.findings[0].last_step == 1999


def test_a_finding_of_long_steps_is_reported_once_a_minute() -> None:
    """However few steps that are."""
    ear = Ear()
    book = FindingBook(ear)
    finding = _finding("a")
    book.make(finding)
    for step in range(1, 300):
        book.now_ns = step * 10 * 10**9  # ten seconds a step
        book.again(finding, step)

    assert [count for _, count, _ in ear.heard][256:] == [262, 268, 274, 280, 286, 292, 298]


def test_numbers_and_sentence_are_of_one_moment_and_of_one_place() -> None:
    """What is seen elsewhere is counted; its numbers would stand beside another name."""
    book = FindingBook(Ear())
    for step, where in enumerate(("a", "a", "b")):
        book.report(
            DIVERGENCE,
            where,
            step,
            summary=f"at step {step}",
            severity=(CRITICAL, WARNING, INFO)[step],
            is_once=True,
            evidence={"share": step / 4},
        )

    (made,) = book.findings
    assert (made.summary, made.evidence) == ("at step 1", {"share": 0.25})
    assert (made.count, made.last_step, made.severity) == (3, 2, CRITICAL)


def test_what_was_counted_and_not_reported_is_reported_at_the_end() -> None:
    """The last word about a finding is its final count, once."""
    ear = Ear()
    book = FindingBook(ear)
    finding = _finding("a")
    book.make(finding)
    for step in range(1, 300):
        book.again(finding, step)
    book.report_changes()
    book.report_changes()

    assert ear.heard[-2:] == [("a@optimizer:0", 288, False), ("a@optimizer:0", 300, False)]


def test_an_iteration_in_which_two_parts_see_it_is_counted_once() -> None:
    """A finding says in how many iterations it was seen."""
    finding = _finding("a")
    finding.first_step = finding.last_step = 3
    book = FindingBook(Ear())
    book.make(finding)
    for step in (3, 4, 4, 5):
        book.again(finding, step)

    assert (finding.count, finding.last_step) == (3, 5)


def test_the_same_kind_at_another_place_is_another_finding() -> None:
    """Kind and place together are the identity."""
    book = FindingBook(Ear())
    one, other = (book.report(DIVERGENCE, where, 5, summary="") for where in ("loss", "step"))

    assert book.findings == [one, other]
    assert [book.get(DIVERGENCE.slug, where) for where in ("loss", "step")] == [one, other]
    assert book.get(DIVERGENCE.slug, "api") is None


def test_a_finding_is_made_from_its_row_and_then_brought_up_to_date() -> None:
    """Slug, severity and advice are those of the row; the sentence may say since when."""
    book = FindingBook(Ear())
    for step, share in ((7, 0.5), (8, 0.25)):
        made = book.report(
            DIVERGENCE,
            "loss",
            step,
            summary=lambda since: f"since step {since}",
            first_step=step - 2,
            dtype="float16",
            evidence={"share": share},
        )

    assert book.findings == [made]
    assert (made.kind, made.severity, made.advice) == (
        DIVERGENCE.slug,
        DIVERGENCE.severity,
        DIVERGENCE.advice,
    )
    assert (made.first_step, made.last_step, made.count) == (5, 8, 2)
    assert (made.summary, made.dtype, made.evidence) == ("since step 5", "float16", {"share": 0.25})


def test_a_symptom_is_attached_to_its_root_once() -> None:
    """The first explanation holds."""
    ear = Ear()
    book = FindingBook(ear)
    symptom, root, other = _finding("symptom"), _finding("root"), _finding("other")
    for finding in (symptom, root, other):
        book.make(finding)
    book.explain(symptom, root)
    book.explain(symptom, other)

    assert (symptom.root, symptom.caused_by) == (False, "root@optimizer:0")
    assert len(ear.heard) == 4


def test_what_is_attached_to_a_symptom_moves_with_it_to_the_root() -> None:
    """One level: each symptom names the root itself."""
    book = FindingBook(Ear())
    leaf, symptom, root = _finding("leaf"), _finding("symptom"), _finding("root")
    for finding in (leaf, symptom, root):
        book.make(finding)
    book.explain(leaf, symptom)
    book.explain(symptom, root)

    assert [f.caused_by for f in (leaf, symptom)] == [root.key, root.key]
    assert root.root


def test_two_findings_never_explain_one_another() -> None:
    """Then there would be no root."""
    book = FindingBook(Ear())
    one, other = _finding("a"), _finding("b")
    book.make(one)
    book.make(other)
    book.explain(other, one)
    book.explain(one, other)

    assert (one.root, other.root) == (True, False)
    assert other.caused_by == one.key


def test_a_kind_is_at_the_place_where_it_was_found_last() -> None:
    """Before that it is where it is seen now."""
    book = FindingBook(Ear())
    before = book.place_of(DIVERGENCE, "loss")
    for step, where in enumerate(("param:v", "param:w")):
        book.report(DIVERGENCE, where, step, summary="")

    assert (before, book.place_of(DIVERGENCE, "loss")) == ("loss", "param:w")


def _at(kind: str, step: int, where: str = "") -> Finding:
    finding = _finding(kind, where or kind)
    finding.first_step = finding.last_step = step
    return finding


def _entered(book: FindingBook, *findings: Finding) -> None:
    for finding in findings:
        book.make(finding)


@pytest.mark.parametrize("kind", OF_AN_OP)
@pytest.mark.parametrize("comes_first", [False, True])
def test_a_symptom_belongs_to_the_culprit_whichever_comes_first(
    kind: str, *, comes_first: bool
) -> None:
    """Of the same incident; what happened long before, or long after, is another one."""
    for apart, expected in ((1, False), (INCIDENT_STEPS, False), (INCIDENT_STEPS + 1, True)):
        book = FindingBook(Ear())
        culprit = _at("masked_row_nan", 200)
        symptom = _at(kind, 200 - apart if comes_first else 200 + apart)
        symptom.evidence = {"period": 1.0}  # each step, those of the culprit among them
        if comes_first:
            book.make(symptom)
        book.make(culprit)
        book.led_to_by(culprit)
        if not comes_first:
            book.make(symptom)

        assert symptom.root is expected
        assert symptom.caused_by == ("" if expected else culprit.key)


def test_what_is_no_symptom_stays_a_root_beside_a_culprit() -> None:
    """A mistake in the loop is not explained by an op."""
    book = FindingBook(Ear())
    culprit, other, later = _at("forward_overflow", 1), _at("wrong_order", 1), _at("not_amp", 2)
    _entered(book, culprit, other)
    book.led_to_by(culprit)
    book.make(later)

    assert (other.root, later.root) == (True, True)


def test_a_symptom_of_a_culprit_that_has_a_root_belongs_to_that_root() -> None:
    """One level."""
    book = FindingBook(Ear())
    root, culprit, symptom = (
        _at("headroom_low", 0),
        _at("forward_overflow", 3),
        _at("scale_collapse", 5),
    )
    _entered(book, root, culprit)
    book.explain(culprit, root)
    book.led_to_by(culprit)
    book.make(symptom)

    assert symptom.caused_by == root.key


@pytest.mark.parametrize("kind", AFTERMATHS)
def test_what_a_passing_culprit_has_left_behind_takes_over(kind: str) -> None:
    """With all that was attached to the culprit; a few bad batches are over, and it is not."""
    book = FindingBook(Ear())
    culprit, symptom, left = (
        _at("forward_overflow", 5),
        _at("scale_collapse", 6),
        _at(kind, 7),
    )
    book.make(culprit)
    book.led_to_by(culprit)
    _entered(book, symptom, left)

    assert left.root
    assert [culprit.caused_by, symptom.caused_by] == [left.key, left.key]


@pytest.mark.parametrize("kind", [kind for kind in AFTERMATHS if kind != DIVERGENCE.slug])
def test_what_a_lasting_culprit_leaves_behind_belongs_to_it(kind: str) -> None:
    """It was so from the first iteration on, or for so many of them."""
    for first_step, count in ((0, 1), (5, LASTING)):
        book = FindingBook(Ear())
        culprit, left = _at("forward_overflow", first_step), _at(kind, 30)
        culprit.count, culprit.last_step = count, 30
        book.make(culprit)
        book.led_to_by(culprit)
        book.make(left)

        assert left.caused_by == culprit.key
        assert culprit.root


@pytest.mark.parametrize("kind", ["forward_overflow", "masked_row_nan"])
def test_a_divergence_explains_whatever_op_breaks(kind: str) -> None:
    """However long that lasts."""
    book = FindingBook(Ear())
    culprit, blown_up = _at(kind, 5), _at(DIVERGENCE.slug, 7)
    culprit.count, culprit.last_step = 2 * LASTING, 7
    book.make(culprit)
    book.led_to_by(culprit)
    book.make(blown_up)

    assert (blown_up.root, culprit.caused_by) == (True, blown_up.key)


@pytest.mark.parametrize("is_over", [False, True])
def test_a_scale_that_is_stuck_after_a_long_burst_is_the_root(*, is_over: bool) -> None:
    """While the burst goes on, the op is."""
    book = FindingBook(Ear())
    culprit, stuck = _at("forward_overflow", 5), _at("scale_stuck_low", 60)
    culprit.count, culprit.last_step = 2 * LASTING, 40 if is_over else 60
    book.make(culprit)
    book.led_to_by(culprit)
    before = book.fault_behind(stuck)
    book.make(stuck)

    assert (culprit.root, stuck.root) == (not is_over, is_over)
    # Its first sentence is made before it is, and names the op as later ones do.
    assert before is book.fault_behind(stuck) is (culprit if is_over else None)


def test_no_op_is_behind_a_finding_before_one_was_at_fault() -> None:
    """Neither one that is to be made, nor one that was."""
    book, stuck = FindingBook(Ear()), _at("scale_stuck_low", 60)
    before = book.fault_behind(stuck)
    book.make(stuck)

    assert before is book.fault_behind(stuck) is None


@pytest.mark.parametrize("root_first", [False, True])
@pytest.mark.parametrize("row", [row for row in ROWS if MISTAKES[row]], ids=lambda row: row.slug)
def test_what_was_done_wrong_explains_its_consequences(row: Kind, *, root_first: bool) -> None:
    """Symptoms from then on, or from a little earlier where the cause takes as long to prove."""
    kind, late = row.slug, row.proven_late
    for consequence in MISTAKES[row]:
        for step, expected in ((100 - late, False), (100 - late - 1, True)):
            book = FindingBook(Ear())
            pair = _at(kind, 100), _at(consequence, step)
            root, finding = pair
            _entered(book, *(pair if root_first else pair[::-1]))

            assert root.root
            assert finding.root is expected
            assert finding.caused_by == ("" if expected else root.key)


def test_a_consequence_of_a_mistake_is_not_promoted_over_it() -> None:
    """However long it lasts, the mistake is why."""
    book = FindingBook(Ear())
    root, symptom = _at("unscaled_step", 0), _at("forward_overflow", 1)
    _entered(book, root, symptom)
    book.promote(symptom)

    assert (root.root, symptom.root) == (True, False)


def test_a_culprit_that_is_no_bad_batch_neither_takes_nor_gives() -> None:
    """A mask that is wrong is wrong; what stays behind beside it is on its own."""
    book = FindingBook(Ear())
    culprit, left = _at("masked_row_nan", 5), _at("buffer_nonfinite", 7)
    book.make(culprit)
    book.led_to_by(culprit)
    book.make(left)

    assert (culprit.root, left.root) == (True, True)


def test_a_culprit_that_is_found_late_belongs_to_what_it_has_left_behind() -> None:
    """It is looked for because of that; what was there long before has another reason."""
    for late, expected in ((FOUND_LATE, False), (FOUND_LATE + 1, True)):
        book = FindingBook(Ear())
        left, culprit = _at("buffer_nonfinite", 20), _at("forward_overflow", 20 + late)
        _entered(book, left, culprit)
        book.led_to_by(culprit)

        assert culprit.root is expected
        assert culprit.caused_by == ("" if expected else left.key)
        assert left.root


@pytest.mark.parametrize(("where", "largest"), [("loss", 1e30), ("gate", 400.0)])
def test_an_op_that_overflows_on_ordinary_numbers_has_broken_the_weights(
    where: str, largest: float
) -> None:
    """So has whatever overflows in the loss: also where the weights are seen to be gone a step later."""
    book = FindingBook(Ear())
    culprit, gone = _at("forward_overflow", 5, where), _at("param_nonfinite", 6)
    culprit.dtype, culprit.evidence = "float32", {"in_amax": largest}
    book.make(culprit)
    book.led_to_by(culprit)
    book.make(gone)

    assert (culprit.root, gone.caused_by) == (True, culprit.key)


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize(("step", "is_seen"), [(30, True), (33, False)])
def test_an_op_seen_in_the_steps_of_a_period_is_the_root(
    step: int, *, is_seen: bool, is_late: bool
) -> None:
    """A period is a pattern in what the op did; an op of another step is another matter."""
    book = FindingBook(Ear())
    culprit, period = _at("forward_overflow", step), _at("periodic_skip", 40 if not is_late else 30)
    period.evidence = {"period": 10.0}
    if is_late:
        book.make(period)
    book.make(culprit)
    book.led_to_by(culprit)
    if not is_late:
        book.make(period)

    assert (period.caused_by == culprit.key) is is_seen
    assert culprit.root is is_seen


@pytest.mark.parametrize(("ended", "expected"), [(59, True), (20, False)])
@pytest.mark.parametrize("kind", ["nonfinite_input", "backward_nonfinite_any_scale"])
def test_a_fault_that_was_seen_is_why_the_scale_is_low(
    kind: str, ended: int, *, expected: bool
) -> None:
    """If the scale came to rest when the fault was over."""
    book = FindingBook(Ear())
    fault, stuck = _at(kind, 10), _at("scale_stuck_low", 60)
    fault.last_step = ended
    _entered(book, fault, stuck)

    assert fault.root
    assert stuck.root is not expected


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("at", [5, 6])
def test_weights_that_are_gone_are_a_root_unless_the_op_or_its_format_has_broken_them(
    dtype: str, at: int
) -> None:
    """In bfloat16 and float32 the numbers had blown up: an overflow there is what comes last.

    Unless it came in the same step: forward is before the optimizer, so they were finite when the op ran.
    """
    book = FindingBook(Ear())
    culprit, gone = _at("forward_overflow", 5), _at("param_nonfinite", at)
    culprit.dtype = dtype
    book.make(culprit)
    book.led_to_by(culprit)
    book.make(gone)

    root, symptom = (culprit, gone) if at == 5 or dtype == "float16" else (gone, culprit)
    assert (root.root, symptom.root, symptom.caused_by) == (True, False, root.key)


def test_a_promoted_symptom_takes_its_roots_place() -> None:
    """The former root, and all that was attached to it, belong to it now; it is told again."""
    ear = Ear()
    book = FindingBook(ear)
    root, symptom, other = _at("a", 0), _at("b", 0), _at("c", 0)
    _entered(book, root, symptom, other)
    book.explain(symptom, root)
    book.explain(other, root)
    book.promote(symptom)

    assert (symptom.root, symptom.caused_by) == (True, "")
    assert [root.caused_by, other.caused_by] == [symptom.key, symptom.key]
    assert {key for key, _, new in ear.heard[5:] if not new} == {root.key, symptom.key, other.key}


WARNING, CRITICAL, INFO = Severity.WARNING, Severity.CRITICAL, Severity.INFO


@pytest.mark.parametrize("reported_by", ["report_change", "again", "report_escalations"])
def test_a_finding_that_has_become_worse_is_reported_as_that_once(reported_by: str) -> None:
    """Whoever made it so, and whether or not the detector tells."""
    ear = Ear()
    book = FindingBook(ear)
    finding = _at("a", 0, "w")
    book.make(finding)
    finding.severity = CRITICAL
    if reported_by == "report_change":
        book.report_change(finding)
    if reported_by == "again":
        book.again(finding, 1)
    for _ in range(3):
        book.report_escalations()
        book.report_change(finding)

    assert ear.news == [
        ("a@w", Reason.MADE, WARNING, None),
        ("a@w", Reason.WORSE, CRITICAL, WARNING),
    ]
    assert book.findings == [finding]


def test_a_root_is_as_bad_as_what_it_explains() -> None:
    """Whoever wants critical findings hears of the root, when the story becomes critical."""
    ear = Ear()
    book = FindingBook(ear)
    root, symptom = _at("root", 0, "r"), _at("symptom", 1, "s")
    _entered(book, root, symptom)
    book.explain(symptom, root)
    book.report_escalations()
    symptom.severity = CRITICAL
    book.report_escalations()
    book.report_escalations()

    assert ear.news[2:] == [
        ("root@r", Reason.WORSE, CRITICAL, WARNING),
        ("symptom@s", Reason.WORSE, CRITICAL, WARNING),
    ]


def test_what_goes_up_and_down_is_reported_again_after_a_minute_below() -> None:
    """A finding that hovers about a limit does not flood; one that comes back is news."""
    ear = Ear()
    book = FindingBook(ear)
    finding = _at("a", 0, "w")
    book.make(finding)
    for now_ns, severity in (
        (1, INFO),
        (2, WARNING),  # back at once
        (3, CRITICAL),  # worse than ever
        (4, INFO),
        (5, WARNING),
        (6, INFO),
        (4 + REPORTED_AGAIN_NS, INFO),
        (7 + REPORTED_AGAIN_NS, WARNING),
    ):
        book.now_ns, finding.severity = now_ns, severity
        book.report_escalations()

    assert ear.news[1:] == [
        ("a@w", Reason.WORSE, CRITICAL, WARNING),
        ("a@w", Reason.WORSE, WARNING, INFO),
    ]


@pytest.mark.parametrize("severity", [WARNING, CRITICAL])
def test_a_root_of_a_critical_story_that_is_none_is_reported_as_explained(
    severity: Severity,
) -> None:
    """Once, when all have had their say; of a mere warning nobody has to hear again."""
    ear = Ear()
    book = FindingBook(ear)
    first, nearer, root = _at("first", 0, "f"), _at("nearer", 1, "n"), _at("root", 1, "r")
    first.severity = severity
    _entered(book, first, nearer, root)
    book.report_escalations()
    book.explain(first, nearer)
    book.explain(nearer, root)
    for _ in range(2):
        book.report_escalations()

    explained = [key for key, reason, *_ in ear.news if reason is Reason.EXPLAINED]
    assert explained == (["first@f"] if severity is CRITICAL else [])
    assert first.caused_by == root.key


@pytest.mark.parametrize("slugs", sorted(AT_ANY_TIME))
def test_what_is_known_before_is_reported_with_a_finding(slugs: tuple[str, str]) -> None:
    """Nobody is told of a root that is none."""
    roots: list[bool] = []
    book = FindingBook(lambda news: roots.append(news.finding.root))
    symptom, cause = _at(slugs[0], 9), _at(slugs[1], 9)
    _entered(book, cause, symptom)

    assert roots == [True, False]
    assert symptom.caused_by == cause.key


@pytest.mark.parametrize("when", [When.AFTER, When.BACKWARDS])
def test_what_is_concluded_later_is_reported_as_a_change(when: When) -> None:
    """Whoever was told of a root hears that it is none."""
    edges = [
        (row.slug, cause.kind) for row in ROWS for cause in row.explained_by if cause.when is when
    ]
    assert edges
    for symptom_kind, cause_kind in edges:
        ear = Ear()
        book = FindingBook(ear)
        symptom, cause = _at(symptom_kind, 9, "optimizer:0"), _at(cause_kind, 9, "optimizer:0")
        cause.op = "unscale_"
        symptom.evidence = {"data_share": 1.0}
        pair = (cause, symptom) if when is When.AFTER else (symptom, cause)
        _entered(book, *pair)

        assert [new for _, _, new in ear.heard] == [True, True, False]
        assert symptom.caused_by == cause.key


@pytest.mark.parametrize(("seen_at", "expected"), [(99, ""), (100, "periodic_skip@periodic_skip")])
def test_what_is_still_seen_when_a_cause_has_begun_is_attached_to_it(
    seen_at: int, expected: str
) -> None:
    """At the end of the iteration in which anything was found, and not before."""
    book = FindingBook(Ear())
    symptom, cause = _at("scale_collapse", 40), _at("periodic_skip", 100)
    symptom.last_step = seen_at
    _entered(book, symptom, cause)
    assert symptom.root

    book.attach_symptoms()

    assert symptom.caused_by == expected


def test_a_cause_that_is_a_symptom_of_the_finding_itself_does_not_hide_the_next_one() -> None:
    """A period in the skips was taken for why a scaler is out of step; both belong to the blow-up."""
    book = FindingBook(Ear())
    period, desync, blown_up = (
        _at("periodic_skip", 100),
        _at("shared_scaler_desync", 100),
        _at(DIVERGENCE.slug, 100),
    )
    _entered(book, period, desync, blown_up)
    book.explain(desync, period)

    book.attach_symptoms()

    assert [f.caused_by for f in (period, desync)] == [blown_up.key, blown_up.key]


def test_a_finding_is_restated_as_it_stands_for_better_and_for_worse() -> None:
    """Another severity is reported at once, however often it was reported before."""
    ear = Ear()
    book = FindingBook(ear)
    made = _finding(GRAD_UNDERFLOW.slug, "param:w")
    made.evidence = {"lost_share": 0.5, "loss_scale": 1.0}
    book.make(made)

    def report(step: int, severity: Severity, summary: str, share: float) -> None:
        evidence = {"lost_share": share}
        book.report(
            GRAD_UNDERFLOW, "param:w", step, summary=summary, severity=severity, evidence=evidence
        )

    for step in range(1, 500):
        report(step, WARNING, f"at step {step}", 0.5)
    before = len(ear.heard)
    report(500, CRITICAL, "all is lost", 1.0)
    book.report_escalations()
    report(501, WARNING, "it was lost", 0.1)
    book.report_escalations()

    assert [reason for _, reason, _, _ in ear.news] == [Reason.MADE, Reason.WORSE]
    assert len(ear.heard) == before + 2
    assert (made.severity, made.summary) == (Severity.WARNING, "it was lost")
    assert (made.count, made.last_step) == (502, 501)
    assert made.evidence == {"lost_share": 0.1, "loss_scale": 1.0}
