"""Findings about the op in which finite became non-finite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ampwatch.diagnosis.book import FindingBook
from ampwatch.diagnosis.causes import LASTING
from ampwatch.diagnosis.evidence.births import BadInput, OpTrace, Origin, Values
from ampwatch.diagnosis.forward.culprit_ops import RECURS, CulpritOps
from ampwatch.diagnosis.kinds.registry import row_of
from ampwatch.diagnosis.steps.steps import StepVerdict
from ampwatch.numerics.units.ops import Phase
from ampwatch.wire.records import Finding, Severity, SkipClass
from tests.workshop.births import BIG, MASK, NAN, TINY, backward, born, outside, traced
from tests.workshop.simulation import Simulation

if TYPE_CHECKING:
    from ampwatch.diagnosis.evidence.births import Birth

OVER = {"spread_to": {"block", "head", "loss"}, "in_backward": True}
SKIP = StepVerdict(SkipClass.UNPROVOKED, 1024.0)
FINE = StepVerdict(SkipClass.NONE, 1024.0, applied=True)


class Desk:
    """A book, what it told, and who names ops."""

    def __init__(self) -> None:
        self.notified: list[tuple[str, Severity, bool]] = []
        self.book = FindingBook(self._notify)
        self.culprits = CulpritOps(self.book)

    def _notify(self, finding: Finding, *, new: bool) -> None:
        self.notified.append((finding.kind, finding.severity, new))

    def overflow(self, *, step: int, birth: Birth | None = None, **more: Any) -> None:
        self.culprits.observe_trace(
            traced(birth or born(**OVER), step=step, loss_nonfinite=True, is_scaled=True, **more)
        )

    def made(self, kind: str, where: str = "optimizer:0", step: int = 0) -> Finding:
        finding = Finding(
            kind, Severity.WARNING, where, "what", "to do", first_step=step, last_step=step
        )
        self.book.make(finding)
        return finding

    @property
    def only(self) -> Finding:
        (finding,) = self.book.findings
        return finding


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_finite_trace_names_nothing(desk: Desk) -> None:
    """A finite trace explains nothing."""
    desk.culprits.observe_trace(OpTrace(7))

    assert desk.book.findings == []
    assert desk.culprits.explained_at == -1


def test_a_finding_has_the_place_the_op_and_the_numbers(desk: Desk) -> None:
    """Evidence: what was finite went in, what is not came out, and where the dtype ends."""
    desk.overflow(step=9)

    made = desk.only
    assert (made.kind, made.where, made.op, made.phase) == (
        "forward_overflow",
        "block",
        "mul",
        "forward",
    )
    assert (made.dtype, made.source, made.first_step) == ("float16", "train.py:3", 9)
    assert made.evidence == {
        "numel": 8.0,
        "in_amax": 300.0,
        "in_amin": 200.0,
        "out_amax": 60000.0,
        "dtype_max": 65504.0,
        "other_births": 0.0,
    }
    assert desk.culprits.explained_at == 9


SENTENCES = {
    "forward_overflow": (
        [born(**OVER)],
        ["mul in block overflowed float16, which ends at 65504", "magnitude 300", "became inf"],
    ),
    "silent_overflow": (
        [born(absorbed=["rsqrt", "rsqrt", "tanh"])],
        ["rsqrt made finite numbers of it that are wrong"],
    ),
    "masked_row_nan": (
        [
            born("masked_fill", origin=Origin.CONSTANT, out=MASK),
            born("_softmax", out=NAN, parents=frozenset({0}), module="", **OVER),
        ],
        ["_softmax in the root module", "0/0"],
    ),
    "forward_nan_underflow": (
        [outside("div", inputs=(BIG, TINY), needs_grad=True, spread_to={"loss"})],
        ["div outside of the model made inf in float16"],
    ),
    "nonfinite_input": (
        [born("addmm", origin=Origin.INPUT, out=NAN, **OVER)],
        ["NaN in a tensor that is read by addmm in block, at step 5"],
    ),
    "backward_nonfinite_any_scale": (
        [backward("div", out=Values("float32", 4, nans=True, posinf=True), inputs=(BIG, TINY))],
        [
            "The gradient of w is not finite at any loss scale",
            "in backward div in block made NaN and inf",
        ],
    ),
    "reduce_overflow": (
        [backward("add", is_hook=True, out=Values("float16", 4, neginf=True), inputs=(BIG,))],
        ["add outside of the model overflowed float16", "the result for w is -inf"],
    ),
}


@pytest.mark.parametrize("kind", SENTENCES)
def test_what_is_said_has_all_its_numbers(kind: str, desk: Desk) -> None:
    """Each kind in its own words, with advice."""
    births, parts = SENTENCES[kind]
    desk.culprits.observe_trace(traced(*births, bad={"w": {0}}, loss_nonfinite=True, scale=4.0))

    made = desk.only
    assert made.kind == kind
    for part in parts:
        assert part in made.summary
    assert "{" not in made.summary
    assert "nan" not in made.summary
    row = row_of(kind)
    assert row is not None
    assert made.advice == row.advice


def test_an_op_of_backward_whose_module_is_unknown_has_no_place(desk: Desk) -> None:
    """It is not outside of the model for that."""
    birth = backward("div", inputs=(BIG, TINY), module="")
    desk.culprits.observe_trace(traced(birth, bad={"w": {0}}))

    assert "in backward div made inf" in desk.only.summary


def test_what_a_scaler_skips_is_information_until_it_recurs(desk: Desk) -> None:
    """One bad batch costs one step; the third iteration says it is none, once."""
    severities = []
    for step in range(RECURS + 2):
        desk.overflow(step=step)
        severities.append(desk.only.severity)

    assert severities == [Severity.INFO] * (RECURS - 1) + [Severity.CRITICAL] * 3
    assert [t for t in desk.notified if t[2]] == [
        ("forward_overflow", Severity.INFO, True),
        ("forward_overflow", Severity.CRITICAL, True),
    ]


@pytest.mark.parametrize(
    ("birth", "more", "severity"),
    [
        (born(**OVER), {"is_scaled": False}, Severity.CRITICAL),
        (born(**OVER), {"has_trained": False}, Severity.CRITICAL),
        (born(absorbed=["rsqrt"]), {}, Severity.CRITICAL),
    ],
)
def test_what_no_scaler_skips_is_critical_at_once(
    birth: Birth, more: dict[str, bool], severity: Severity, desk: Desk
) -> None:
    """Without a scaler the weights take it in; what is silent nobody skips."""
    desk.culprits.observe_trace(traced(birth, **{"is_scaled": True, **more}))

    assert desk.only.severity is severity


def test_an_evaluation_is_a_warning(desk: Desk) -> None:
    """The weights are none the worse."""
    desk.culprits.observe_trace(traced(born(phase=Phase.EVAL, spread_to={"head"})))

    assert desk.only.severity is Severity.WARNING


def test_the_same_line_in_another_block_is_the_same_incident(desk: Desk) -> None:
    """Another line is another one."""
    desk.overflow(step=1)
    desk.overflow(step=2, birth=born(module="next", **OVER))
    assert desk.only.count == 2

    desk.overflow(step=3, birth=born(module="next", source="train.py:9", **OVER))
    assert [f.where for f in desk.book.findings] == ["block", "next"]


def test_without_a_line_two_modules_are_two_incidents(desk: Desk) -> None:
    """Nothing says that they are the same code."""
    desk.overflow(step=1, birth=born(source="", **OVER))
    desk.overflow(step=2, birth=born(source="", module="next", **OVER))

    assert [f.where for f in desk.book.findings] == ["block", "next"]


def test_what_goes_on_untraced_is_counted(desk: Desk) -> None:
    """For the op that was named last; before there is one, nothing happens."""
    desk.culprits.goes_on(0)
    desk.overflow(step=1)
    for step in (2, 3, 4):
        desk.culprits.goes_on(step)

    assert (desk.only.count, desk.only.last_step) == (4, 4)
    assert desk.only.severity is Severity.CRITICAL


def test_an_announced_overflow_belongs_to_its_announcement(desk: Desk) -> None:
    """The headroom of that module was low before."""
    announced = desk.made("headroom_low", "block")
    elsewhere = desk.made("headroom_low", "other")
    desk.overflow(step=5)

    made = desk.book.findings[-1]
    assert (made.root, made.caused_by) == (False, announced.key)
    assert elsewhere.caused_by == announced.key  # what rises together is one incident


def test_symptoms_before_and_after_are_attached_to_the_op(desk: Desk) -> None:
    """Consequences of non-finite gradients are those of the op that made them."""
    before = desk.made("scale_collapse", step=4)
    desk.overflow(step=5)
    after = desk.made("grad_underflow", step=6)
    apart = desk.made("wrong_order", step=6)

    op = desk.book.get("forward_overflow", "block")
    assert op is not None
    assert [before.caused_by, after.caused_by, apart.caused_by] == [op.key, op.key, ""]


def test_what_a_few_bad_batches_have_left_is_the_root_until_they_are_no_longer_few(
    desk: Desk,
) -> None:
    """A buffer that is bad stays bad; an op that fails for ever is why."""
    desk.overflow(step=5)
    left = desk.made("buffer_nonfinite", "norm.running_var", step=6)
    (op, _) = desk.book.findings
    assert (op.caused_by, left.root) == (left.key, True)

    for step in range(6, 5 + LASTING):
        desk.overflow(step=step)

    assert op.count == LASTING
    assert (op.root, op.caused_by) == (True, "")
    assert (left.root, left.caused_by) == (False, op.key)


BAD = BadInput(step=3, nans=True, numel=64, source="train.py:12")


def _judge(desk: Desk, step: int, verdict: StepVerdict) -> None:
    simulation = Simulation()
    simulation.step = step
    desk.culprits.judge_input(simulation.iteration({0: verdict.skipped}), verdict)


def test_a_bad_input_is_named_when_its_iteration_has_failed(desk: Desk) -> None:
    """Not before, and not for another iteration."""
    desk.culprits.observe_input(BAD)
    _judge(desk, 2, SKIP)
    assert desk.book.findings == []

    _judge(desk, 3, SKIP)
    made = desk.only
    assert (made.kind, made.severity, made.where) == ("nonfinite_input", Severity.CRITICAL, "")
    assert (made.source, made.first_step, made.evidence) == ("train.py:12", 3, {"numel": 64.0})
    assert "NaN" in made.summary
    assert desk.culprits.explained_at == 3


def test_a_bad_input_that_does_no_harm_is_forgotten(desk: Desk) -> None:
    """The model knows how to live with it."""
    desk.culprits.observe_input(BAD)
    _judge(desk, 3, FINE)
    _judge(desk, 3, SKIP)

    assert desk.book.findings == []


def test_a_loss_that_is_not_finite_is_a_failure_without_a_scaler(desk: Desk) -> None:
    """Nothing was skipped, but nothing is right either."""
    desk.culprits.observe_input(BAD._replace(nans=False))
    _judge(desk, 3, StepVerdict(SkipClass.NONE, float("nan"), nonfinite_loss=True))

    assert "inf among the inputs" in desk.only.summary


def test_where_it_was_traced_the_trace_says_more(desk: Desk) -> None:
    """An op was named in the same iteration."""
    desk.culprits.observe_input(BAD)
    desk.overflow(step=3)
    _judge(desk, 3, SKIP)

    assert desk.only.kind == "forward_overflow"


def test_a_second_bad_batch_is_counted(desk: Desk) -> None:
    """One finding, however it was seen."""
    birth = born("addmm", origin=Origin.INPUT, out=NAN, **OVER)
    desk.culprits.observe_trace(traced(birth, step=1, loss_nonfinite=True))
    desk.culprits.observe_input(BAD)
    _judge(desk, 3, SKIP)
    desk.culprits.goes_on(4)

    assert (desk.only.kind, desk.only.count, desk.only.last_step) == ("nonfinite_input", 3, 4)
