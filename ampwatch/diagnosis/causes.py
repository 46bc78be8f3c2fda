"""Rules by which one finding explains another: the rows of their kinds, and how their times fit."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ampwatch.diagnosis.forward.kinds import FORWARD_OVERFLOW
from ampwatch.diagnosis.kinds.kind import Precedence, When
from ampwatch.diagnosis.kinds.registry import row_of
from ampwatch.numerics.formats import FORMATS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ampwatch.wire.records import Finding

LASTING = 16
"""Iterations in which an op was at fault from which it is no few bad batches, and is the root of
what it has left behind as well."""

FOUND_LATE = 4
"""Iterations that an op may be found at fault after what it has left behind: it is searched for then."""

INCIDENT_STEPS = 64
"""Iterations after which what has gone wrong says nothing about what goes wrong now."""


def causes_of(symptom: Finding, known: Sequence[Finding], when: When) -> Iterator[Finding]:
    """Yield the findings that explain ``symptom``, in the order in which its row names their kinds.

    Args:
        symptom: The finding to explain.
        known: The findings so far.
        when: The moment; edges of other moments are left out.
    """
    row = row_of(symptom.kind)
    for cause in row.explained_by if row else ():
        if cause.when is when:
            for finding in known:
                if finding.kind == cause.kind and explains(finding, symptom, when):
                    yield finding


def explains(finding: Finding, symptom: Finding, when: When) -> bool:
    """Whether a finding explains another one, by an edge that is checked in that moment."""
    row = row_of(symptom.kind)
    return row is not None and any(
        edge.when is when
        and edge.kind == finding.kind
        and _is_in_time(finding, symptom, when)
        and edge.fits(symptom, finding)
        for edge in row.explained_by
    )


def _is_in_time(finding: Finding, symptom: Finding, when: When) -> bool:
    if when is When.SINCE:
        row = row_of(finding.kind)
        return symptom.first_step >= finding.first_step - (row.proven_late if row else 0)
    return when is not When.DURING or symptom.last_step >= finding.first_step


def outranks(finding: Finding, culprit: Finding, root: Finding) -> bool:
    """Whether a new finding is the root of the op at fault, and not the other way round.

    Args:
        finding: The new finding.
        culprit: The op that was named last.
        root: What explains that; itself if nothing does.
    """
    row = row_of(finding.kind)
    precedence = Precedence.NEVER if row is None else row.precedence
    if precedence is Precedence.IF_PASSING and is_of_fault(finding, culprit):
        return False  # the op was seen, and what has a period is a pattern in what it did
    if precedence is Precedence.IF_BLOWN_UP:
        above = row_of(root.kind)
        is_above_all = above is not None and above.precedence is Precedence.ALWAYS
        # What breaks in the step of the op was as it should be before it: forward comes first.
        is_of_this_step = culprit.first_step == finding.first_step
        return _has_blown_up(culprit) and not (is_above_all or is_of_this_step)
    if precedence in (Precedence.IF_PASSING, Precedence.IF_OVER) and is_passing(culprit):
        return True
    if precedence is Precedence.IF_OVER:
        return _is_over(culprit, finding)
    return precedence is Precedence.ALWAYS


def is_symptom_of_op(finding: Finding, culprit: Finding, root: Finding) -> bool:
    """Whether an op at fault explains a new finding; arguments as of ``outranks``."""
    if finding.first_step - root.last_step > INCIDENT_STEPS:
        return False
    return is_of_fault(finding, culprit) or (is_left_behind(finding) and _is_lasting(culprit))


def is_of_fault(finding: Finding, culprit: Finding) -> bool:
    """Whether an op at fault explains a finding, as long as it is."""
    row = row_of(finding.kind)
    return row is not None and any(
        edge.when is When.AT_FAULT and edge.fits(finding, culprit) for edge in row.explained_by
    )


def is_left_behind(finding: Finding) -> bool:
    """Whether a few bad batches leave it behind, and are explained by it until they are many."""
    row = row_of(finding.kind)
    return row is not None and row.is_explained(When.AT_FAULT_FOR_LONG)


def is_aftermath(finding: Finding) -> bool:
    """Whether it stays when a few bad batches are over, or brings them about."""
    row = row_of(finding.kind)
    return row is not None and row.is_aftermath


def is_passing(culprit: Finding) -> bool:
    """Whether a culprit may be a few bad batches: all was well before, and it has not lasted."""
    return _is_transient(culprit) and culprit.first_step > 0 and culprit.count < LASTING


def _is_over(culprit: Finding, left: Finding) -> bool:
    """Whether a burst, however long, has ended before the scale came to the rest it is stuck at."""
    return _is_transient(culprit) and 0 < culprit.first_step <= culprit.last_step < left.first_step


def _is_lasting(culprit: Finding) -> bool:
    return _is_transient(culprit) and not is_passing(culprit)


def _is_transient(culprit: Finding) -> bool:
    row = row_of(culprit.kind)
    return row is not None and row.is_transient


def _has_blown_up(culprit: Finding) -> bool:
    """Whether an op of the model was handed numbers that were beyond any use before it overflowed.

    In float16 it is the format that is too small. In a wider one an op that overflows on ordinary
    numbers, an exponential for example, is at fault itself; and so is whatever overflows outside of
    the model, between its output and the loss, which the weights are broken by and not the reverse.
    """
    if culprit.kind != FORWARD_OVERFLOW.slug or culprit.dtype == "float16":
        return False
    largest = culprit.evidence.get("in_amax", math.inf)
    return culprit.where != "loss" and largest > FORMATS["float16"].max
