"""Findings about parameters and buffers that are not finite."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.diagnosis.kinds.advice import ADVICE
from ampwatch.wire.records import Finding, Severity, Topic

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ampwatch.diagnosis.book import FindingBook
    from ampwatch.diagnosis.evidence.iteration import Iteration, TensorRange


class PoisonedState:
    """Looks for NaN and infinities in what outlives a step.

    One finding for all parameters and one for all buffers, at the place where most is broken.
    A buffer of -inf is a mask, and one that is not finite from the start a sentinel (the
    smallest value seen so far, a cache not filled yet), unless it holds running statistics.

    Args:
        book: Where findings go.
        lost_eps: Parameters whose ``eps`` is zero in their dtype; read, not copied.
    """

    def __init__(self, book: FindingBook, lost_eps: Mapping[str, float]) -> None:
        self._book = book
        self._lost_eps = lost_eps
        self._gradient_broke: int | None = None
        self._weights_held: int | None = None
        self._seen: set[str] = set()
        self._sentinels: set[str] = set()

    def look(self, iteration: Iteration) -> None:
        """Take in one judged iteration."""
        if self._gradient_broke is None and any(
            r.topic is Topic.GRADIENT and r.histogram.nonfinite for r in iteration.ranges
        ):
            self._gradient_broke = iteration.step
        parameters = [
            r for r in iteration.ranges if r.topic is Topic.WEIGHT and r.histogram.nonfinite
        ]
        buffers = [r for r in iteration.ranges if r.topic is Topic.BUFFER and self._is_poisoned(r)]
        if parameters:
            self._say_parameters(iteration, parameters)
        elif Topic.WEIGHT in iteration.topics:
            self._weights_held = iteration.step
        if buffers:
            self._say_buffers(iteration, buffers)

    def _is_poisoned(self, r: TensorRange) -> bool:
        if r.name.rpartition(".")[2].startswith("running_"):
            return bool(r.histogram.nonfinite)
        # A mask, an observer's smallest value, a cache that is not filled yet.
        if r.name not in self._seen and r.histogram.nonfinite:
            self._sentinels.add(r.name)
        self._seen.add(r.name)
        spreads = r.histogram.nans or r.histogram.positive_infs
        return bool(spreads) and r.name not in self._sentinels

    def _say_parameters(self, iteration: Iteration, bad: Sequence[TensorRange]) -> None:
        root = self._broken_scale() or self._lost_eps_of(iteration, bad)
        worst = max(bad, key=lambda r: r.histogram.nonfinite)
        where = f"param:{worst.name}"
        evidence = _evidence(worst, bad)
        if self._book.again_anywhere("param_nonfinite", iteration.step, **evidence) is not None:
            return
        finding = Finding(
            kind="param_nonfinite",
            severity=Severity.CRITICAL,
            where=where,
            summary=(
                f"{len(bad)} parameters have NaN or infinite elements as of step {iteration.step},"
                f" most of them in {where}: {_words(worst)}; nothing this training does from here on"
                f" is of use"
            ),
            advice=ADVICE["param_nonfinite"],
            phase="optimizer",
            dtype=worst.dtype,
            root=root is None,
            caused_by="" if root is None else root.key,
            first_step=iteration.step,
            last_step=iteration.step,
            evidence=evidence,
        )
        self._book.make(finding)
        for symptom in self._book.of_kind("scale_collapse"):
            self._book.explain(symptom, root or finding)

    def _broken_scale(self) -> Finding | None:
        """Return the finding about an infinite scale for FP8: all that is multiplied by it is NaN."""
        made = self._book.of_kind("fp8_scale_nonfinite")
        return made[0] if made else None

    def _lost_eps_of(self, iteration: Iteration, bad: Sequence[TensorRange]) -> Finding | None:
        """Say that ``eps`` is zero in the dtype, if finite gradients have broken the weights."""
        made = self._book.of_kind("optimizer_eps_underflow")
        if made:
            return made[0]
        suspects = [r for r in bad if r.name in self._lost_eps]
        if not suspects or self._gradients_broke_first():
            return None
        worst = max(suspects, key=lambda r: r.histogram.nonfinite)
        where, eps = f"param:{worst.name}", self._lost_eps[worst.name]
        finding = Finding(
            kind="optimizer_eps_underflow",
            severity=Severity.CRITICAL,
            where=where,
            summary=(
                f"The optimizer's eps of {eps:g} is zero in {worst.dtype}, and so is the square of a"
                f" small gradient: its step divided by zero and left {_words(worst)} in {where},"
                f" as of step {iteration.step}"
            ),
            advice=ADVICE["optimizer_eps_underflow"],
            phase="optimizer",
            dtype=worst.dtype,
            first_step=iteration.step,
            last_step=iteration.step,
            evidence={"eps": eps, **_evidence(worst, bad)},
        )
        self._book.make(finding)
        return finding

    def _gradients_broke_first(self) -> bool:
        """Whether gradients were seen to be non-finite while the weights still were finite."""
        broke, held = self._gradient_broke, self._weights_held
        return broke is not None and held is not None and broke <= held

    def _say_buffers(self, iteration: Iteration, bad: Sequence[TensorRange]) -> None:
        first = bad[0]
        where = f"buffer:{first.name}"
        evidence = _evidence(first, bad)
        if self._book.again_anywhere("buffer_nonfinite", iteration.step, **evidence) is not None:
            return
        weights = self._book.of_kind("param_nonfinite")
        scale = self._broken_scale()
        cause = weights[-1].caused_by or weights[-1].key if weights else ""
        # A batch that was not finite is to blame, and more than this comes of it.
        batches = [f for f in self._book.of_kind("nonfinite_input") if f.root]
        cause = cause or (batches[-1].key if batches else "")
        cause = cause if scale is None else scale.key
        finding = Finding(
            kind="buffer_nonfinite",
            severity=Severity.CRITICAL,
            where=where,
            summary=(
                f"{len(bad)} buffers have NaN or infinite elements as of step"
                f" {iteration.step}, the first of them {where}: {_words(first)}. Skipping the"
                f" step of an optimizer does not undo what the forward has written: evaluation"
                f" with it gives NaN"
            ),
            advice=ADVICE["buffer_nonfinite"],
            phase="forward",
            dtype=first.dtype,
            root=not cause,
            caused_by=cause,
            first_step=iteration.step,
            last_step=iteration.step,
            evidence=evidence,
        )
        self._book.make(finding)
        # What the forward has written there is what the gradients were made of.
        for collapse in self._book.of_kind("scale_collapse"):
            if collapse.last_step >= iteration.step - 1:
                self._book.explain(collapse, self._book.root_of(finding))


def _evidence(worst: TensorRange, bad: Sequence[TensorRange]) -> dict[str, float]:
    return {
        "tensors": float(len(bad)),
        "elements": float(worst.histogram.numel),
        "nans": float(worst.histogram.nans),
        "infs": float(worst.histogram.infs),
    }


def _words(r: TensorRange) -> str:
    histogram = r.histogram
    return f"{histogram.nans} NaN and {histogram.infs} infinite of {histogram.numel} elements"
