"""Exceptions that are known, and what is said of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.distributions import Categorical, Normal

from ampwatch.diagnosis.book import FindingBook
from ampwatch.diagnosis.calls.api_misuse import report_error
from ampwatch.diagnosis.evidence.calls import Raised
from ampwatch.wire.records import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Callable


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

    assert explained(error.typename, str(error.value)).op == op


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
