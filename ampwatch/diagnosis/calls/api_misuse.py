"""Findings about code around AMP that runs, and does not do what it should."""

from __future__ import annotations

import math
import re
from collections import deque
from typing import TYPE_CHECKING, Any

from ampwatch.diagnosis.calls.kinds import (
    API_ERROR,
    BACKWARD_UNDER_AUTOCAST,
    CLIP_BEFORE_UNSCALE,
    CLIP_NONFINITE_NORM,
    MIXED_SCALED_BACKWARD,
    SCALE_CHANGED_MID_ACCUMULATION,
    TOO_LARGE,
    UNSCALED_COMPILED,
    UNSCALED_STEP,
    UNSCALED_TWICE,
)
from ampwatch.diagnosis.calls.known_errors import (
    BCE,
    FLOAT16_GRADIENTS,
    KNOWN,
    OF_FUNCTION,
    ONE_DTYPE,
    RECURRENT,
    KnownError,
)
from ampwatch.diagnosis.detector import Detector, Shared, takes
from ampwatch.diagnosis.evidence.calls import (
    AutocastBackward,
    Mix,
    MixedGradients,
    MixedScales,
    NonfiniteClip,
    Raised,
    RefusedOp,
    RescaledGradients,
    ScaledClip,
    ScaledPenalty,
    ScaledStep,
)
from ampwatch.diagnosis.state.kinds import PARAM_NONFINITE
from ampwatch.numerics.written import counted, scale_text
from ampwatch.wire.records import Severity, in_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.diagnosis.book import FindingBook
    from ampwatch.diagnosis.evidence.iteration import Iteration
    from ampwatch.diagnosis.kinds.kind import Kind
    from ampwatch.diagnosis.steps.steps import StepVerdict


WAIT_FOR_NAME = 8
"""Iterations in which it may turn out, from the weights that broke, whose gradient was not finite
when a device clipped it."""

MAX_RESCALED = 4
"""Newest changes of gradients by the program that are compared."""

MIN_RESCALED = 3
"""Changes without which nothing is reported."""

MIN_RATIO = 64.0
"""How many times smaller gradients have to be after it, each time."""

MIN_MOVE = 0.2
"""Natural logarithm by which the norm before has to have moved, at least."""

MAX_MOVE_LEFT = 0.02
"""By how much the norm after may have moved, likewise, where there is a limit: a limit for each weight follows the
weights. What is divided by a number of tokens that differs becomes more alike as well, and not as much."""


MIN_SCALE = 16384.0
"""Smallest loss scale at which a penalty on gradients is claimed to lack the division by it: one that has it has a
weight of at most a few hundred."""


OF_TWO_SCALERS = (
    "Scale all losses of one optimizer by the same torch.amp.GradScaler: the one that steps it divides all of its gradients by"
    " its own scale. One scaler is enough for several optimizers."
)
"""Advice where another scaler has scaled a part of the losses."""


class ApiMisuse(Detector):
    """Takes what the sensors of API use have observed."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._scale = shared.loss_scale
        self._unnamed: NonfiniteClip | None = None
        self._rescaled: dict[int, deque[RescaledGradients]] = {}

    def detect(self, iteration: Iteration, _verdict: StepVerdict) -> None:
        """Say what was held back, if it is known by now."""
        self._name(iteration.step)

    @property
    def is_at_rest(self) -> bool:
        """Whether a quiet iteration would be nothing to it."""
        return self._unnamed is None

    @takes(ScaledClip)
    def clipped_scaled(self, seen: ScaledClip) -> None:
        """Gradients were clipped before ``unscale_``."""
        scale = seen.scale if not math.isnan(seen.scale) else self._scale()
        # A limit that large was multiplied by the scale, or only measures.
        if not seen.limit < scale:
            return
        where = f"optimizer:{seen.optimizer}"
        norm = "" if math.isnan(seen.norm) else f", with a norm of {seen.norm:.4g}"
        self._say(
            CLIP_BEFORE_UNSCALE,
            where,
            seen.step,
            "optimizer",
            f"{seen.function} limited gradients of {in_words(where)} to {seen.limit:g} at step {seen.step}"
            f" while they were still multiplied by the loss scale of {scale_text(scale)}{norm}: after"
            f" unscaling the limit is {seen.limit / scale:.3g}, which leaves almost no update",
            source=seen.source,
            evidence={
                "loss_scale": scale,
                "limit": seen.limit,
                "effective_limit": seen.limit / scale,
                **({} if math.isnan(seen.norm) else {"norm": seen.norm}),
            },
        )

    @takes(RescaledGradients)
    def rescaled(self, seen: RescaledGradients) -> None:
        """The program has changed gradients before ``unscale_``: a limit shows in that it leaves as much each time."""
        newest = self._rescaled.setdefault(seen.optimizer, deque(maxlen=MAX_RESCALED))
        newest.append(seen)
        scale = seen.scale if not math.isnan(seen.scale) else self._scale()
        before = [math.log(one.before) for one in newest]
        after = [math.log(one.after) for one in newest]
        moved = max(before) - min(before)
        has_limit = moved >= MIN_MOVE and max(after) - min(after) <= MAX_MOVE_LEFT
        # A limit that was multiplied by the scale leaves more, unless gradients explode.
        is_little = all(one.after * MIN_RATIO <= one.before for one in newest)
        if len(newest) < MIN_RESCALED or not (has_limit and is_little and scale >= MIN_RATIO):
            return
        where = f"optimizer:{seen.optimizer}"
        self._say(
            CLIP_BEFORE_UNSCALE,
            where,
            seen.step,
            "optimizer",
            f"The program itself has limited {counted(seen.gradients, 'gradient')} of {in_words(where)} at step"
            f" {seen.step} while they were still multiplied by the loss scale of {scale_text(scale)}:"
            f" {seen.after / seen.before:.3g} of their norm was left, and the same norm each time, whatever it"
            f" was. After unscaling the limit is 1/{scale_text(scale)} of the intended one",
            source=seen.source,
            evidence={
                "loss_scale": scale,
                "share_left": seen.after / seen.before,
                "gradients": float(seen.gradients),
            },
        )

    @takes(NonfiniteClip)
    def clipped_nonfinite(self, seen: NonfiniteClip) -> None:
        """Gradients were clipped by a norm that is not finite, and stepped with."""
        made = self._book.of_kind(CLIP_NONFINITE_NORM.slug)
        if made:
            self._book.again(made[-1], seen.step, norm=seen.norm)
        elif seen.parameter:
            self._say_nonfinite(seen, f"param:{seen.parameter}")
        elif self._unnamed is None:
            self._unnamed = seen

    def _name(self, step: int) -> None:
        """Say which parameter it was, as soon as that is known from the weights, or nobody knows."""
        seen = self._unnamed
        if seen is None:
            return
        broken = self._book.of_kind(PARAM_NONFINITE.slug)
        if broken or step - seen.step >= WAIT_FOR_NAME:
            self._unnamed = None
            where = broken[0].where if broken else f"optimizer:{seen.optimizer}"
            self._say_nonfinite(seen, where)

    def flush(self) -> None:
        """Say what was held back: the run ends."""
        if self._unnamed is not None:
            self._name(self._unnamed.step + WAIT_FOR_NAME)

    def _say_nonfinite(self, seen: NonfiniteClip, where: str) -> None:
        count = f" ({counted(seen.broken, 'element')})" if seen.broken else ""
        self._say(
            CLIP_NONFINITE_NORM,
            where,
            seen.step,
            "optimizer",
            f"clip_grad_norm_ scaled the gradients by a norm of {_norm(seen.norm)} at step {seen.step},"
            f" which turns all of them into zeros and NaN, and optimizer {seen.optimizer} took the"
            f" step; the gradient that was not finite{count} is {_of(where)}",
            source=seen.source,
            evidence={"norm": seen.norm, "limit": seen.limit, "nonfinite": float(seen.broken)},
        )

    @takes(ScaledStep)
    def stepped_scaled(self, seen: ScaledStep) -> None:
        """``optimizer.step()`` was called on gradients of scaled losses."""
        scale = seen.scale if not math.isnan(seen.scale) else self._scale()
        where = f"optimizer:{seen.optimizer}"
        how = "was stepped directly"
        more: dict[str, Any] = {}
        if seen.is_compiled:
            how = "was stepped in compiled code, and neither scaler.step nor scaler.unscale_ was called,"
            more["kind_advice"] = UNSCALED_COMPILED
        self._say(
            UNSCALED_STEP,
            where,
            seen.step,
            "optimizer",
            f"Optimizer {seen.optimizer} {how} at step {seen.step} with the gradients"
            f" of {counted(seen.parameters, 'parameter')} still multiplied by the loss scale of {scale_text(scale)}:"
            f" nothing has divided them by it, and nothing skips a step with infinities",
            source=seen.source,
            evidence={"loss_scale": scale, "parameters": float(seen.parameters)},
            op="step",
            **more,
        )

    @takes(MixedGradients)
    def mixed(self, seen: MixedGradients) -> None:
        """Gradients of one optimizer hold losses of more than one scale, or are divided by it twice."""
        scale = seen.scale if not math.isnan(seen.scale) else self._scale()
        where = f"optimizer:{seen.optimizer}"
        evidence = {"loss_scale": scale, "parameters": float(seen.parameters)}
        mixed = f"Scaled and unscaled losses are mixed in {in_words(where)} at step {seen.step}"
        more: dict[str, Any] = {}
        if seen.mix is Mix.TWICE:
            mixed = f"Gradients of {in_words(where)} are divided by the loss scale twice at step {seen.step}"
            what = (
                f"unscale_ has divided those of {counted(seen.parameters, 'parameter')} by"
                f" {scale_text(scale)} before, in a call for another object or before an update of the scaler"
            )
            more["kind_advice"] = UNSCALED_TWICE
        elif seen.mix is Mix.AFTER_UNSCALE:
            evidence[TOO_LARGE] = scale
            what = (
                f"a scaled loss was added, after unscale_, to the gradients of"
                f" {counted(seen.parameters, 'parameter')} that had been divided by the scale already: it weighs"
                f" {scale_text(scale)} times what it should"
            )
        elif seen.mix is Mix.BESIDE:
            what = (
                f"the gradients of {counted(seen.parameters, 'parameter')} hold a loss that was not scaled"
                f" beside others that were: after unscaling it weighs 1/{scale_text(scale)} of what it should"
            )
        else:
            what = (
                f"the gradients of {counted(seen.parameters, 'parameter')} come from losses that were not"
                f" scaled, and are divided by the scale of {scale_text(scale)} anyway"
            )
        self._say(
            MIXED_SCALED_BACKWARD,
            where,
            seen.step,
            "backward",
            f"{mixed}: {what}, for example {in_words(f'param:{seen.parameter}')}",
            source=seen.source,
            evidence=evidence,
            **more,
        )

    @takes(ScaledPenalty)
    def penalised(self, seen: ScaledPenalty) -> None:
        """Gradients of a scaled loss are a part of another loss."""
        scale = seen.scale if not math.isnan(seen.scale) else self._scale()
        if not scale >= MIN_SCALE:
            return
        where = f"optimizer:{seen.optimizer}"
        self._say(
            MIXED_SCALED_BACKWARD,
            where,
            seen.step,
            "backward",
            f"The loss of {in_words(where)} at step {seen.step} holds gradients that torch.autograd.grad computed of a"
            f" scaled loss: they are {scale_text(scale)} times too large in it, as nothing has divided them by the"
            f" scale, and their part of the loss changes whenever the scale does",
            source=seen.source,
            evidence={"loss_scale": scale, TOO_LARGE: scale},
        )

    @takes(MixedScales)
    def mixed_scales(self, seen: MixedScales) -> None:
        """Gradients were made with another scale than they are divided by."""
        where = f"optimizer:{seen.optimizer}"
        evidence = {
            "loss_scale": seen.scale,
            "other_scale": seen.other,
            "parameters": float(seen.parameters),
        }
        own, other = scale_text(seen.scale), scale_text(seen.other)
        more: dict[str, Any] = {}
        if seen.is_of_other:
            more["kind_advice"] = OF_TWO_SCALERS
            summary = (
                f"Another GradScaler has scaled losses of {in_words(where)}: their gradients were multiplied by {other}"
                f" before step {seen.step}, and the scaler that steps it divides all of them by {own}"
            )
        else:
            evidence["updates"] = float(seen.updates)
            summary = (
                f"Gradients of {in_words(where)} were accumulated over {counted(seen.updates, 'update')} of the scaler"
                f" until step {seen.step}: a part of them was multiplied by {other}, all of them are divided by {own}"
            )
        self._say(
            SCALE_CHANGED_MID_ACCUMULATION,
            where,
            seen.step,
            "backward",
            summary,
            source=seen.source,
            evidence=evidence,
            **more,
        )

    @takes(AutocastBackward)
    def backward_in_autocast(self, seen: AutocastBackward) -> None:
        """Gradients were computed under autocast."""
        made = self._book.get(BACKWARD_UNDER_AUTOCAST.slug, "api")
        is_chosen = seen.is_held or bool(seen.region_of)
        summary = (
            f"backward() was called inside a {seen.dtype} autocast region at step {seen.step}:"
            f" backward ran under autocast, so ops whose forward ran in float32 may run in"
            f" {seen.dtype}"
        )
        if made is not None and made.severity is Severity.INFO and not is_chosen:
            made.severity, made.summary = Severity.WARNING, summary
            self._book.report_change(made)
        more: dict[str, Any] = {}
        if is_chosen:
            # Whoever does that on purpose, or by a framework, has no block of the step to leave: not
            # a slip. Where all that is trained ran under autocast, it also changes no number.
            more["severity"] = Severity.INFO
            summary += (
                f"; the region is that of {seen.region_of}"
                if seen.region_of
                else "; the region is held from step to step"
            )
        self._say(
            BACKWARD_UNDER_AUTOCAST,
            "api",
            seen.step,
            "backward",
            summary,
            source=seen.source,
            dtype=seen.dtype,
            **more,
        )

    @takes(RefusedOp)
    def refused(self, seen: RefusedOp) -> None:
        """An op ran that autocast would have refused on a GPU."""
        self._say(
            API_ERROR,
            seen.where,
            seen.step,
            "forward",
            f"{seen.op} ran under autocast at step {seen.step} on a probability that had been"
            f" rounded to {seen.dtype}, where all that is close to 1 is 1: on a GPU PyTorch raises"
            f" an exception instead",
            severity=Severity.WARNING,
            kind_advice=BCE.remedy,
            op=seen.op,
            dtype=seen.dtype,
            source=seen.source,
        )

    @takes(Raised)
    def raised(self, seen: Raised) -> None:
        """An exception has ended the training."""
        report_error(self._book, seen)

    def _say(
        self, kind: Kind, where: str, step: int, phase: str, summary: str, **more: Any
    ) -> None:
        """Report a finding, or count it again: its numbers stay those of the first step, before what comes of it."""
        made = self._book.get(kind.slug, where)
        if made is None:
            self._book.report(kind, where, step, summary=summary, phase=phase, **more)
        elif made.last_step != step:
            self._book.again(made, step)


def _norm(norm: float) -> str:
    return "NaN" if math.isnan(norm) else f"{norm:g}"


def _of(where: str) -> str:
    """Return whose a gradient is: a parameter's, or one of an optimizer's."""
    of_one = where.startswith("param:")
    return f"that of {in_words(where)}" if of_one else f"one of those of {in_words(where)}"


MAX_NAMES = 4
"""Parameters named in a sentence."""


def report_error(book: FindingBook, seen: Raised) -> None:
    """Report what is known of an exception; nothing if it has nothing to do with AMP."""
    for known in KNOWN:
        match = re.search(known.message, seen.message)
        fits = seen.in_half or not known.is_of_half
        if match is not None and fits and seen.type_name in known.types.split():
            _report(book, seen, known, match)
            return
    if seen.type_name == "RuntimeError" and _is_recurrent(seen):
        _report(book, seen, RECURRENT, None)


def _is_recurrent(seen: Raised) -> bool:
    half = re.search(r"Half|float16|BFloat16|bfloat16|dtype|data type", seen.message)
    return bool(half and seen.module_type in ("LSTM", "GRU", "RNN", "LSTMCell", "GRUCell"))


def _report(
    book: FindingBook, seen: Raised, known: KnownError, match: re.Match[str] | None
) -> None:
    phase = known.phase or ("backward" if seen.in_backward else "forward")
    where = _where(seen, phase)
    op = known.op or _op_of(seen, match)
    remedy = OF_FUNCTION if known.remedy is ONE_DTYPE and seen.in_function else known.remedy
    names, evidence = _gradients(seen)
    if known is FLOAT16_GRADIENTS and seen.in_float16:
        names += (
            f". In float16: {_list(seen.in_float16)}, of {counted(seen.parameters, 'parameter')}"
        )
        evidence = {
            **evidence,
            "in_float16": float(len(seen.in_float16)),
            "parameters": float(seen.parameters),
        }
    place = f" in {in_words(where)}" if where != "api" else ""
    shown = seen.message.strip().splitlines()[0][:200] if seen.message.strip() else ""
    book.report(
        API_ERROR,
        where,
        seen.step,
        is_once=True,
        summary=(
            f"Training ended at step {seen.step}{place} with {seen.type_name} ({shown!r}):"
            f" {known.meaning}{names}{_variables(seen)}"
        ),
        kind_advice=f"{remedy} {API_ERROR.advice}".strip(),
        op=op,
        phase=phase,
        dtype=_dtype_of(seen.message),
        source=seen.source,
        evidence=evidence,
    )


def _variables(seen: Raised) -> str:
    """Return, as a sentence, which variables of the line held what is not finite; empty if none did."""
    good, bad = (
        [f"{name} ({dtype})" for name, dtype, is_finite in seen.variables if is_finite is wanted]
        for wanted in (True, False)
    )
    if not bad:
        return ""
    finite = f"; all finite: {_list(good)}" if good else ""
    return f". Not finite in the variables of that line: {_list(bad)}{finite}"


def _where(seen: Raised, phase: str) -> str:
    if seen.optimizer >= 0 and phase == "optimizer":
        return f"optimizer:{seen.optimizer}"
    if phase in ("forward", "backward") and seen.module is not None:
        return seen.module
    return "loss" if phase == "forward" else "api"


def _op_of(seen: Raised, match: re.Match[str] | None) -> str:
    """Return the op at fault: as the message has it, else as the program has it."""
    if match is not None and match.groupdict().get("op"):
        return match["op"].rpartition("::")[2]
    attempted = re.search(r"Attempted (\w+) but", seen.message)
    if attempted:
        return attempted[1]
    return seen.op


def _gradients(seen: Raised) -> tuple[str, dict[str, float]]:
    """Return, in words, which parameters have no gradient and why, and their numbers."""
    if not seen.without_gradient:
        return "", {}
    parts, evidence = [], {"parameters": float(seen.parameters)}
    for reason, parameters in seen.without_gradient:
        parts.append(f"{_list(parameters)} ({reason})")
        evidence[f"without_gradient_{reason.split()[0].rstrip(',')}"] = float(len(parameters))
    return f". Without a gradient: {'; '.join(parts)}", evidence


def _list(parameters: Sequence[str]) -> str:
    more = f" and {len(parameters) - MAX_NAMES} more" if len(parameters) > MAX_NAMES else ""
    return f"{', '.join(parameters[:MAX_NAMES])}{more}"


def _dtype_of(message: str) -> str:
    if "BFloat16" in message or "bfloat16" in message:
        return "bfloat16"
    return "float16" if re.search(r"Half|FP16|float16", message) else ""
