"""Findings about the op in which finite became non-finite."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ampwatch.diagnosis.book import FindingBook
from ampwatch.diagnosis.causes import LASTING
from ampwatch.diagnosis.detector import Shared
from ampwatch.diagnosis.evidence.origins import (
    Answer,
    BadInput,
    Fault,
    OpTrace,
    Origin,
    OriginKind,
    Values,
)
from ampwatch.diagnosis.forward.culprit_ops import DOUBT_STEPS, RECURS, CulpritOps
from ampwatch.diagnosis.forward.culprit_words import remedies_for
from ampwatch.diagnosis.forward.kinds import FORWARD_OVERFLOW, KEEP_OFF_ZERO, MASKED_ROW_NAN
from ampwatch.diagnosis.forward.origins import Diagnosed
from ampwatch.diagnosis.kinds.registry import row_of
from ampwatch.diagnosis.news import News, Reason
from ampwatch.diagnosis.steps.steps import StepVerdict
from ampwatch.numerics.units.ops import Phase
from ampwatch.wire.records import Finding, Measure, Remedy, Severity, SkipClass, Tried
from tests.workshop.origins import BIG, INF, MASK, NAN, TINY, backward, inside, outside, traced
from tests.workshop.simulation import Simulation

OVER = {"spread_to": {"block", "head", "loss"}, "in_backward": True}
SKIP = StepVerdict(SkipClass.UNPROVOKED, 1024.0)
FINE = StepVerdict(SkipClass.NONE, 1024.0, applied=True)


class Desk:
    """A book, what it told, and who names ops."""

    def __init__(self) -> None:
        self.notified: list[tuple[str, Severity, Reason]] = []
        self.book = FindingBook(self._notify)
        self.culprits = CulpritOps(Shared(self.book))

    def _notify(self, news: News) -> None:
        self.notified.append((news.finding.kind, news.finding.severity, news.reason))

    def overflow(self, *, step: int, origin: Origin | None = None, **more: Any) -> None:
        self.culprits.observe_trace(
            traced(origin or inside(**OVER), step=step, loss_nonfinite=True, is_scaled=True, **more)
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
        [inside(**OVER)],
        ["mul in block overflowed float16, which ends at 65504", "magnitude 300", "became inf"],
    ),
    "silent_overflow": (
        [inside(absorbed=["rsqrt", "rsqrt", "tanh"])],
        ["rsqrt turned it into finite values that are wrong"],
    ),
    "masked_row_nan": (
        [
            inside("masked_fill", kind=OriginKind.CONSTANT, out=MASK),
            inside("mm", out=MASK, is_unseen=True, **OVER),
            inside("_to_copy", out=MASK, **OVER),
            inside("_softmax", out=NAN, parents=frozenset({0, 1, 2}), module="", **OVER),
        ],
        [
            "_softmax in the root module",
            "0/0. _to_copy in block had made -inf of finite numbers (largest magnitude 300): float16 ends",
        ],
    ),
    "forward_nan_underflow": (
        [outside("div", inputs=(BIG, TINY), needs_grad=True, spread_to={"loss"})],
        ["div outside of the model made inf in float16"],
    ),
    "invalid_operation": (
        [outside("sqrt", out=Values("float32", 4, nans=True), needs_grad=True, spread_to={"loss"})],
        ["sqrt outside of the model made NaN in float32", "magnitude 300", "an invalid operation"],
    ),
    "nonfinite_input": (
        [inside("addmm", kind=OriginKind.INPUT, out=NAN, **OVER)],
        ["NaN in a tensor that is read by addmm in block, at step 5"],
    ),
    "backward_nonfinite_any_scale": (
        [backward("div", out=Values("float16", 4, nans=True, posinf=True), inputs=(BIG, TINY))],
        [
            "The gradient of parameter w is not finite at any loss scale",
            "in backward div in block made NaN and inf",
        ],
    ),
    "reduce_overflow": (
        [backward("add", is_hook=True, out=Values("float16", 4, neginf=True), inputs=(BIG,))],
        ["add outside of the model overflowed float16", "the result for parameter w is -inf"],
    ),
}


@pytest.mark.parametrize("kind", SENTENCES)
def test_what_is_said_has_all_its_numbers(kind: str, desk: Desk) -> None:
    """Each kind in its own words, with advice."""
    origins, parts = SENTENCES[kind]
    desk.culprits.observe_trace(traced(*origins, bad={"w": {0}}, loss_nonfinite=True, scale=4.0))

    made = desk.only
    assert made.kind == kind
    for part in parts:
        assert part in made.summary
    assert "{" not in made.summary
    assert "nan" not in made.summary
    row = row_of(kind)
    assert row is not None
    assert made.advice == row.advice


def _said(origin: Origin, desk: Desk, **more: Any) -> Finding:
    desk.culprits.observe_trace(traced(origin, loss_nonfinite=True, **more))
    return desk.only


def test_what_overflows_float32_is_not_to_be_kept_in_float32(desk: Desk) -> None:
    """No wider format is left, in float32 as in bfloat16."""
    for dtype in ("float32", "bfloat16"):
        desk = Desk()
        made = _said(inside("pow", out=Values(dtype, 8, posinf=True), number=2.0, **OVER), desk)
        assert f"overflowed {dtype}" in made.summary
        assert "float32" not in made.advice
        assert "bfloat16" not in made.advice
        assert "No wider format" in made.advice


def test_what_a_cast_overflows_has_had_a_wider_format(desk: Desk) -> None:
    """As float32's lowest number, which bfloat16 does not reach."""
    lowest = Values("float32", 8, amax=3.4e38, amin=0.0)
    cast = inside("_to_copy", out=Values("bfloat16", 8, neginf=True), inputs=(lowest,), **OVER)
    assert "the wider dtype that they had" in _said(cast, desk).advice


@pytest.mark.parametrize(
    ("exact", "is_advised"), [(7e4, True), (math.inf, False), (math.nan, False)]
)
def test_float32_is_advised_where_it_was_seen_to_help(
    desk: Desk, exact: float, *, is_advised: bool
) -> None:
    """0/0 is 0/0 in float64 as well; so is what could not be computed again, for all that is known."""
    answer = Answer(Fault.POINT, exact)
    forward = _said(inside("div", answer=answer, **OVER), desk)
    desk = Desk()
    origin = backward("div", answer=answer._replace(amax=1e12 if is_advised else exact))
    desk.culprits.observe_trace(traced(origin, bad={"w": {0}}, scale=4.0))

    assert forward.advice.startswith("Compute this in float32") is is_advised
    assert desk.only.advice.startswith("Compute what has this derivative in") is is_advised


def test_float32_that_was_tried_in_vain_is_not_advised(desk: Desk) -> None:
    """Neither first nor last; nor is it where it is tried after the finding was made."""
    origin = inside("div", inputs=(BIG, TINY), answer=Answer(Fault.POINT, 7e4), **OVER)
    made = _said(origin, desk)
    assert made.advice.startswith("Compute this in float32")

    _said(origin, desk, tried=[Tried(Measure.MODULE_IN_FLOAT32, "block", 0, cures=False)])

    assert made.kind_advice == KEEP_OFF_ZERO
    assert made.advice.startswith(
        "Tried on the batch of step 0: module block in float32 (its output"
    )


@pytest.mark.parametrize("is_on", [False, True])
def test_the_switch_of_autocast_is_named_where_it_is_on(desk: Desk, *, is_on: bool) -> None:
    """Turning it off for the op is the remedy; a model in half precision has reasons of its own."""
    made = _said(inside(has_autocast=is_on, **OVER), desk)

    assert ("Autocast is off there" in made.summary) is not is_on
    assert ("enabled=False" in made.advice) is is_on


def test_where_the_derivative_is_a_root_the_advice_has_a_remedy_for_inverse_cosines(
    desk: Desk,
) -> None:
    """PyTorch computes theirs by rsqrt, as it does those of other functions."""
    desk.culprits.observe_trace(
        traced(backward("rsqrt", answer=Answer(Fault.POINT, math.inf)), bad={"w": {0}}, scale=4.0)
    )

    assert "before acos" in desk.only.advice


def test_an_outlier_in_the_data_is_said_to_be_one(desk: Desk) -> None:
    """What overflows is what the model was called with."""
    made = _said(inside("_to_copy", reads_argument=True, **OVER), desk)

    assert "the model's own input" in made.summary
    assert "Check the data" in made.advice


@pytest.mark.parametrize(
    ("op", "number", "said"),
    [("mul", 1e6, "times 1e+06"), ("div_", 1e-7, "divided by 1e-07"), ("pow", 4.0, "power of 4")],
)
def test_a_number_that_the_program_has_written_is_said(op: str, number: float, said: str) -> None:
    """It is what makes a small input large."""
    assert said in _said(inside(op, number=number, **OVER), Desk()).summary


def test_a_number_that_is_a_dimension_is_not_said(desk: Desk) -> None:
    """The second argument of a softmax is no operand."""
    assert "-1" not in _said(inside("_softmax", number=-1.0, **OVER), desk).summary


def test_an_infinity_of_the_program_itself_is_named_by_the_op_that_writes_it(desk: Desk) -> None:
    """It has come out as the loss."""
    written = inside("masked_fill", kind=OriginKind.CONSTANT, out=INF, spread_to={"block", "loss"})
    made = _said(written, desk)

    assert (made.kind, made.op, made.where) == ("invalid_operation", "masked_fill", "block")
    assert "masked_fill in block writes inf" in made.summary


def test_what_backward_makes_of_an_infinity_of_forward_is_said_to_be_that(desk: Desk) -> None:
    """A mask that is read again in backward: 0 * inf."""
    mask = inside("masked_fill", kind=OriginKind.CONSTANT, out=MASK, absorbed=["exp"])
    made_of_it = backward("mul", out=NAN, parents=frozenset({0}))
    desk.culprits.observe_trace(traced(mask, made_of_it, bad={"w": {1}}, scale=4.0))

    assert desk.only.kind == "backward_nonfinite_any_scale"
    assert "an infinity that was there before" in desk.only.summary


def test_a_gradient_that_does_not_shrink_with_the_scale_is_named_at_last(desk: Desk) -> None:
    """Whatever the op is called; the words say what was seen."""
    for step in range(6):
        origin = backward("fused_thing", inputs=(BIG,))
        desk.culprits.observe_trace(
            traced(origin, bad={"w": {0}}, scale=1024.0 / 2**step, step=step)
        )

    assert (desk.only.kind, desk.only.first_step) == ("backward_nonfinite_any_scale", 3)
    assert "did not become smaller while the loss scale fell" in desk.only.summary


def test_summary_and_evidence_are_of_one_step(desk: Desk) -> None:
    """What comes later is counted, and changes no number that was said."""
    desk.overflow(step=1)
    before = dict(desk.only.evidence)
    desk.overflow(step=2, origin=inside(inputs=(BIG._replace(amax=999.0),), **OVER))

    assert desk.only.count == 2
    assert desk.only.evidence == before


def test_an_op_of_backward_whose_module_is_unknown_has_no_place(desk: Desk) -> None:
    """It is not outside of the model for that."""
    origin = backward("div", inputs=(BIG, TINY), module="")
    desk.culprits.observe_trace(traced(origin, bad={"w": {0}}))

    assert "in backward div made inf" in desk.only.summary


def test_what_a_scaler_skips_is_information_until_it_recurs(desk: Desk) -> None:
    """One bad batch costs one step; the third iteration says it is none, once."""
    severities = []
    for step in range(RECURS + 2):
        desk.overflow(step=step)
        severities.append(desk.only.severity)

    assert severities == [Severity.INFO] * (RECURS - 1) + [Severity.CRITICAL] * 3
    assert [t for t in desk.notified if t[2] is not Reason.CHANGED] == [
        ("forward_overflow", Severity.INFO, Reason.MADE),
        ("forward_overflow", Severity.CRITICAL, Reason.WORSE),
    ]


@pytest.mark.parametrize(
    ("origin", "more", "severity"),
    [
        (inside(**OVER), {"is_scaled": False}, Severity.CRITICAL),
        (inside(**OVER), {"has_trained": False}, Severity.CRITICAL),
        (inside(absorbed=["rsqrt"]), {}, Severity.CRITICAL),
    ],
)
def test_what_no_scaler_skips_is_critical_at_once(
    origin: Origin, more: dict[str, bool], severity: Severity, desk: Desk
) -> None:
    """Without a scaler the weights take it in; what is silent nobody skips."""
    desk.culprits.observe_trace(traced(origin, **{"is_scaled": True, **more}))

    assert desk.only.severity is severity


def test_an_evaluation_is_a_warning(desk: Desk) -> None:
    """The weights are none the worse."""
    desk.culprits.observe_trace(traced(inside(phase=Phase.EVAL, spread_to={"head"})))

    assert desk.only.severity is Severity.WARNING


def test_the_same_line_in_another_block_is_the_same_incident(desk: Desk) -> None:
    """Another line is another one."""
    desk.overflow(step=1)
    desk.overflow(step=2, origin=inside(module="next", **OVER))
    assert desk.only.count == 2

    desk.overflow(step=3, origin=inside(module="next", source="train.py:9", **OVER))
    assert [f.where for f in desk.book.findings] == ["block", "next"]


def test_without_a_line_two_modules_are_two_incidents(desk: Desk) -> None:
    """Nothing says that they are the same code."""
    desk.overflow(step=1, origin=inside(source="", **OVER))
    desk.overflow(step=2, origin=inside(source="", module="next", **OVER))

    assert [f.where for f in desk.book.findings] == ["block", "next"]


def test_what_goes_on_untraced_is_counted(desk: Desk) -> None:
    """For the op that was named last; before there is one, nothing happens."""
    desk.culprits.goes_on(0, 0)
    desk.overflow(step=1)
    for step in (2, 3, 4):
        desk.culprits.goes_on(step, 1)

    assert (desk.only.count, desk.only.last_step) == (4, 4)
    assert desk.only.severity is Severity.CRITICAL


def test_what_weights_that_are_broken_make_fail_is_not_counted(desk: Desk) -> None:
    """One batch has broken them: the data after it is fine. It is counted again once it is seen again."""
    target = outside(
        "mse_loss", kind=OriginKind.INPUT, out=NAN, spread_to={"loss"}, in_backward=True
    )
    weight = inside("mm", kind=OriginKind.PARAMETER, out=NAN, **OVER)
    desk.culprits.observe_trace(traced(target, step=3, loss_nonfinite=True))
    assert desk.only.summary.startswith("The data was not finite before the loss read it")
    moment = outside("mul_", phase=Phase.OPTIMIZER, is_stepping=True, out=NAN)
    desk.culprits.observe_trace(traced(weight, moment, step=4, loss_nonfinite=True))
    desk.culprits.goes_on(4, 3)
    assert (desk.only.count, desk.only.last_step) == (1, 3)

    desk.culprits.observe_trace(traced(target, weight, step=5, loss_nonfinite=True))
    desk.culprits.goes_on(6, 3)
    assert (desk.only.count, desk.only.last_step) == (3, 6)


def poisoned(step: int, *before: Origin) -> OpTrace:
    """An iteration that fails because of a buffer alone."""
    read = inside("mm", kind=OriginKind.BUFFER, out=NAN, **OVER)
    return traced(*before, read, step=step, loss_nonfinite=True)


def overflows(desk: Desk) -> tuple[int, int]:
    """The last step of the only overflow, and how often it was seen."""
    (made,) = desk.book.of_kind("forward_overflow")
    return made.last_step, made.count


@pytest.fixture
def doubtful(desk: Desk) -> Desk:
    """An op has overflowed at step 3 and a buffer is not finite since, nor is the loss of any step."""
    desk.overflow(step=3)
    desk.made("buffer_nonfinite", "buffer:codebook", step=3)
    assert not desk.culprits.is_doubted(3)
    desk.culprits.goes_on(4, 3)
    assert desk.culprits.is_doubted(4)
    return desk


@pytest.mark.parametrize(
    "before", [[], [inside("masked_fill", kind=OriginKind.CONSTANT, out=MASK)]]
)
def test_an_op_is_over_where_a_buffer_it_has_left_makes_steps_fail(
    before: list[Origin], doubtful: Desk
) -> None:
    """A trace shows it, until then nothing is counted; also in a model with a mask."""
    doubtful.culprits.observe_trace(poisoned(5, *before))
    doubtful.culprits.goes_on(6, 3)
    assert overflows(doubtful) == (3, 1)
    assert not doubtful.culprits.is_doubted(6)

    doubtful.overflow(step=7)
    doubtful.culprits.goes_on(8, 3)
    assert overflows(doubtful) == (8, 3)


@pytest.mark.parametrize("is_replay", [False, True])
def test_an_op_that_is_seen_again_beside_what_it_has_left_is_counted_on(
    doubtful: Desk, *, is_replay: bool
) -> None:
    """Statistics of a norm are poisoned in each step anew."""
    doubtful.overflow(step=5, is_replay=is_replay)
    doubtful.culprits.goes_on(6, 3)

    assert overflows(doubtful) == (6, 3)


def test_a_buffer_that_does_no_harm_raises_no_doubt(desk: Desk) -> None:
    """A norm in training does not read its statistics: between two bad batches all is well."""
    desk.overflow(step=3)
    desk.made("buffer_nonfinite", "buffer:running_mean", step=3)
    for step in (6, 9, 12):
        desk.culprits.goes_on(step, step)

    assert overflows(desk) == (12, 4)


@pytest.mark.parametrize(
    "trace",
    [OpTrace(5), traced(inside("max", kind=OriginKind.BUFFER, out=INF), step=5), poisoned(3)],
    ids=["healthy", "healthy with a sentinel", "of before"],
)
def test_what_shows_nothing_ends_no_doubt(trace: OpTrace, doubtful: Desk) -> None:
    """An iteration that has gone well, and one of before the doubt that arrives late."""
    doubtful.culprits.observe_trace(trace)

    assert doubtful.culprits.is_doubted(5)


def test_a_doubt_has_an_end(doubtful: Desk) -> None:
    """Where nothing can be traced, or nothing fails any more: then it is counted as before."""
    assert not doubtful.culprits.is_doubted(4 + DOUBT_STEPS)

    for step in range(5, 6 + DOUBT_STEPS):
        doubtful.culprits.goes_on(step, 3)
    assert overflows(doubtful) == (5 + DOUBT_STEPS, 3)


def test_an_announced_overflow_belongs_to_its_announcement(desk: Desk) -> None:
    """The headroom of that module was low before."""
    announced = desk.made("headroom_low", "block")
    elsewhere = desk.made("headroom_low", "other")
    desk.overflow(step=5)

    made = desk.book.findings[-1]
    assert (made.root, made.caused_by) == (False, announced.key)
    assert elsewhere.caused_by == announced.key  # what rises together is one incident


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
    desk.culprits.detect(simulation.iteration({0: verdict.skipped}), verdict)


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


def test_what_another_rank_has_sent_is_no_bad_data(desk: Desk) -> None:
    """Neither by the check of inputs nor by a replay, in which it is an input. That of another step is."""
    sent = outside("recv_", kind=OriginKind.SENT)
    given = inside("_to_copy", kind=OriginKind.INPUT)
    desk.culprits.observe_input(BAD)
    desk.culprits.observe_trace(traced(sent, bad={"a": {0}}, step=3))
    desk.culprits.observe_trace(traced(given, step=3, is_replay=True))
    _judge(desk, 3, SKIP)
    assert desk.book.findings == []

    desk.culprits.observe_input(BAD._replace(step=4))
    _judge(desk, 4, SKIP)
    assert desk.only.kind == "nonfinite_input"


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
    origin = inside("addmm", kind=OriginKind.INPUT, out=NAN, **OVER)
    desk.culprits.observe_trace(traced(origin, step=1, loss_nonfinite=True))
    desk.culprits.observe_input(BAD)
    _judge(desk, 3, SKIP)
    desk.culprits.goes_on(4, 4)

    assert (desk.only.kind, desk.only.count, desk.only.last_step) == ("nonfinite_input", 3, 4)


def found(
    *, kind: object = FORWARD_OVERFLOW, inside: bool = True, dtype: str = "float16"
) -> Diagnosed:
    origin = Origin(
        0,
        OriginKind.OP,
        "",
        "mul",
        "aten.mul.Tensor",
        "blocks.2",
        inside,
        Phase.FORWARD,
        Values(dtype, 8, posinf=True),
    )
    return Diagnosed(kind, origin, origin.place, "forward")  # type: ignore[arg-type]


def test_the_smallest_change_is_tried_first() -> None:
    """The module, then the residual stream, then the format of all."""
    assert remedies_for(found(), ["float16"]) == [
        Remedy(Measure.MODULE_IN_FLOAT32, "blocks.2"),
        Remedy(Measure.SUMS_IN_FLOAT32),
        Remedy(Measure.BFLOAT16),
    ]


def test_what_is_no_matter_of_the_dtype_has_no_remedy_to_try() -> None:
    """Nor has a training without autocast."""
    assert not remedies_for(found(kind=MASKED_ROW_NAN), ["float16"])
    assert not remedies_for(found(), [])


def test_bfloat16_is_no_remedy_for_bfloat16() -> None:
    """And outside of the model there is no module to run otherwise."""
    assert remedies_for(found(inside=False), ["bfloat16"]) == []
    assert Remedy(Measure.BFLOAT16) not in remedies_for(found(), ["bfloat16"])
