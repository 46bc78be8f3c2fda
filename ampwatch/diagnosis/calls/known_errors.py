"""The well-known exceptions of mixed precision, by their messages."""

from __future__ import annotations

import re
from typing import NamedTuple


class KnownError(NamedTuple):
    """One exception.

    Attributes:
        types: Names of its class, with a space between.
        message: Pattern that its message matches; compiled when an exception has come.
        op: The op or method at fault; empty if the message or the traceback names it.
        phase: Its phase; empty if it is where it was raised.
        meaning: What it means.
        remedy: What to do, naming the API.
        is_of_half: It says nothing of a training that computes in float32.
    """

    types: str
    message: str
    op: str
    phase: str
    meaning: str
    remedy: str
    is_of_half: bool = False


_FIND_MAKER = " If it is NaN already, look for the op that made it."
_UNSCALE_ONCE = (
    "Call scaler.unscale_(optimizer) once per optimizer and step, after the backward of the last"
    " micro-batch, and scaler.update() once after the steps of all optimizers, also where"
    " scaler.step was left out."
)
ONE_DTYPE = (
    "Run this layer inside torch.autocast(device_type, dtype), which casts both; or cast what comes"
    " out of the autocast region with .float() before it goes into a layer outside."
)

OF_FUNCTION = (
    "If forward ran in torch.autocast, decorate forward and backward of this torch.autograd.Function with"
    " torch.amp.custom_fwd(device_type=...) and torch.amp.custom_bwd(device_type=...): backward then"
    " runs with the autocast of forward."
)
"""Advice where the backward of a custom function has met two dtypes."""

BCE = KnownError(
    "RuntimeError",
    r"binary_cross_entropy and .*BCELoss are unsafe to autocast",
    "binary_cross_entropy",
    "forward",
    "the logarithm of a float16 probability overflows or is NaN, so autocast refuses it",
    "Leave the sigmoid out of the model and use"
    " torch.nn.functional.binary_cross_entropy_with_logits or torch.nn.BCEWithLogitsLoss; or"
    " compute the loss inside torch.autocast(device_type, enabled=False) from output.float().",
)
"""The loss of a probability."""

FLOAT16_GRADIENTS = KnownError(
    "ValueError",
    r"Attempting to unscale FP16 gradients",
    "unscale_",
    "optimizer",
    "the parameters themselves are in float16, and so are their gradients; the scaler unscales"
    " float32 gradients only, because float16 would flush them to zero",
    "Keep the parameters in float32 (take .half() and torch_dtype=torch.float16 away) and let"
    " torch.autocast cast in the forward pass; train adapters in float32. bfloat16 weights need"
    " no scaler.",
)
"""Weights that are float16 themselves."""

OF_NONFINITE = (
    KnownError(
        "RuntimeError",
        r"The total norm of order .* for gradients from .* is non-finite, so it cannot be clipped",
        "clip_grad_norm_",
        "optimizer",
        "the norm of the gradients is NaN or infinite, and clipping was asked to say so",
        "Find the first non-finite gradient. With a GradScaler clip after scaler.unscale_(optimizer)"
        " without error_if_nonfinite=True: the scaler skips such steps by itself.",
    ),
    KnownError(
        "RuntimeError",
        r"probability tensor contains either `inf`, `nan` or element < 0"
        r"|invalid multinomial distribution \((sum of probabilities <= 0|encountering probability entry < 0)\)",
        "multinomial",
        "forward",
        "torch.multinomial was handed a row with a probability that is NaN, infinite or negative, or"
        " with none above zero",
        "Take the softmax in float32: torch.multinomial(torch.softmax(logits.float(), -1), n). Of a row"
        f" that is masked with -inf throughout, the softmax is NaN.{_FIND_MAKER}",
    ),
    KnownError(
        "ValueError",
        r"Expected parameter \w+ \(.*\) of distribution .* to satisfy the constraint",
        "Distribution",
        "forward",
        "a parameter of the distribution breaks its constraint. NaN breaks any of them; in half"
        " precision a small standard deviation also becomes zero, which has to be above it",
        "With autocast, make the distribution of float32 tensors, outside of its region:"
        " torch.distributions.Categorical(logits=logits.float()), or the exponential of a float32"
        f" logarithm as standard deviation.{_FIND_MAKER}",
    ),
    KnownError(
        "ValueError",
        r"matrix contains invalid numeric entries",
        "linear_sum_assignment",
        "forward",
        "a cost that scipy's linear_sum_assignment was handed is NaN or minus infinity",
        "Compute the costs in float32, from predictions.float() inside torch.autocast(device_type,"
        f" enabled=False): a cast of the sum is too late.{_FIND_MAKER}",
    ),
    KnownError(
        "ValueError",
        r"cost matrix is infeasible",
        "linear_sum_assignment",
        "forward",
        "every complete assignment has an infinite cost. A sum that overflows in float16 is infinite, and so"
        " is a cost that a program sets to infinity to forbid a pair",
        "If sums overflow, compute the costs in float32, from predictions.float() inside"
        " torch.autocast(device_type, enabled=False), or divide by the number of elements before"
        " they are summed. If pairs are forbidden, leave one assignment allowed.",
    ),
    KnownError(
        "_LinAlgError",
        r"input is not positive-definite|input matrix is singular|algorithm failed to converge",
        "linalg",
        "forward",
        "torch.linalg cannot factorize the matrix. A matmul that makes it in half precision rounds"
        " enough for that, and a NaN does it as well",
        "Compute the matrix in float32 as well, inside torch.autocast(device_type, enabled=False) and from .float()"
        f" inputs, and add a small multiple of the identity to it.{_FIND_MAKER}",
        is_of_half=True,
    ),
)
"""Those of functions that refuse NaN and infinities, wherever these come from."""


def refuses_nonfinite(message: str) -> bool:
    """Whether an exception with this message is one of these."""
    return any(re.search(known.message, message) for known in OF_NONFINITE)


KNOWN = (
    KnownError(
        "RuntimeError",
        r"value cannot be converted to type .* without overflow",
        "",
        "",
        "a constant does not fit into the half-precision tensor it is to be written into: float16"
        " ends at 65504, and -1e9 is far beyond",
        "Use torch.finfo(scores.dtype).min or float('-inf') for the mask, or do the masking in"
        " float32: scores.float().masked_fill(...).",
    ),
    KnownError(
        "AssertionError",
        r"No inf checks were recorded for this optimizer",
        "step",
        "optimizer",
        "no parameter of this optimizer has a gradient, so there is nothing that the scaler could"
        " have checked",
        "Call scaler.step only for optimizers whose parameters took part in the backward pass, or"
        " find what cut them off: a detach(), a torch.no_grad(), requires_grad=False, a branch of"
        " the model that was not used.",
    ),
    KnownError(
        "AssertionError",
        r"No inf checks were recorded prior to update",
        "update",
        "optimizer",
        "scaler.update() was called although no optimizer has been unscaled or stepped through the"
        " scaler since the update before",
        "Call scaler.step(optimizer) before scaler.update(), and update() only in the iterations in"
        " which an optimizer steps: with gradient accumulation, inside the same `if`.",
    ),
    KnownError(
        "RuntimeError",
        r"unscale_\(\) has already been called on this optimizer",
        "unscale_",
        "optimizer",
        "unscale_ was called twice for this optimizer without an update() in between; its gradients"
        " have been divided by the scale already",
        _UNSCALE_ONCE,
    ),
    KnownError(
        "RuntimeError",
        r"unscale_\(\) is being called after step\(\)",
        "unscale_",
        "optimizer",
        "unscale_ was called for an optimizer whose step has been taken already in this iteration",
        "Call scaler.unscale_(optimizer), then clip, then scaler.step(optimizer), then"
        " scaler.update(), in this order.",
    ),
    KnownError(
        "RuntimeError",
        r"step\(\) has already been called since the last update",
        "step",
        "optimizer",
        "scaler.step was called twice for this optimizer without scaler.update() in between",
        "Call scaler.update() once at the end of each iteration, after the steps of all optimizers;"
        " an optimizer that steps twice per iteration needs an update() after each.",
    ),
    FLOAT16_GRADIENTS,
    KnownError(
        "RuntimeError",
        r"Closure use is not currently supported if GradScaler is enabled",
        "step",
        "optimizer",
        "the optimizer wants a closure that it calls several times, and the scaler cannot check the"
        " gradients in between",
        "Compute the loss and backward before scaler.step(optimizer) without a closure; for LBFGS"
        " use bfloat16 autocast or float32 without a GradScaler.",
    ),
    KnownError(
        "AssertionError",
        r"Attempted (\w+) but _(scale|growth_tracker) is None",
        "",
        "optimizer",
        "the scaler was used although no loss has been scaled yet",
        "Scale the loss before backward: scaler.scale(loss).backward().",
    ),
    KnownError(
        "AssertionError",
        r"A GradScaler instance may only be pickled at the beginning of an iteration",
        "state_dict",
        "optimizer",
        "the scaler was pickled or copied between unscale_ or step and update()",
        "Save scaler.state_dict() after scaler.update().",
    ),
    KnownError(
        "RuntimeError",
        r"The source state dict is empty, possibly because it was saved from a disabled instance",
        "load_state_dict",
        "config",
        "the checkpoint was written by a scaler that was disabled, and this one is enabled",
        "Load it only if it is not empty: `if state: scaler.load_state_dict(state)`.",
    ),
    KnownError(
        "AssertionError",
        r"new_scale should be a float or a 1-element",
        "update",
        "optimizer",
        "scaler.update was handed a scale that is no float and no one-element tensor on its device",
        "Call scaler.update(float(new_scale)).",
    ),
    KnownError(
        "ValueError",
        r"outputs must be a Tensor or an iterable of Tensors",
        "scale",
        "backward",
        "scaler.scale was handed something that is neither a tensor nor an iterable of tensors",
        "Hand the loss tensor to it: scaler.scale(output.loss).backward().",
    ),
    KnownError(
        "AssertionError",
        r"The (growth|backoff) factor must be",
        "",
        "config",
        "the scale would not grow, or not shrink, by such a factor",
        "Make GradScaler(growth_factor=2.0, backoff_factor=0.5): one above 1, the other below.",
    ),
    BCE,
    KnownError(
        "RuntimeError",
        r"expected (m1 and m2|mat1 and mat2|self and mat2|.* and .*) to have the same dtype"
        r"|mat1 and mat2 must have the same dtype"
        r"|expected scalar type (Half|BFloat16|Float|Double) but found (Half|BFloat16|Float|Double)"
        r"|Input type .* and (weight|bias) type .* should be the same"
        r"|Found dtype \w+ but expected (Half|BFloat16|Float)"
        r"|expected .*same dtype.*(Half|BFloat16|c10::)"
        r"|(Index put|Tensors? .*|.*) requires? the source and destination dtypes match",
        "",
        "",
        "an op was handed tensors of two dtypes: something half-precision meets something in float32"
        " where no autocast casts them",
        ONE_DTYPE,
    ),
    KnownError(
        "RuntimeError NotImplementedError",
        r"_amp_foreach_non_finite_check_and_unscale.* not implemented for 'Complex",
        "unscale_",
        "optimizer",
        "parameters are complex, and so are their gradients, which the scaler cannot unscale",
        "Keep each as a real parameter whose last dimension is 2, and take"
        " torch.view_as_complex(parameter) in the forward pass; or use bfloat16 autocast or float32"
        " without a GradScaler.",
    ),
    KnownError(
        "RuntimeError NotImplementedError",
        r"\"(?P<op>[\w:]+?)(_\w*)?\" not implemented for '(Half|BFloat16|Float8_\w+)'",
        "",
        "",
        "there is no kernel of this op for this dtype on this device",
        "Run the op in float32: x.float() before it, inside torch.autocast(device_type,"
        " enabled=False); or use the other half-precision dtype.",
    ),
    KnownError(
        "RuntimeError",
        r"element \d+ of tensors does not require grad and does not have a grad_fn",
        "backward",
        "backward",
        "the loss does not depend on any parameter by a recorded computation",
        "Look for a detach(), .item(), .data, a torch.no_grad() or torch.inference_mode() around the"
        " forward pass, or parameters that are all frozen (requires_grad=False).",
    ),
    KnownError(
        "RuntimeError ValueError",
        r"(Current CUDA Device does not support bfloat16|bfloat16 is not supported|"
        r"[Bb]float16 .*not supported on)",
        "autocast",
        "config",
        "this device has no bfloat16 arithmetic",
        "Use torch.autocast(device_type, dtype=torch.float16) with a torch.amp.GradScaler; bfloat16"
        " needs compute capability 8.0 or newer: torch.cuda.is_bf16_supported().",
    ),
    KnownError(
        "RuntimeError",
        r"one of the variables needed for gradient computation has been modified by an inplace"
        r" operation: \[torch\.(\w+\.)?FloatTensor \[\]\]",
        "update",
        "backward",
        "a scaled loss went back after scaler.update() had changed the scale it was multiplied by",
        "Call backward() of every scaled loss before scaler.update().",
    ),
    *OF_NONFINITE,
)
"""The exceptions that are explained, the more special before the more general."""

RECURRENT = KnownError(
    "RuntimeError",
    "",
    "rnn",
    "forward",
    "recurrent layers have no float16 kernels on this device",
    "Run it outside: with torch.autocast(device_type, enabled=False): out = rnn(x.float()); or use"
    " bfloat16 autocast.",
)
"""Layers whose messages differ from version to version: known by the class of the layer."""
