"""Requests to a training, for a trace for example, from another process: two small files beside the ring.

The request stays until it is answered; whoever asked takes it back by removing it, and then
nothing is written. Both files are JSON objects, private to the user, made elsewhere and moved
into place. They are believed only if they belong to this user and nobody else may write them.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
from base64 import b64decode, b64encode
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from ampwatch.runtime import RING_SUFFIX
from ampwatch.wire.records import MAX_PLANNED, KernelTotal, PlanRecord
from ampwatch.wire.ring.encoding import decode, encode
from ampwatch.wire.ring.layout import RecordKind
from ampwatch.wire.ring.text import parse_json

REQUEST_SUFFIX = ".request"
ANSWER_SUFFIX = ".answer"

MAX_ITERATIONS = 3
_LONGEST = 1 << 20
_LONGEST_RECORD = 1024
_MAX_TOTALS = 256
_LONGEST_TEXT = 512


TRACE, ERRORS, LAYERS, FOLLOW = "trace", "errors", "layers", "follow"
"""What may be asked for: a Chrome trace, an error budget as JSON, a report that has the layers alone, or to
follow a precision plan that was made elsewhere of such a report."""


NO_LAB = "the laboratory is off; ampwatch.monitor(..., lab=True) or AMPWATCH_LAB=1 turns it on"
"""Answer to all of them but a trace, where that is so."""


class Request(Struct, frozen=True):
    """Request to a training.

    Attributes:
        token: Names the request in its answer.
        pid: Who asks.
        path: File that what is asked for replaces; it exists and is empty, and stays so for ``FOLLOW``.
        iterations: How many iterations are profiled.
        what: ``TRACE``, ``ERRORS``, ``LAYERS`` or ``FOLLOW``.
        plan: Of ``FOLLOW``: the plan, layer by layer.
    """

    token: str
    pid: int
    path: Path
    iterations: int
    what: str = TRACE
    plan: tuple[PlanRecord, ...] = ()


class Answer(Struct, frozen=True):
    """Answer to a request: what became of it.

    Attributes:
        token: Of the request.
        why_not: Why there is nothing, in words; empty if there is.
        step: First profiled iteration.
        iterations: Profiled iterations.
        wall_ns: Their wall time. Unit: ns.
        busy_ns: Time of it in which the device ran a kernel; 0 on a CPU. Unit: ns.
        totals: Time of kernels, on a CPU of ops.
    """

    token: str
    why_not: str = ""
    step: int = 0
    iterations: int = 0
    wall_ns: int = 0
    busy_ns: int = 0
    totals: tuple[KernelTotal, ...] = ()


def request_path(ring: Path) -> Path:
    """Return where the request to the writer of a ring is."""
    return ring.with_name(ring.name.removesuffix(RING_SUFFIX) + REQUEST_SUFFIX)


def answer_path(ring: Path) -> Path:
    """Return where its answer is."""
    return ring.with_name(ring.name.removesuffix(RING_SUFFIX) + ANSWER_SUFFIX)


def write_request(ring: Path, request: Request) -> None:
    """Ask the writer of a ring.

    Raises:
        FileExistsError: If somebody has asked already.
        OSError: If it cannot be written.
    """
    content = {
        "token": request.token,
        "pid": request.pid,
        "path": str(request.path),
        "iterations": request.iterations,
        "what": request.what,
        # As in a ring, where records are cut to fit and what is read is checked.
        "plan": [b64encode(encode(r, _LONGEST_RECORD)[1]).decode() for r in request.plan],
    }
    _write(request_path(ring), content, replace=False)


def read_request(ring: Path) -> Request:
    """Return what the writer of a ring is asked for.

    Raises:
        OSError: If there is no request, or it cannot be read.
        ValueError: If it is not one to be believed.
    """
    content = _read(request_path(ring))
    path = Path(_text(content, "path"))
    iterations = _number(content, "iterations")
    # Relative to which directory? The process that asks and the one that writes have their own.
    if not path.is_absolute() or not 1 <= iterations <= MAX_ITERATIONS:
        msg = f"expected an absolute path and 1 to {MAX_ITERATIONS} iterations, got {str(path)!r} and {iterations}"
        raise ValueError(msg)
    what = _text(content, "what")
    if what not in (TRACE, ERRORS, LAYERS, FOLLOW):
        msg = f"expected {TRACE!r}, {ERRORS!r}, {LAYERS!r} or {FOLLOW!r}, got {what!r:.80}"
        raise ValueError(msg)
    return Request(
        _text(content, "token"),
        _number(content, "pid"),
        path,
        iterations,
        what,
        _plan(content) if what == FOLLOW else (),
    )


def write_answer(ring: Path, answer: Answer) -> None:
    """Answer, in the place of an older answer.

    Raises:
        OSError: If it cannot be written.
    """
    content = {
        "token": answer.token,
        "why_not": _printable(answer.why_not),
        "step": answer.step,
        "iterations": answer.iterations,
        "wall_ns": answer.wall_ns,
        "busy_ns": answer.busy_ns,
        "totals": [list(total) for total in answer.totals[:_MAX_TOTALS]],
    }
    _write(answer_path(ring), content, replace=True)


def read_answer(ring: Path) -> Answer:
    """Return the newest answer of the writer of a ring.

    Raises:
        OSError: If there is none, or it cannot be read.
        ValueError: If it is not one to be believed.
    """
    content = _read(answer_path(ring))
    totals = content.get("totals")
    if not isinstance(totals, list) or len(totals) > _MAX_TOTALS:
        msg = f"expected at most {_MAX_TOTALS} totals, got {type(totals).__name__}"
        raise ValueError(msg)
    return Answer(
        token=_text(content, "token"),
        why_not=_text(content, "why_not"),
        step=_number(content, "step"),
        iterations=_number(content, "iterations"),
        wall_ns=_number(content, "wall_ns"),
        busy_ns=_number(content, "busy_ns"),
        totals=tuple(_total(row) for row in totals),
    )


def withdraw(ring: Path) -> None:
    """Take request and answer away, if they are there."""
    for path in (request_path(ring), answer_path(ring)):
        with suppress(OSError):
            path.unlink()


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)[:_LONGEST_TEXT]


def _total(row: object) -> KernelTotal:
    if isinstance(row, list) and len(row) == 3:
        fields = dict(zip(("unit", "dtype", "nanoseconds"), row, strict=True))
        return KernelTotal(
            _text(fields, "unit"), _text(fields, "dtype"), _number(fields, "nanoseconds")
        )
    msg = f"expected [unit, dtype, nanoseconds], got {row!r:.80}"
    raise ValueError(msg)


def _plan(content: dict[str, Any]) -> tuple[PlanRecord, ...]:
    rows = content.get("plan")
    if (
        not isinstance(rows, list)
        or not 1 <= len(rows) <= MAX_PLANNED
        or not all(isinstance(row, str) for row in rows)
    ):
        given = f"{len(rows)} rows" if isinstance(rows, list) else f"{rows!r:.80}"
        msg = f"expected 1 to {MAX_PLANNED} rows of text, one for each layer of a plan, got {given}"
        raise ValueError(msg)
    records = [decode(RecordKind.PLAN, b64decode(row, validate=True)) for row in rows]
    return tuple(record for record in records if isinstance(record, PlanRecord))


def _text(content: dict[str, Any], name: str) -> str:
    value = content.get(name)
    # Printable: these words are printed on the terminal of whoever asked, and escape sequences act.
    if isinstance(value, str) and len(value) <= 16 * _LONGEST_TEXT and value.isprintable():
        return value
    msg = f"expected printable text under {name!r}, got {value!r:.80}"
    raise ValueError(msg)


def _number(content: dict[str, Any], name: str) -> int:
    value = content.get(name)
    # ``true`` of JSON is an ``int`` of Python, and would count as 1.
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63:
        return value
    msg = f"expected a whole number >= 0 under {name!r}, got {value!r:.80}"
    raise ValueError(msg)


def _write(path: Path, content: dict[str, Any], *, replace: bool) -> None:
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(part, flags, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump(content, file)
        # Under its name only when it is whole: the other side reads whenever it likes.
        if replace:
            part.replace(path)
        else:
            path.hardlink_to(part)  # fails where there is one; rename would replace it
    finally:
        with suppress(FileNotFoundError):
            part.unlink()


def _read(path: Path) -> dict[str, Any]:
    # Not blocking: a pipe under this name must not stop a training.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags), "rb") as file:
        # Of the open file, not of the path: what was checked is then what is read.
        status = os.fstat(file.fileno())
        if not is_trusted(status) or status.st_size > _LONGEST:
            msg = f"expected a private file of uid {os.geteuid()} of at most {_LONGEST} bytes, got mode {stat.filemode(status.st_mode)} of uid {status.st_uid}, {status.st_size} bytes"
            raise ValueError(msg)
        content = parse_json(file.read(_LONGEST))
    if not isinstance(content, dict):
        msg = f"expected a JSON object, got {type(content).__name__}"
        raise ValueError(msg)  # noqa: TRY004 - whatever is wrong with what somebody wrote
    return content


def is_trusted(status: os.stat_result) -> bool:
    """Return whether a file is a regular one of this user's that nobody else may read or write."""
    private = not stat.S_IMODE(status.st_mode) & 0o077
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and private
