"""Findings: made once, counted after that, linked to their root."""

from __future__ import annotations

from ampwatch.diagnosis.book import FindingBook
from ampwatch.records import Finding, Severity


class Ear:
    """Hears what the book tells."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, int, bool]] = []

    def __call__(self, finding: Finding, *, new: bool) -> None:
        self.heard.append((finding.key, finding.count, new))


def _finding(kind: str, where: str = "optimizer:0") -> Finding:
    return Finding(kind, Severity.WARNING, where, "what happened", "what to change")


def test_a_finding_is_told_each_time_at_first_and_then_once_a_minute() -> None:
    """Current while it is young; one that lasts for ever stays fresh and does not flood."""
    ear = Ear()
    book = FindingBook(ear)
    book.make(_finding("a"))
    for step in range(1, 2000):
        book.now_ns = step * 10**9 // 10  # ten steps a second
        book.again("a", "optimizer:0", step, loss_scale=float(step))

    assert [count for _, count, _ in ear.heard] == [*range(1, 257), 856, 1456]
    assert [new for _, _, new in ear.heard] == [True] + [False] * 257
    assert book.findings[0].evidence == {"loss_scale": 1999.0}
    assert book.findings[0].last_step == 1999


def test_what_was_counted_and_not_told_is_told_at_the_end() -> None:
    """The last word about a finding is its final count, once."""
    ear = Ear()
    book = FindingBook(ear)
    book.make(_finding("a"))
    for step in range(1, 300):
        book.again("a", "optimizer:0", step)
    book.retell_all()
    book.retell_all()

    assert ear.heard[-2:] == [("a@optimizer:0", 256, False), ("a@optimizer:0", 300, False)]


def test_a_kind_that_is_made_once_is_counted_wherever_it_is_seen_again() -> None:
    """The place where it was first seen stays; its numbers are the newest."""
    book = FindingBook(Ear())
    for step, where in enumerate(("a", "b", "a")):
        finding = _finding("slow", where)
        finding.last_step, finding.evidence = step, {"share": step / 4}
        book.make_once(finding)

    (made,) = book.findings
    assert (made.where, made.count, made.last_step) == ("a", 3, 2)
    assert made.evidence == {"share": 0.5}


def test_the_same_kind_at_another_place_is_another_finding() -> None:
    """Kind and place together are the identity."""
    book = FindingBook(Ear())
    book.make(_finding("a", "optimizer:0"))

    assert book.again("a", "optimizer:1", 5) is False
    assert book.get("a", "optimizer:0") is book.findings[0]


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


def test_a_kind_that_is_made_once_is_counted_wherever_it_was_made() -> None:
    """And nothing is counted before."""
    book = FindingBook(Ear())
    nothing = book.again_anywhere("a", 1, share=0.5)
    made = _finding("a", "param:w")
    book.make(made)

    assert nothing is None
    assert book.again_anywhere("a", 7, share=0.5) is made
    assert (made.count, made.last_step, made.evidence) == (2, 7, {"share": 0.5})


def _at(kind: str, first_step: int, last_step: int = -1) -> Finding:
    return Finding(
        kind,
        Severity.WARNING,
        kind,
        "what happened",
        "what to change",
        first_step=first_step,
        last_step=max(first_step, last_step),
    )


def test_what_a_mistake_brings_about_is_attached_whichever_is_found_first() -> None:
    """A scale of FP8 that is not finite takes an iteration longer to prove than its infinities."""
    for found in (("forward_nan_underflow", "fp8_scale_nonfinite"), ("fp8_scale_nonfinite",)):
        book = FindingBook(Ear())
        for kind in (*found, "param_nonfinite"):
            book.make(_at(kind, 4))
        assert [f.kind for f in book.findings if f.root] == ["fp8_scale_nonfinite"]


def test_what_went_wrong_long_before_is_no_consequence() -> None:
    """An overflow of another week has a reason of its own."""
    book = FindingBook(Ear())
    book.make(_at("forward_overflow", 4))
    book.make(_at("fp8_scale_nonfinite", 400))
    assert all(f.root for f in book.findings)


def test_a_burst_that_is_over_is_not_why_the_scale_is_stuck_however_long_it_was() -> None:
    """Twenty bad batches, and then a scale that rests."""
    book = FindingBook(Ear())
    burst = _at("forward_overflow", 5, 24)
    burst.count = 20
    book.make(burst)
    book.led_to_by(burst)
    book.make(_at("scale_stuck_low", 25, 33))
    assert [f.kind for f in book.findings if f.root] == ["scale_stuck_low"]
