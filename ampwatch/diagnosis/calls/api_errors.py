"""Findings about exceptions of mixed precision that are well known, and what to do about them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ampwatch.diagnosis.calls.kinds import API_ERROR
from ampwatch.diagnosis.calls.known_errors import (
    FLOAT16_GRADIENTS,
    KNOWN,
    RECURRENT,
    KnownError,
)
from ampwatch.numerics.written import counted
from ampwatch.wire.records import in_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.diagnosis.book import FindingBook
    from ampwatch.diagnosis.evidence.calls import Raised


MAX_NAMES = 4
"""Parameters named in a sentence."""


def report_error(book: FindingBook, seen: Raised) -> None:
    """Report what is known of an exception; nothing if it has nothing to do with AMP."""
    for known in KNOWN:
        match = re.search(known.message, seen.message)
        if match is not None and seen.type_name in known.types:
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
            f" {known.meaning}{names}"
        ),
        kind_advice=f"{known.remedy} {API_ERROR.advice}".strip(),
        op=op,
        phase=phase,
        dtype=_dtype_of(seen.message),
        source=seen.source,
        evidence=evidence,
    )


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
