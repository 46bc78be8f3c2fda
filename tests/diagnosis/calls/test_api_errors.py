"""Exceptions that are known, observations of API use, and the findings they make."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributions import Categorical, Normal

from ampwatch.diagnosis.book import FindingBook
from ampwatch.diagnosis.calls.api_misuse import WAIT_FOR_NAME, ApiMisuse, report_error
from ampwatch.diagnosis.detector import Shared
from ampwatch.diagnosis.evidence.calls import (
    AutocastBackward,
    Mix,
    MixedGradients,
    MixedScales,
    NonfiniteClip,
    Raised,
    RefusedOp,
    ScaledClip,
    ScaledPenalty,
    ScaledStep,
)
from ampwatch.wire.records import Finding, Severity
from tests.workshop.iterations import TAKEN
from tests.workshop.simulation import Simulation


def raised(type_name: str, message: str, **more: Any) -> Raised:
    usual: dict[str, Any] = {
        "step": 7,
        "type_name": type_name,
        "message": message,
        "module": None,
        "module_type": "",
        "op": "",
        "optimizer": -1,
        "in_backward": False,
        "without_gradient": (),
        "parameters": 0,
        "source": "train.py:12",
    }
    return Raised(**{**usual, **more})


def found(seen: Raised) -> list[Finding]:
    book = FindingBook(lambda _: None)
    report_error(book, seen)
    return book.findings


def explained(type_name: str, message: str, **more: Any) -> Finding:
    (finding,) = found(raised(type_name, message, **more))
    return finding


CASES = [
    ("RuntimeError", "value cannot be converted to type at::Half without overflow", "finfo"),
    ("AssertionError", "No inf checks were recorded for this optimizer.", "scaler.step only"),
    ("AssertionError", "No inf checks were recorded prior to update.", "scaler.step(optimizer)"),
    (
        "RuntimeError",
        "unscale_() has already been called on this optimizer since the last update().",
        "once per optimizer and step",
    ),
    ("RuntimeError", "unscale_() is being called after step().", "in this order"),
    ("RuntimeError", "step() has already been called since the last update().", "update() once"),
    ("ValueError", "Attempting to unscale FP16 gradients.", "parameters in float32"),
    (
        "RuntimeError",
        "Closure use is not currently supported if GradScaler is enabled.",
        "without a closure",
    ),
    ("AssertionError", "Attempted step but _scale is None.  This may", "scaler.scale(loss)"),
    (
        "AssertionError",
        "A GradScaler instance may only be pickled at the beginning of an iteration, or at",
        "state_dict() after",
    ),
    (
        "RuntimeError",
        (
            "The source state dict is empty, possibly because it was saved from a disabled instance"
            " of GradScaler."
        ),
        "load_state_dict",
    ),
    (
        "AssertionError",
        "new_scale should be a float or a 1-element torch.cuda.FloatTensor or torch.FloatTensor",
        "float(new_scale)",
    ),
    ("ValueError", "outputs must be a Tensor or an iterable of Tensors", "loss tensor"),
    ("AssertionError", "The growth factor must be > 1.0.", "growth_factor=2.0"),
    (
        "RuntimeError",
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.",
        "BCEWithLogitsLoss",
    ),
    ("RuntimeError", "expected scalar type Half but found Float", ".float()"),
    ("RuntimeError", "mat1 and mat2 must have the same dtype, but got Half and Float", ".float()"),
    (
        "RuntimeError",
        "expected m1 and m2 to have the same dtype, but got: c10::Half != float",
        ".float()",
    ),
    (
        "RuntimeError",
        "Input type (c10::Half) and bias type (float) should be the same",
        "torch.autocast",
    ),
    (
        "RuntimeError",
        (
            "Input type (torch.cuda.HalfTensor) and weight type (torch.cuda.FloatTensor) should be the"
            " same"
        ),
        "torch.autocast",
    ),
    (
        "RuntimeError",
        (
            "Index put requires the source and destination dtypes match, got Float for the"
            " destination and Half for the source."
        ),
        ".float()",
    ),
    ("RuntimeError", "\"slow_conv2d_cpu\" not implemented for 'Half'", "x.float()"),
    ("NotImplementedError", "\"linalg_inv\" not implemented for 'BFloat16'", "x.float()"),
    (
        "RuntimeError",
        "element 0 of tensors does not require grad and does not have a grad_fn",
        "detach()",
    ),
    (
        "RuntimeError",
        "Current CUDA Device does not support bfloat16. Please switch dtype to float16.",
        "is_bf16_supported",
    ),
    (
        "NotImplementedError",
        "\"_amp_foreach_non_finite_check_and_unscale_cuda\" not implemented for 'ComplexFloat'",
        "view_as_complex",
    ),
    (
        "RuntimeError",
        "probability tensor contains either `inf`, `nan` or element < 0",
        "torch.softmax(logits.float(), -1)",
    ),
    (
        "ValueError",
        (
            "Expected parameter logits (Tensor of shape (1, 2)) of distribution"
            " Categorical(logits: torch.Size([1, 2])) to satisfy the constraint"
            " IndependentConstraint(Real(), 1), but found invalid values:\ntensor([[nan, nan]])"
        ),
        "logits=logits.float()",
    ),
    ("ValueError", "matrix contains invalid numeric entries", "predictions.float()"),
    ("ValueError", "cost matrix is infeasible", "If pairs are forbidden"),
    (
        "RuntimeError",
        (
            "The total norm of order 2.0 for gradients from `parameters` is non-finite, so it cannot"
            " be clipped."
        ),
        "unscale_",
    ),
]


@pytest.mark.parametrize(("type_name", "message", "remedy"), CASES)
def test_a_known_exception_is_explained_with_its_remedy(
    type_name: str, message: str, remedy: str
) -> None:
    """The finding has what was said, what it means, which call to change, where and since when."""
    finding = explained(type_name, message)

    assert (finding.kind, finding.severity) == ("api_error", Severity.CRITICAL)
    assert finding.source == "train.py:12"
    assert (finding.first_step, finding.last_step) == (7, 7)
    assert message[:40] in finding.summary.replace("\\'", "'")
    assert remedy in finding.advice


@pytest.mark.parametrize(
    ("type_name", "message"),
    [
        ("ValueError", "not enough values to unpack"),
        ("RuntimeError", "CUDA out of memory. Tried to allocate 2.00 GiB"),
        ("RuntimeError", "The size of tensor a (3) must match the size of tensor b (4)"),
        ("KeyError", "'dtype'"),
        ("RuntimeError", "cannot sample n_sample > prob_dist.size(-1) samples without replacement"),
        ("ValueError", "Expected value argument (Tensor of shape ()) to be within the support"),
        ("IndexError", "index out of range in self"),
        ("TypeError", "value cannot be converted to type c10::Half without overflow"),
        ("RuntimeError", "DataLoader worker (pid 4) is killed by signal: Killed."),
        ("RuntimeError", ""),
        ("_LinAlgError", "linalg.cholesky: the input is not positive-definite"),
    ],
)
def test_any_other_exception_is_the_users_own(type_name: str, message: str) -> None:
    """Nothing is said of what has nothing to do with precision."""
    assert found(raised(type_name, message)) == []


@pytest.mark.parametrize(
    ("fail", "op"),
    [
        (lambda: torch.multinomial(torch.tensor([math.nan, 0.5]), 1), "multinomial"),
        (lambda: torch.multinomial(torch.tensor([math.inf, 0.5]), 2), "multinomial"),
        (
            lambda: torch.multinomial(torch.tensor([math.nan, 0.5]), 2, replacement=True),
            "multinomial",
        ),
        (lambda: torch.multinomial(torch.zeros(2), 1), "multinomial"),
        (lambda: torch.linalg.cholesky(-torch.eye(2)), "linalg"),
        (lambda: torch.linalg.inv(torch.zeros(1, 2, 2)), "linalg"),
        (lambda: torch.linalg.solve(torch.ones(2, 2), torch.ones(2)), "linalg"),
        (lambda: torch.linalg.svd(torch.full((2, 2), math.nan)), "linalg"),
        (
            lambda: Categorical(logits=torch.tensor([math.nan, 0.5]), validate_args=True),
            "Distribution",
        ),
        (
            lambda: Normal(torch.zeros(2), torch.tensor([1e-9, 1.0]).half(), validate_args=True),
            "Distribution",
        ),
    ],
)
def test_what_this_pytorch_raises_is_known(fail: Callable[[], object], op: str) -> None:
    """The text is the one of the version that is installed."""
    with pytest.raises((RuntimeError, ValueError)) as error:
        fail()

    assert explained(error.typename, str(error.value), in_half=True).op == op


@pytest.mark.parametrize(
    ("cause", "seen_last", "op", "is_root"),
    [
        ("param_nonfinite", 3, "multinomial", False),
        ("nonfinite_input", 7, "multinomial", False),
        ("forward_overflow", 6, "clip_grad_norm_", False),
        ("forward_overflow", 3, "clip_grad_norm_", True),
        ("nonfinite_input", 3, "multinomial", True),
        ("param_nonfinite", 3, "unscale_", True),
    ],
)
def test_what_refuses_nan_is_explained_by_what_has_made_it(
    cause: str, seen_last: int, op: str, *, is_root: bool
) -> None:
    """One incident has one root: broken weights, or the batch of that step; not an earlier batch."""
    book = FindingBook(lambda _news: None)
    what = (Severity.CRITICAL, "loss", "what happened", "what to change")
    broken = Finding(cause, *what, first_step=3, last_step=seen_last)
    book.make(broken)
    if cause == "forward_overflow":
        book.led_to_by(broken)
    book.make(Finding("api_error", *what, op=op, first_step=7, last_step=7))

    assert book.findings[1].root is is_root


def test_an_overflowing_constant_is_placed_in_the_module_that_ran() -> None:
    """Module, op and phase of the call; outside of all modules it is the loss."""
    message = "value cannot be converted to type c10::Half without overflow"
    inside = explained("RuntimeError", message, module="layers.3.attn", op="masked_fill")
    root = explained("RuntimeError", message, module="", op="masked_fill_")
    outside = explained("RuntimeError", message, op="full_like")

    assert (inside.where, inside.op, inside.phase) == ("layers.3.attn", "masked_fill", "forward")
    assert inside.dtype == "float16"
    assert (root.where, root.op) == ("", "masked_fill_")
    assert (outside.where, outside.op) == ("loss", "full_like")


def test_parameters_without_a_gradient_are_named_with_the_reason() -> None:
    """At most four of each are spelled out."""
    finding = explained(
        "AssertionError",
        "No inf checks were recorded for this optimizer.",
        optimizer=2,
        without_gradient=(
            ("frozen, requires_grad is False", ("a.weight",)),
            ("unused or detached in this backward", tuple(f"b.{i}" for i in range(6))),
        ),
        parameters=7,
    )

    assert (finding.where, finding.op, finding.phase) == ("optimizer:2", "step", "optimizer")
    assert "a.weight (frozen, requires_grad is False)" in finding.summary
    assert "b.0, b.1, b.2, b.3 and 2 more (unused or detached" in finding.summary
    assert finding.evidence == {
        "parameters": 7.0,
        "without_gradient_frozen": 1.0,
        "without_gradient_unused": 6.0,
    }


def test_an_op_is_named_as_the_message_has_it() -> None:
    """The kernel's name, without what it ends with for the device."""
    finding = explained("RuntimeError", "\"linalg_inv\" not implemented for 'Half'", module="head")

    assert (finding.where, finding.dtype) == ("head", "float16")
    assert finding.op.startswith("linalg")


def test_a_recurrent_layer_in_half_precision_is_known_by_its_class() -> None:
    """The messages differ from version to version; the layer does not."""
    finding = explained(
        "RuntimeError",
        "mkldnn_rnn: unsupported data type Half",
        module="encoder.lstm",
        module_type="LSTM",
    )

    assert (finding.where, finding.phase) == ("encoder.lstm", "forward")
    assert "enabled=False" in finding.advice
    assert found(raised("RuntimeError", "unsupported data type Half")) == []


def test_what_is_raised_while_going_back_is_of_the_backward_phase() -> None:
    """A custom function's backward raises the same message."""
    message = "mat1 and mat2 must have the same dtype, but got Half and Float"

    assert explained("RuntimeError", message, in_backward=True).phase == "backward"
    assert explained("RuntimeError", message).phase == "forward"


NAN = math.nan


class Case:
    """The family with a book, and a scale that has reached the host."""

    def __init__(self, scale: float = 4096.0) -> None:
        self.book = FindingBook(lambda _news: None)
        self.family = ApiMisuse(Shared(self.book, loss_scale=lambda: scale))

    def see(self, *observations: object) -> Case:
        for observation in observations:
            getattr(self.family, self.family.observers[type(observation)])(observation)
        return self

    def iterate(self, step: int) -> Case:
        simulation = Simulation()
        simulation.step = step
        self.family.detect(simulation.iteration({}), TAKEN)
        return self

    @property
    def one(self) -> Finding:
        (finding,) = self.book.findings
        return finding


def scaled_clip(step: int = 3, limit: float = 1.0, scale: float = 1024.0) -> ScaledClip:
    return ScaledClip(step, 1, "clip_grad_norm_", limit, 640.0, scale, "train.py:9")


def nonfinite_clip(step: int = 3, parameter: str = "head.weight") -> NonfiniteClip:
    return NonfiniteClip(step, 0, parameter, 5, math.inf, 1.0, "train.py:9")


def mixed(mix: Mix = Mix.AFTER_UNSCALE, scale: float = 512.0) -> MixedGradients:
    return MixedGradients(2, 1, scale, "w", 3, mix, "train.py:5")


def broken_weights(step: int, where: str = "param:body.weight") -> Finding:
    return Finding("param_nonfinite", Severity.CRITICAL, where, "", "", first_step=step)


def test_a_clip_of_scaled_gradients_tells_the_limit_that_is_left() -> None:
    """1 at a scale of 1024 is 0.000977."""
    finding = Case().see(scaled_clip()).one

    assert (finding.kind, finding.where, finding.phase, finding.severity) == (
        "clip_before_unscale",
        "optimizer:1",
        "optimizer",
        Severity.WARNING,
    )
    assert finding.evidence["effective_limit"] == pytest.approx(1 / 1024)
    assert finding.source == "train.py:9"
    assert "0.000977" in finding.summary
    assert "scaler.unscale_(optimizer)" in finding.advice


def test_a_limit_on_values_has_no_norm_to_show() -> None:
    """Neither in words nor among the numbers."""
    finding = Case().see(scaled_clip()._replace(function="clip_grad_value_", norm=NAN)).one

    assert "norm" not in finding.summary
    assert "norm" not in finding.evidence


@pytest.mark.parametrize("limit", [1024.0, 5000.0, math.inf, NAN])
def test_a_limit_that_was_multiplied_by_the_scale_is_right(limit: float) -> None:
    """So is one that only measures; one that is a tensor is not known."""
    assert Case().see(scaled_clip(limit=limit)).book.findings == []


def test_a_scale_on_a_device_is_the_newest_that_has_arrived() -> None:
    """The host does not wait for it."""
    finding = Case(scale=256.0).see(scaled_clip(scale=NAN)).one

    assert finding.evidence["loss_scale"] == 256.0


def test_a_finding_is_made_once_and_counted_once_per_iteration() -> None:
    """Micro-batches of one iteration are one."""
    finding = Case().see(*(scaled_clip(step, scale=2.0**step) for step in (3, 3, 4, 5, 5))).one

    assert (finding.first_step, finding.last_step, finding.count) == (3, 5, 3)
    # The scale of later steps may be what has come of it.
    assert finding.evidence["loss_scale"] == 8.0
    assert "step 3" in finding.summary


def test_a_parameter_that_is_not_known_at_once_is_known_from_the_weights() -> None:
    """Where a device clipped, nobody has looked before the gradients were gone."""
    case = Case().see(nonfinite_clip(step=3, parameter="")).iterate(4)
    assert case.book.findings == []
    weights = broken_weights(3)
    case.book.make(weights)
    case.iterate(5)

    made = case.book.of_kind("clip_nonfinite_norm")
    assert [f.where for f in made] == ["param:body.weight"]
    assert not weights.root


@pytest.mark.parametrize("ends", [True, False])
def test_a_parameter_that_never_becomes_known_leaves_the_optimizer(*, ends: bool) -> None:
    """It is said anyway, some iterations later or when the run ends."""
    case = Case().see(nonfinite_clip(step=3, parameter=""))
    if ends:
        case.family.flush()
    else:
        case.iterate(3 + WAIT_FOR_NAME)

    assert case.one.where == "optimizer:0"


@pytest.mark.parametrize(
    ("seen", "is_root"),
    [
        (ScaledStep(2, 0, 4096.0, 6, "train.py:7"), False),
        (mixed(), False),
        (mixed(scale=1.0), True),
        (mixed(Mix.BESIDE), True),
    ],
)
def test_a_divergence_is_explained_by_steps_that_are_too_large(
    seen: object, *, is_root: bool
) -> None:
    """Not by a loss that weighs too little."""
    case = Case().see(seen)
    case.book.make(Finding("divergence", Severity.CRITICAL, "loss", "", "", first_step=3))

    assert case.book.findings[1].root is is_root


def test_what_becomes_of_steps_that_are_too_large_is_explained_by_them() -> None:
    """Broken weights, and a scale that collapses for it."""
    case = Case().see(ScaledStep(2, 0, 4096.0, 6, "train.py:7"))
    weights = broken_weights(5)
    case.book.make(weights)
    case.iterate(5)

    (step,) = case.book.of_kind("unscaled_step")
    assert (step.op, step.phase, step.evidence["parameters"]) == ("step", "optimizer", 6.0)
    assert weights.caused_by == step.key


@pytest.mark.parametrize(
    ("mix", "words"),
    [
        (Mix.BESIDE, "was not scaled beside others that were"),
        (Mix.UNSCALED, "were not scaled, and are divided"),
        (Mix.AFTER_UNSCALE, "added, after unscale_"),
        (Mix.TWICE, "divided by the loss scale twice"),
    ],
)
def test_mixed_losses_are_described_as_they_are(mix: Mix, words: str) -> None:
    """Four mistakes, one kind."""
    finding = Case().see(mixed(mix)).one

    assert (finding.kind, finding.where, finding.phase) == (
        "mixed_scaled_backward",
        "optimizer:1",
        "backward",
    )
    assert words in finding.summary
    assert "parameter w" in finding.summary


@pytest.mark.parametrize(("scale", "num"), [(32768.0, 1), (1024.0, 0), (0.5, 0)])
def test_a_penalty_on_scaled_gradients_says_how_much_too_large_they_are(
    scale: float, num: int
) -> None:
    """Of a small scale it is not claimed: a weight may be as large."""
    found = Case().see(ScaledPenalty(0, 1, scale, "train.py:5")).book.findings

    assert [(f.kind, f.where, f.source) for f in found] == [
        ("mixed_scaled_backward", "optimizer:1", "train.py:5")
    ][:num]
    assert all("32768 times too large" in f.summary for f in found)


def test_two_scales_in_one_sum_are_both_reported() -> None:
    """The one it was multiplied by and the one it is divided by."""
    finding = Case().see(MixedScales(9, 1, 512.0, 256.0, 4, 2, "train.py:5")).one

    assert finding.kind == "scale_changed_mid_accumulation"
    assert (finding.evidence["loss_scale"], finding.evidence["other_scale"]) == (512.0, 256.0)
    assert "4 updates" in finding.summary

    finding = Case().see(MixedScales(9, 1, 512.0, 256.0, 0, 2, "train.py:5", is_of_other=True)).one
    assert "Another GradScaler" in finding.summary
    assert "same torch.amp.GradScaler" in finding.advice


def test_backward_under_autocast_tells_the_dtype() -> None:
    """The region decides in what ops of backward run."""
    finding = Case().see(AutocastBackward(0, "bfloat16", "train.py:5")).one

    assert (finding.kind, finding.where, finding.dtype) == (
        "backward_under_autocast",
        "api",
        "bfloat16",
    )
    assert "backward ran under autocast" in finding.summary


@pytest.mark.parametrize(
    ("meant", "words"),
    [
        ({"is_held": True}, "backward ran under autocast"),
        ({"region_of": "Lightning's Trainer"}, "the region is that of Lightning's Trainer"),
    ],
)
def test_backward_in_a_region_that_nobody_could_leave_is_an_info_until_it_is_not(
    meant: dict[str, Any], words: str
) -> None:
    """A block of the step is a mistake; one around an epoch is a choice, and a framework's is not the user's."""
    case = Case().see(AutocastBackward(2, "bfloat16", "", **meant))
    assert case.one.severity is Severity.INFO
    assert words in case.one.summary
    case.see(AutocastBackward(3, "bfloat16", ""))
    assert case.one.severity is Severity.WARNING
    assert "the region is" not in case.one.summary


def test_of_a_chain_of_exceptions_one_is_explained() -> None:
    """The one that was raised from another says no more than that."""
    refused = raised("ValueError", "Attempting to unscale FP16 gradients.", optimizer=0)
    outer = refused._replace(type_name="RuntimeError", message="training failed")

    assert Case().see(outer, refused, refused).one.where == "optimizer:0"


def test_what_a_gpu_would_refuse_is_reported_once_and_counted() -> None:
    """A warning: on a CPU the training goes on. What to change is as for the exception."""
    op = "binary_cross_entropy"
    seen = [RefusedOp(step, op, "loss", "float16", "train.py:9") for step in (3, 3, 5)]
    finding = Case().see(*seen).one

    assert (finding.kind, finding.where, finding.op) == ("api_error", "loss", op)
    assert (finding.phase, finding.dtype) == ("forward", "float16")
    assert finding.severity is Severity.WARNING
    assert (finding.first_step, finding.last_step, finding.count) == (3, 5, 2)
    assert "torch.nn.BCEWithLogitsLoss" in finding.advice
    assert finding.source == "train.py:9"
