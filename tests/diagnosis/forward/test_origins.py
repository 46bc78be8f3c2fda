"""Which origin an incident begins with, and which are no failures at all."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ampwatch.diagnosis.evidence.origins import Answer, Fault, Origin, OriginKind, Values
from ampwatch.diagnosis.forward.faults import limit_of
from ampwatch.diagnosis.forward.origins import USELESS_SCALE, diagnose
from ampwatch.numerics.units.ops import Phase
from tests.workshop.origins import (
    BIG,
    INF,
    MASK,
    NAN,
    TINY,
    backward,
    inside,
    outside,
    traced,
)

OVER = {"spread_to": {"block", "head", "loss"}, "in_backward": True}
"""Fate of an infinity that nothing stops."""

FLOAT32_INF = Values("float32", 8, posinf=True)


def _kind(*origins: object, **more: object) -> str:
    found = diagnose(traced(*origins, **more))  # type: ignore[arg-type]
    return "" if found is None else found.kind.slug


def test_an_overflow_of_an_evaluation_is_one_of_an_evaluation() -> None:
    """The phase says so; also where nothing reads the output any more."""
    found = diagnose(traced(inside(phase=Phase.EVAL, **{**OVER, "in_backward": False})))
    unread = diagnose(traced(inside(phase=Phase.EVAL)))

    assert found is not None
    assert unread is not None
    assert (found.phase, unread.phase) == ("eval", "eval")


def test_a_target_that_is_computed_without_gradients_is_no_metric() -> None:
    """Backward meets what was made of it; a metric it does not."""
    target = outside("exp", phase=Phase.EVAL, spread_to={"loss"})
    assert diagnose(traced(target, loss_nonfinite=True)) is None

    target.in_backward = True
    found = diagnose(traced(target, loss_nonfinite=True))
    assert found is not None
    assert (found.kind.slug, found.where, found.phase) == ("forward_overflow", "loss", "forward")


LAST = {"loss_nonfinite": None, "has_trained": False}


@pytest.mark.parametrize("more", [{}, LAST])
@pytest.mark.parametrize("spread", [set(), {"loss"}])
def test_a_number_that_is_only_logged_is_no_failure(spread: set[str], more: dict[str, Any]) -> None:
    """As the PSNR of a perfect image, read after the step or after the last: no graph has it, and no model."""
    psnr = {"out": Values("float32", 1, neginf=True), "inputs": (TINY,), "spread_to": spread}
    assert diagnose(traced(outside("log10", **psnr), **more)) is None

    for used in ({"needs_grad": True}, {"joins_graph": True}, {"spread_to": {"block"}}):
        found = diagnose(traced(outside("log10", **(psnr | used)), **LAST))
        assert found is not None, used
        assert found.origin.op == "log10"


def test_what_no_graph_has_is_named_where_nothing_else_explains_the_failure() -> None:
    """A weight of the loss that was computed from data goes on as a Python number, which no op shows."""
    weight = outside("reciprocal", out=Values("float32", 1, posinf=True), inputs=(TINY,))
    found = diagnose(traced(weight, loss_nonfinite=True))
    assert found is not None
    assert found.origin.op == "reciprocal"

    culprit = inside("log", out=Values("float32", 1, neginf=True), inputs=(TINY,))
    culprit.spread_to = {"loss"}
    found = diagnose(traced(weight, culprit, loss_nonfinite=True))
    assert found is not None
    assert found.origin.op == "log"


@pytest.mark.parametrize("op", ["pow", "_foreach_pow"])
def test_a_power_of_a_positive_exponent_is_an_overflow(op: str) -> None:
    """A negative one divides."""
    assert _kind(inside(op, number=2.0, **OVER)) == "forward_overflow"


@pytest.mark.parametrize(
    ("op", "inputs", "number"),
    [
        ("log", (TINY,), math.nan),
        ("log_", (TINY,), math.nan),
        ("reciprocal", (TINY,), math.nan),
        ("rsqrt", (TINY,), math.nan),
        ("acos", (BIG,), math.nan),
        ("pow", (TINY,), -0.5),
        ("_foreach_pow", (TINY,), -0.5),
        ("div", (BIG, TINY), math.nan),
        ("div", (BIG,), 0.0),
        ("div", (BIG,), 1e-7),
    ],
)
def test_what_divides_by_next_to_nothing_is_a_small_number(
    op: str, inputs: tuple[Values, ...], number: float
) -> None:
    """Logarithms and roots as well. NaN is what all of these but a quotient make of a negative number alone."""
    assert _kind(inside(op, inputs=inputs, number=number, **OVER)) == "forward_nan_underflow"
    negative = _kind(inside(op, inputs=inputs, number=number, out=NAN, **OVER))
    assert negative == ("forward_nan_underflow" if op == "div" else "invalid_operation")


@pytest.mark.parametrize(("inputs", "number"), [((BIG, BIG), math.nan), ((BIG,), 0.05)])
def test_a_quotient_whose_divisor_is_no_small_number_has_overflowed(
    inputs: tuple[Values, ...], number: float
) -> None:
    """A temperature that the program has written down divides what is large already."""
    assert _kind(inside("div", inputs=inputs, number=number, **OVER)) == "forward_overflow"


POINT = Answer(Fault.POINT, math.inf)
INVALID = Answer(Fault.INVALID, math.nan)
FITS_FLOAT64 = Answer(Fault.OVERFLOW, 1e6)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (FITS_FLOAT64, "forward_overflow"),
        (POINT, "forward_nan_underflow"),
        (INVALID, "invalid_operation"),
    ],
)
@pytest.mark.parametrize("op", ["div", "some_op", "mul"])
def test_what_an_op_has_answered_decides_and_not_its_name(
    op: str, answer: Answer, kind: str
) -> None:
    """The same for an op that nobody has heard of."""
    assert _kind(inside(op, inputs=(BIG, TINY), answer=answer, **OVER)) == kind


def test_nan_of_numbers_that_cannot_overflow_is_an_invalid_operation() -> None:
    """On a device, where the op could not be computed again; large inputs leave that open."""
    small = Values("float32", 8, amax=3.0)
    large = Values("float32", 8, amax=1e30)
    nan = Values("float32", 8, nans=True)
    assert _kind(inside("some_op", out=nan, inputs=(small,), **OVER)) == "invalid_operation"
    assert _kind(inside("some_op", out=nan, inputs=(large,), **OVER)) == "forward_overflow"


def test_infinity_of_numbers_that_cannot_overflow_is_none_either() -> None:
    """In float32; nobody knows what an op of somebody else, or an exponential, does with them."""
    small = Values("float32", 8, amax=300.0)
    more = {"out": FLOAT32_INF, "inputs": (small,), **OVER}
    assert _kind(inside("_ctc_loss", **more)) == "invalid_operation"
    assert _kind(inside("_ctc_loss", overload="own.op.default", **more)) == "forward_overflow"
    assert _kind(inside("cumprod", **more)) == "forward_overflow"
    large = Values("float32", 8, amax=1e18)
    assert _kind(inside("sum", **{**more, "inputs": (large,)})) == "forward_overflow"
    # Some kernels add up in the format that they read, and return a wider one.
    half = Values("float16", 8, amax=300.0)
    assert _kind(inside("sum", **{**more, "inputs": (small, half)})) == "forward_overflow"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (POINT, "backward_nonfinite_any_scale"),
        (INVALID, "backward_nonfinite_any_scale"),
        (FITS_FLOAT64, ""),
        (Answer(Fault.POINT, 1e6), ""),
        (Answer(Fault.OVERFLOW, 1e12), "backward_nonfinite_any_scale"),
    ],
)
@pytest.mark.parametrize("op", ["div", "_softmax_backward_data", "mul"])
def test_in_backward_the_result_in_float64_says_whether_a_scale_cures_it(
    op: str, answer: Answer, expected: str
) -> None:
    """1e6 fits float16 at a sixteenth of the scale, 1e12 at none that is of use."""
    origin = backward(op, inputs=(BIG, TINY), answer=answer)
    assert _kind(origin, bad={"w": {0}}, scale=1.0) == expected


@pytest.mark.parametrize("kind", [OriginKind.CONSTANT, OriginKind.BUFFER])
def test_nan_that_backward_makes_of_a_given_infinity_is_a_failure(kind: OriginKind) -> None:
    """Forward had no use for it; backward multiplies it by zero."""
    given = inside("masked_fill", kind=kind, out=MASK, absorbed=["exp"], in_backward=True)
    made = backward("mul", out=NAN, parents=frozenset({0}))

    assert _kind(given, made, bad={"w": {1}}) == "backward_nonfinite_any_scale"
    assert _kind(given, made) == ""


def test_nan_of_a_gradient_that_has_overflowed_is_the_scalers_business() -> None:
    """Inf - inf of a scaled gradient goes away with the inf."""
    over = backward("mul", inputs=(BIG,))
    made = backward("sub", out=NAN, parents=frozenset({0}))
    assert _kind(over, made, bad={"w": {1}}, scale=1024.0) == ""


def test_an_infinity_that_backward_itself_writes_is_a_failure_where_it_arrives() -> None:
    """In a function of the user's; one that reaches no gradient is none."""
    given = backward("masked_fill", kind=OriginKind.CONSTANT, out=INF)
    assert _kind(given, bad={"w": {0}}) == "backward_nonfinite_any_scale"
    assert _kind(given) == ""


@pytest.mark.parametrize("out", [MASK, INF])
def test_a_number_that_forward_writes_is_a_failure_where_it_is_the_loss(out: Values) -> None:
    """While the loss is finite, or where an op has taken it out, it is meant."""
    given = {"kind": OriginKind.CONSTANT, "out": out._replace(numel=1)}
    reaches = {**given, "spread_to": {"block", "loss"}}
    assert _kind(inside("masked_fill", **reaches), loss_nonfinite=True) == "invalid_operation"
    assert _kind(inside("masked_fill", **reaches), loss_nonfinite=False) == ""
    absorbed = inside("masked_fill", absorbed=["_softmax"], **reaches)
    assert _kind(absorbed, loss_nonfinite=True) == ""


def test_a_tensor_that_holds_nothing_but_infinities_is_no_data() -> None:
    """It was made inside of forward, or is kept by the module; a batch has other numbers too."""
    more = {"kind": OriginKind.INPUT, "spread_to": {"block", "loss"}, "in_backward": True}
    plain = inside("where", out=Values("float32", 8, posinf=True, amax=0.0), **more)
    batch = inside("where", out=Values("float32", 8, posinf=True, amax=2.0), **more)
    assert _kind(plain, loss_nonfinite=True) == "invalid_operation"
    assert _kind(batch, loss_nonfinite=True) == "nonfinite_input"


def test_an_op_at_fault_comes_before_an_infinity_that_was_written_earlier() -> None:
    """The mask may be as it should be; the overflow is not."""
    mask = inside("masked_fill", kind=OriginKind.CONSTANT, out=MASK, spread_to={"block", "loss"})
    assert _kind(mask, inside("bmm", **OVER), loss_nonfinite=True) == "forward_overflow"


def test_weights_that_are_bad_already_leave_no_blame_for_a_mask() -> None:
    """The loss is not finite because of them."""
    mask = inside("masked_fill", kind=OriginKind.CONSTANT, out=MASK, spread_to={"block", "loss"})
    weight = inside("addmm", kind=OriginKind.PARAMETER, out=NAN, **OVER)
    assert _kind(mask, weight, loss_nonfinite=True) == ""


def test_nan_of_a_written_infinity_is_an_invalid_operation() -> None:
    """Inf - inf; of a mask of -inf it is the mask's own kind."""
    sentinel = inside("full", kind=OriginKind.CONSTANT, out=INF)
    made = inside("sub", out=NAN, parents=frozenset({0}), **OVER)
    assert _kind(sentinel, made, loss_nonfinite=True) == "invalid_operation"


REPLAY = {"is_replay": True, "has_trained": True}


@pytest.mark.parametrize(
    ("origin", "kind"),
    [
        (inside("bmm", spread_to={"block", ""}), "forward_overflow"),
        (inside("addmm", kind=OriginKind.INPUT, out=NAN, spread_to={"block"}), "nonfinite_input"),
        (inside("masked_fill", kind=OriginKind.INPUT, out=MASK, absorbed=["_softmax"]), ""),
        (inside("masked_fill", kind=OriginKind.CONSTANT, out=MASK, absorbed=["_softmax"]), ""),
        (
            inside("full", kind=OriginKind.CONSTANT, out=INF, spread_to={"block"}),
            "invalid_operation",
        ),
        (inside("addmm", kind=OriginKind.PARAMETER, out=NAN, spread_to={"block"}), ""),
    ],
)
def test_a_replay_is_judged_by_its_output(origin: Origin, kind: str) -> None:
    """There was no backward: what is not finite is a failure where the output is not."""
    assert _kind(origin, loss_nonfinite=True, **REPLAY) == kind


def test_a_replay_with_a_finite_output_blames_no_data() -> None:
    """The model knows how to live with what it was given."""
    given = inside("addmm", kind=OriginKind.INPUT, out=NAN, spread_to={"block"})
    assert _kind(given, loss_nonfinite=False, **REPLAY) == ""


def test_the_mean_of_nothing_is_no_overflow() -> None:
    """That of too much is one."""
    nothing = Values("float32", 1, nans=True)
    assert _kind(inside("mean", out=nothing, **OVER)) == "forward_nan_underflow"
    assert _kind(inside("mean", out=INF, **OVER)) == "forward_overflow"


def test_an_infinity_that_makes_a_wrong_number_is_silent() -> None:
    """The module shows nothing: everything after it is finite."""
    found = diagnose(traced(inside("pow", number=2.0, absorbed=["rsqrt"])))

    assert found is not None
    assert (found.kind.slug, found.where) == ("silent_overflow", "block")


@pytest.mark.parametrize(
    ("loss_nonfinite", "kind"), [(False, "silent_overflow"), (True, "forward_overflow")]
)
def test_an_infinity_of_a_loss_function_is_silent_if_the_loss_is_finite(
    kind: str,
    *,
    loss_nonfinite: bool,
) -> None:
    """``inter / (sum + eps)`` where the sum has overflowed, and what was added to it as well."""
    origin = outside("add", needs_grad=True, absorbed=["div"], spread_to={"loss"})

    found = diagnose(traced(origin, loss_nonfinite=loss_nonfinite))

    assert found is not None
    assert (found.kind.slug, found.where, found.phase) == (kind, "loss", "forward")
    if not loss_nonfinite:
        assert _kind(origin, loss_nonfinite=None) == "forward_overflow"
        assert _kind(origin, bad={"w": {0}}) == "forward_overflow"


@pytest.mark.parametrize("op", ["exp", "cosh"])
def test_an_exponential_that_ends_as_a_reciprocal_is_right(op: str) -> None:
    """``1 / (1 + exp(-x))`` is zero there."""
    assert _kind(inside(op, absorbed=["reciprocal"])) == ""
    assert _kind(inside("mul", absorbed=["reciprocal"])) == "silent_overflow"


@pytest.mark.parametrize("op", ["where", "topk", "minimum", "masked_fill_", "max"])
def test_what_a_chooser_has_left_out_was_not_meant(op: str) -> None:
    """Beside one op that computes with it, it was."""
    assert _kind(inside(absorbed=[op])) == ""
    assert _kind(inside(absorbed=[op, "tanh"])) == "silent_overflow"


@pytest.mark.parametrize("op", ["log", "rsqrt"])
def test_a_small_number_that_was_absorbed_was_meant(op: str) -> None:
    """``exp(log(0))`` is zero."""
    assert _kind(inside(op, inputs=(TINY,), absorbed=["exp"])) == ""


def test_a_chosen_branch_that_backward_meets_again_is_a_failure() -> None:
    """``torch.where`` multiplies the gradient of the other branch by zero: NaN."""
    forward = inside("div", inputs=(BIG, TINY), absorbed=["where"], in_backward=True)

    assert _kind(forward, bad={"w": {0}}) == "forward_nan_underflow"


@pytest.mark.parametrize("softmax", ["_softmax", "_log_softmax", "_safe_softmax"])
def test_a_row_that_is_masked_as_a_whole_is_named_at_the_softmax(softmax: str) -> None:
    """The mask is not blamed, wherever it comes from."""
    for kind in (OriginKind.CONSTANT, OriginKind.INPUT, OriginKind.BUFFER, OriginKind.OP):
        mask = inside("masked_fill", kind=kind, out=MASK, in_backward=True)
        child = inside(softmax, out=NAN, parents=frozenset({0}), module="attention", **OVER)
        found = diagnose(traced(mask, child, loss_nonfinite=True))

        assert found is not None
        assert (found.kind.slug, found.where, found.origin.op) == (
            "masked_row_nan",
            "attention",
            softmax,
        )


@pytest.mark.parametrize(
    ("op", "needs_grad", "kind"),
    [
        ("div", True, "forward_nan_underflow"),
        ("div", False, "forward_nan_underflow"),  # a replay computes no gradients
        ("log", True, "forward_nan_underflow"),
        ("log", False, "masked_row_nan"),  # the logarithm of a mask of zeros and ones
    ],
)
def test_scores_that_were_divided_by_zero_are_no_mask(
    op: str, kind: str, *, needs_grad: bool
) -> None:
    """Although all of them are -inf: the row is not masked, and the op is what to change."""
    score = inside(op, out=MASK, inputs=(BIG, TINY), needs_grad=needs_grad, **OVER)
    row = inside("_softmax", out=NAN, parents=frozenset({0}), **OVER)
    assert _kind(score, row, loss_nonfinite=True) == kind


def test_a_score_of_positive_infinity_is_no_masked_row() -> None:
    """``-log(-log(u))``: what was -inf at first is +inf where softmax reads it, and no mask."""
    noise = inside("log", out=MASK, inputs=(TINY,), spread_to={"block"}, in_backward=True)
    row = inside("_softmax", out=NAN, parents=frozenset({0}), reads_posinf=True, **OVER)
    assert _kind(noise, row, loss_nonfinite=True) == "forward_nan_underflow"


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, ""),
        ({"bad": {"w": {1}}}, "masked_row_nan"),
        ({"loss_nonfinite": True}, "masked_row_nan"),
    ],
)
def test_a_row_that_the_program_replaces_at_once_is_healthy(
    changes: dict[str, object], kind: str
) -> None:
    """Of padding: its gradient is NaN as well, which the mask stops."""
    mask = inside("masked_fill", kind=OriginKind.CONSTANT, out=MASK)
    row = inside(
        "_softmax", out=NAN, parents=frozenset({0}), absorbed=["nan_to_num"], in_backward=True
    )

    assert _kind(mask, row, **changes) == kind


def test_a_mask_that_softmax_turns_into_zeros_is_none_of_our_business() -> None:
    """Of the program, of the batch, of a buffer, or computed."""
    for kind in (OriginKind.CONSTANT, OriginKind.INPUT, OriginKind.BUFFER, OriginKind.OP):
        assert _kind(inside("masked_fill", kind=kind, out=MASK, absorbed=["_softmax"])) == ""


@pytest.mark.parametrize(("held", "kind"), [(NAN, ""), (MASK, "forward_overflow")])
def test_a_mask_that_was_cast_and_meets_weights_of_nan_is_no_failure(
    held: Values, kind: str
) -> None:
    """What is NaN then is so because of the weights alone."""
    weight = inside("mm", kind=OriginKind.PARAMETER, out=held, **OVER)
    trace = traced(weight, inside("_to_copy", out=MASK, **OVER), loss_nonfinite=True)

    found = diagnose(trace)
    assert (found.kind.slug if found else "") == kind
    assert trace.harmful == ([] if kind else [weight])


def test_a_mask_that_is_multiplied_by_zero_is_one() -> None:
    """NaN of nothing but masks, that backward meets."""
    mask = inside("full", kind=OriginKind.CONSTANT, out=MASK)
    child = inside("mul", out=NAN, parents=frozenset({0}), **OVER)

    assert _kind(mask, child) == "masked_row_nan"


@pytest.mark.parametrize("changes", [{}, {"is_refused": True, **LAST}])
@pytest.mark.parametrize(
    ("op", "more", "kind"),
    [
        ("bmm", {}, "nonfinite_input"),
        ("bmm", {"reads_graph": True}, "masked_row_nan"),
        ("mul", {}, "masked_row_nan"),
    ],
)
def test_infinite_data_that_a_product_reads_is_no_mask(
    op: str, more: dict[str, Any], kind: str, changes: dict[str, Any]
) -> None:
    """As a pose, in a loss that is refused as well; in a replay what is read may have been computed."""
    pose = outside("fill_", kind=OriginKind.CONSTANT, out=MASK._replace(numel=1), **OVER)
    pose.spread_to = {"loss"}
    child = outside(op, out=NAN, parents=frozenset({0}), needs_grad=True, **OVER, **more)
    assert _kind(pose, child, **changes) == kind
    assert _kind(pose, child, **changes, is_replay=True) != "nonfinite_input"


@pytest.mark.parametrize("out", [MASK, INF, NAN])
def test_a_number_that_the_program_writes_inside_of_the_model_is_meant(out: Values) -> None:
    """A sentinel that a minimum starts from, a fill."""
    number = out._replace(numel=1)
    assert _kind(inside("fill", kind=OriginKind.CONSTANT, out=number, absorbed=["minimum"])) == ""


def test_a_scale_of_the_loss_that_is_infinite_is_the_programs_own_word() -> None:
    """A constant beside the model that the model never sees, and that writes no NaN."""
    assert (
        _kind(outside("mul", kind=OriginKind.CONSTANT, out=INF, **{**OVER, "spread_to": set()}))
        == ""
    )


def test_a_bad_batch_is_named_as_what_the_model_was_given() -> None:
    """At the root, whatever reads it first."""
    batch = Values("float32", 64, nans=True)
    for origin in (
        inside("addmm", kind=OriginKind.INPUT, out=batch, **OVER),
        outside("mul", kind=OriginKind.INPUT, out=batch, **OVER),
    ):
        found = diagnose(traced(origin, loss_nonfinite=True))
        assert found is not None
        assert (found.kind.slug, found.where) == ("nonfinite_input", "")


def test_weights_that_a_model_gathers_are_no_batch() -> None:
    """FSDP does so in its forward, from shards that no name leads to."""
    shard = {"kind": OriginKind.INPUT, "out": Values("float32", 64, nans=True), **OVER}
    gathers = inside("allgather_", overload="c10d.allgather_.default", **shard)
    assert _kind(gathers, loss_nonfinite=True) == ""


def test_a_bad_target_is_named_at_the_loss() -> None:
    """The model never sees it."""
    target = Values("float32", 64, nans=True)
    origin = outside(
        "mse_loss", kind=OriginKind.INPUT, out=target, spread_to={"loss"}, in_backward=True
    )
    found = diagnose(traced(origin, loss_nonfinite=True))

    assert found is not None
    assert (found.kind.slug, found.where) == ("nonfinite_input", "loss")


def test_missing_values_that_do_no_harm_are_missing_values() -> None:
    """A batch whose NaN are filled in, or targets that a mask takes out."""
    batch = Values("float32", 64, nans=True)
    for absorbed in (["nan_to_num"], ["where"]):
        assert _kind(outside(kind=OriginKind.INPUT, out=batch, absorbed=absorbed)) == ""


def test_data_that_its_preparation_has_broken_is_a_bad_input() -> None:
    """In full precision, before the model, without a gradient."""
    origin = outside(
        "log", out=FLOAT32_INF, inputs=(TINY,), spread_to={"loss", "block"}, in_backward=True
    )
    found = diagnose(traced(origin, loss_nonfinite=True))

    assert found is not None
    assert (found.kind.slug, found.where) == ("nonfinite_input", "")


def test_the_same_in_half_precision_is_an_overflow() -> None:
    """There a dtype is at fault."""
    origin = outside("mul", spread_to={"loss", "block"}, in_backward=True)
    assert _kind(origin, loss_nonfinite=True) == "forward_overflow"


def test_weights_and_buffers_that_are_bad_already_began_earlier() -> None:
    """No op of this iteration made them so, and nothing here names one."""
    for kind in (OriginKind.PARAMETER, OriginKind.BUFFER, OriginKind.OTHER):
        assert _kind(inside("addmm", kind=kind, out=NAN, **OVER), loss_nonfinite=True) == ""


def test_an_auxiliary_output_that_nobody_reads_is_no_failure() -> None:
    """The rest of a norm over one element is no failure; its first output is."""
    assert _kind(inside("native_layer_norm", out_index=2), loss_nonfinite=True) == ""
    assert (
        _kind(inside("native_layer_norm", out_index=0), loss_nonfinite=True) == "forward_overflow"
    )


def test_what_nobody_reads_is_no_failure_while_the_loss_is_finite() -> None:
    """Whether it is known to be, or the training went on."""
    assert _kind(inside(), loss_nonfinite=False) == ""
    assert _kind(inside(), loss_nonfinite=None, has_trained=True) == ""
    assert _kind(inside(), loss_nonfinite=None, has_trained=False) == "forward_overflow"


def test_what_an_optimizer_makes_is_not_judged() -> None:
    """Second moments may overflow where the step is none the worse."""
    assert _kind(inside(is_stepping=True, phase=Phase.OPTIMIZER, **OVER)) == ""


@pytest.mark.parametrize("op", ["div", "rsqrt", "log", "pow"])
def test_a_backward_that_divides_by_zero_is_named_by_its_first_parameter(op: str) -> None:
    """No scale cures it; the forward pass is finite."""
    origin = backward(op, inputs=(BIG, TINY), number=-1.5 if op == "pow" else math.nan)
    found = diagnose(traced(origin, bad={"first.w": {0}, "last.w": {0}}, scale=1024.0))

    assert found is not None
    assert (found.kind.slug, found.where) == ("backward_nonfinite_any_scale", "param:first.w")
    assert found.phase == "backward"


def test_a_backward_that_reaches_no_gradient_does_no_harm() -> None:
    """Nothing is left of it at the end."""
    assert _kind(backward("div", inputs=(BIG, TINY))) == ""


@pytest.mark.parametrize("scale", [1.0, 1024.0, 2.0**24])
def test_gradients_that_a_smaller_scale_would_fit_are_the_scalers_business(scale: float) -> None:
    """It is at it."""
    assert _kind(backward("mul", inputs=(BIG,)), bad={"w": {0}}, scale=scale) == ""


def test_gradients_that_only_a_useless_scale_would_fit_are_not() -> None:
    """One factor of two decides: the limit over the largest input, times the scale."""
    limit, scale = 65504.0, 4.0
    for factor, expected in ((0.5, ""), (2.0, "backward_nonfinite_any_scale")):
        amax = limit * scale / USELESS_SCALE * factor
        given = Values("float32", 8, amax=amax, amin=1.0)
        assert _kind(backward("mul", inputs=(given,)), bad={"w": {0}}, scale=scale) == expected


def test_without_a_scale_nothing_is_said_of_one() -> None:
    """Training in bfloat16, where nobody multiplies the loss."""
    huge = Values("float32", 8, amax=3e38, amin=1.0)
    assert _kind(backward("mul", inputs=(huge,)), bad={"w": {0}}, scale=math.nan) == ""


def test_nan_that_backward_makes_of_infinities_is_not_named_beside_them() -> None:
    """The op that made the infinities is named."""
    forward = inside("exp", **OVER)
    child = backward("mul", out=NAN, parents=frozenset({0}))
    found = diagnose(traced(forward, child, bad={"w": {1}}))

    assert found is not None
    assert (found.kind.slug, found.origin.op, found.others) == ("forward_overflow", "exp", 0)


def test_forward_comes_before_backward_and_both_are_counted() -> None:
    """Even where backward came first, as with several micro-batches."""
    first = backward("div", inputs=(BIG, TINY))
    second = inside("mul", **OVER)
    found = diagnose(traced(first, second, bad={"w": {0}}))

    assert found is not None
    assert (found.kind.slug, found.origin.index, found.others) == ("forward_overflow", 1, 1)


def test_the_others_are_those_that_were_not_made_of_the_first() -> None:
    """Of four failures one is a child, one grows out of that, and two are on their own."""
    origins = [
        inside("bmm", **OVER),
        inside("_softmax", out=NAN, parents=frozenset({0}), **OVER),
        inside("mul", module="other", **OVER),
        inside("mul", module="third", **OVER),
    ]
    found = diagnose(traced(*origins))

    assert found is not None
    assert (found.origin.index, found.others) == (0, 2)


def _after_backward(op: str = "linalg_vector_norm", **more: object) -> object:
    return outside(op, **{"phase": Phase.OPTIMIZER, **more})


def test_a_norm_of_gradients_that_overflows_is_one_of_the_optimizer() -> None:
    """It is of all gradients together."""
    found = diagnose(traced(_after_backward(gradient="w")))  # type: ignore[arg-type]

    assert found is not None
    assert (found.kind.slug, found.where, found.phase) == (
        "reduce_overflow",
        "optimizer:0",
        "optimizer",
    )


def test_a_norm_of_gradients_that_no_backward_has_made_is_the_programs() -> None:
    """They belong to no step of an optimizer that was seen."""
    origin = outside("mul", phase=Phase.FORWARD, gradient="w")
    found = diagnose(traced(origin, has_trained=False))

    assert found is not None
    assert (found.kind.slug, found.where, found.phase) == ("reduce_overflow", "api", "optimizer")


@pytest.mark.parametrize(("bad", "kind"), [({"w": {1}}, "backward_nonfinite_any_scale"), ({}, "")])
def test_what_the_program_divides_gradients_by_is_named_where_it_breaks_one(
    bad: dict[str, set[int]], kind: str
) -> None:
    """Gradients of ``torch.func`` that are clipped by their norm, for one: 1 / 0, and 0 * inf."""
    zero = Values("float32", 8, amax=0.0, amin=0.0)
    factor = _after_backward("reciprocal", out=FLOAT32_INF, inputs=(zero,))
    product = _after_backward("mul", out=NAN, parents=frozenset({0}))
    found = diagnose(traced(factor, product, bad=bad))  # type: ignore[arg-type]

    assert ("" if found is None else found.kind.slug) == kind
    if found is not None:
        assert (found.where, found.phase, found.origin.op) == ("param:w", "optimizer", "reciprocal")


def test_a_norm_in_full_precision_is_not_a_reduction_in_half() -> None:
    """Infinities in float32 say that gradients are huge, which is another matter."""
    assert _kind(_after_backward(gradient="w", out=FLOAT32_INF)) == ""


def test_a_sum_of_gradients_in_a_hook_is_named_by_its_parameter() -> None:
    """A hook that compresses gradients, such as that of ``DistributedDataParallel``."""
    origin = backward("add", is_hook=True)
    found = diagnose(traced(origin, bad={"w": {0}}))

    assert found is not None
    assert (found.kind.slug, found.where) == ("reduce_overflow", "param:w")


@pytest.mark.parametrize(("op", "kind"), [("div", "backward_nonfinite_any_scale"), ("add_", "")])
def test_a_hook_that_divides_by_the_norm_of_zeros_is_named(op: str, kind: str) -> None:
    """And what is added up there is not: it may be left over from the step before."""
    zero = Values("float32", 8, amax=0.0, amin=0.0)
    birth = backward(op, is_hook=True, out=Values("float32", 8, nans=True), inputs=(zero, zero))

    assert _kind(birth, bad={"w": {0}}) == kind


def test_a_collective_that_overflows_is_one_whatever_its_dtype() -> None:
    """Outside of the model, of finite values."""
    origin = _after_backward("allreduce_", overload="c10d.allreduce_.default", out=FLOAT32_INF)
    assert _kind(origin) == "reduce_overflow"


def test_a_line_that_sums_gradients_in_a_loop_is_named_where_one_is_still_bad() -> None:
    """The first origin is no longer in any gradient; it is the same op of the same line."""
    lost = _after_backward("add", gradient="a")
    kept = _after_backward("add", gradient="b")
    found = diagnose(traced(lost, kept, bad={"b": {1}}))  # type: ignore[arg-type]

    assert found is not None
    assert (found.kind.slug, found.where, found.origin.index) == ("reduce_overflow", "param:b", 0)


@pytest.mark.parametrize(
    ("dtype", "limit"), [("float16", 65504.0), ("bfloat16", 3.3895313892515355e38)]
)
def test_the_limit_of_a_dtype_is_its_largest_number(dtype: str, limit: float) -> None:
    """The limit is unknown of a dtype that has none."""
    assert limit_of(dtype) == limit
    assert math.isnan(limit_of("int64"))


def test_an_iteration_without_gradients_is_judged_by_what_was_left_of_it() -> None:
    """NaN in a batch that an op has taken out are missing values; without one they spoil it."""
    for absorbed, expected in (([], "nonfinite_input"), (["nan_to_num"], "")):
        origin = inside(kind=OriginKind.INPUT, out=NAN, absorbed=absorbed, spread_to={"block"})
        assert _kind(origin, has_trained=False) == expected


def test_what_a_function_refuses_is_what_an_op_beside_the_model_has_made() -> None:
    """Without gradients, and with no loss to come: else it is a metric, of which nothing is known."""
    cost = outside("mm", phase=Phase.EVAL, spread_to={"loss"})
    hidden = outside("exp", phase=Phase.EVAL, absorbed_by={"clamp"})
    more = {"loss_nonfinite": None, "has_trained": False}

    found = diagnose(traced(hidden, cost, is_refused=True, **more))
    assert found is not None
    assert (found.kind.slug, found.origin.op, found.where) == ("forward_overflow", "mm", "loss")
    assert found.phase == "forward"  # the training ends with it
    assert diagnose(traced(hidden, cost, **more)) is None
    assert diagnose(traced(hidden, is_refused=True, **more)) is None
