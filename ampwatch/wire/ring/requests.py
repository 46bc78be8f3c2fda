"""Requests to a training, for a trace for example, from another process: two small files beside the ring.

The request stays until it is answered; whoever asked takes it back by removing it, and then
nothing is written. Both files are MessagePack, private to the user, made elsewhere and moved
into place. They are believed only if they belong to this user and nobody else may write them.
"""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path  # noqa: TC003 - read by msgspec
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct, msgpack, structs

from ampwatch.runtime import RING_SUFFIX
from ampwatch.wire.records import MAX_PLANNED, KernelTotal, PlanRecord
from ampwatch.wire.records.fields import Count  # noqa: TC001 - likewise
from ampwatch.wire.ring.encoding import decode, encode
from ampwatch.wire.ring.text import check_names, refuse

REQUEST_SUFFIX = ".request"
ANSWER_SUFFIX = ".answer"

MAX_ITERATIONS = 3
_LONGEST = 1 << 20
_LONGEST_RECORD = 1024
_MAX_TOTALS = 256
_LONGEST_TEXT = 512

_T = TypeVar("_T", bound=Struct)
_Text = Annotated[str, Meta(max_length=16 * _LONGEST_TEXT)]


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

    token: _Text
    pid: Count
    path: Path
    iterations: Annotated[int, Meta(ge=1, le=MAX_ITERATIONS)]
    what: Annotated[str, Meta(pattern=f"^({TRACE}|{ERRORS}|{LAYERS}|{FOLLOW})$")] = TRACE
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

    token: _Text
    why_not: _Text = ""
    step: Count = 0
    iterations: Count = 0
    wall_ns: Count = 0
    busy_ns: Count = 0
    totals: Annotated[tuple[KernelTotal, ...], Meta(max_length=_MAX_TOTALS)] = ()


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
    _write(request_path(ring), request, replace=False)


def read_request(ring: Path) -> Request:
    """Return what the writer of a ring is asked for.

    Raises:
        OSError: If there is no request, or it cannot be read.
        ValueError: If it is not one to be believed.
    """
    request = _read(request_path(ring), Request)
    # Relative to which directory? The process that asks and the one that writes have their own.
    if not request.path.is_absolute():
        refuse("an absolute path", str(request.path))
    check_names(request.token, str(request.path))
    if request.what != FOLLOW:
        return structs.replace(request, plan=())
    if not 1 <= len(request.plan) <= MAX_PLANNED:
        rows = f"1 to {MAX_PLANNED} rows, one for each layer of a plan"
        refuse(rows, f"{len(request.plan)} rows")
    # As from a ring, where texts are cut and harmless, and what is read is checked.
    plan = [decode(*encode(record, _LONGEST_RECORD)) for record in request.plan]
    return structs.replace(request, plan=tuple(plan))


def write_answer(ring: Path, answer: Answer) -> None:
    """Answer, in the place of an older answer.

    Raises:
        OSError: If it cannot be written.
    """
    why_not = "".join(c if c.isprintable() else " " for c in answer.why_not)[:_LONGEST_TEXT]
    totals = answer.totals[:_MAX_TOTALS]
    _write(answer_path(ring), structs.replace(answer, why_not=why_not, totals=totals), replace=True)


def read_answer(ring: Path) -> Answer:
    """Return the newest answer of the writer of a ring.

    Raises:
        OSError: If there is none, or it cannot be read.
        ValueError: If it is not one to be believed.
    """
    answer = _read(answer_path(ring), Answer)
    # These words are printed on the terminal of whoever asked, and escape sequences act.
    check_names(answer.token, answer.why_not, *(total.dtype for total in answer.totals))
    return answer


def withdraw(ring: Path) -> None:
    """Take request and answer away, if they are there."""
    for path in (request_path(ring), answer_path(ring)):
        with suppress(OSError):
            path.unlink()


def _write(path: Path, content: Struct, *, replace: bool) -> None:
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(part, flags, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgpack.encode(content, enc_hook=str))
        # Under its name only when it is whole: the other side reads whenever it likes.
        if replace:
            part.replace(path)
        else:
            path.hardlink_to(part)  # fails where there is one; rename would replace it
    finally:
        with suppress(FileNotFoundError):
            part.unlink()


def _read(path: Path, kind: type[_T]) -> _T:
    # Not blocking: a pipe under this name must not stop a training.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags), "rb") as file:
        # Of the open file, not of the path: what was checked is then what is read.
        status = os.fstat(file.fileno())
        if not is_trusted(status) or status.st_size > _LONGEST:
            msg = f"expected a private file of uid {os.geteuid()} of at most {_LONGEST} bytes, got mode {stat.filemode(status.st_mode)} of uid {status.st_uid}, {status.st_size} bytes"
            raise ValueError(msg)
        content = file.read(_LONGEST)
    try:
        return msgpack.decode(content, type=kind, dec_hook=_path)
    except RecursionError as error:
        raise ValueError(str(error)) from None


def _path(kind: Any, value: Any) -> Path:
    path: Path = kind(value) if isinstance(value, str) else refuse("a path", value)
    return path


def is_trusted(status: os.stat_result) -> bool:
    """Return whether a file is a regular one of this user's that nobody else may read or write."""
    private = not stat.S_IMODE(status.st_mode) & 0o077
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and private
