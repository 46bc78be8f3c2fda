"""How a command asks a running training of this machine for something, and waits for the answer."""

from __future__ import annotations

import argparse
import os
import secrets
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from ampwatch.cli.output import progress, seconds
from ampwatch.errors import AskError, RingError, did_you_mean
from ampwatch.host.daemon.discovery import find_rings
from ampwatch.runtime import ring_directories
from ampwatch.settings import Settings
from ampwatch.wire.records import PlanRecord
from ampwatch.wire.ring import RingReader, requests

POLL_SECONDS = 0.05
TIMEOUT_SECONDS = 120.0


def add_choice(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which training is asked, and how long it is waited for."""
    add = parser.add_argument
    add("--run", metavar="NAME", help="name of the run, if there are several")
    add("--rank", type=int, metavar="N", help="rank, if the run has several on this machine")
    add(
        "--timeout",
        type=seconds,
        default=TIMEOUT_SECONDS,
        metavar="S",
        help="give up after S seconds (default: %(default)g)",
    )


def choose(undo: ExitStack, run_name: str | None, rank: int | None) -> RingReader:
    """Return the ring of the one training of this user that is meant and runs.

    Raises:
        AskError: If there is none, or more than one.
    """
    settings = Settings.resolve()
    directories = ring_directories(settings.ring_dir, settings.runtime_dir)
    readers = []
    for path in find_rings(directories, any_user=False).rings:
        with suppress(RingError):  # gone, or of another version: not one that could answer
            reader = RingReader(path)
            undo.callback(reader.close)
            if reader.writer_alive():
                readers.append(reader)
    matching = [
        reader
        for reader in readers
        if run_name in (None, reader.identity.run) and rank in (None, reader.identity.rank)
    ]
    if len(matching) == 1:
        return matching[0]
    asked = " ".join(
        f"{option} {value}"
        for option, value in (("--run", run_name), ("--rank", rank))
        if value is not None
    )
    those = "\n".join(f"  {_name(reader)}" for reader in matching or readers)
    if not readers:
        msg = (
            "no training of this user runs under ampwatch.monitor() with a ring;"
            " `ampwatch doctor` shows where rings are"
        )
    elif not matching:
        near = did_you_mean(run_name or "", {reader.identity.run for reader in readers})
        msg = f"there is no training for {asked}, only:\n{those}{near}"
    else:
        msg = f"{len(matching)} trainings match; choose one by --run and --rank:\n{those}"
    raise AskError(msg)


def _name(reader: RingReader) -> str:
    who = reader.identity
    return f"--run {who.run} --rank {who.rank}  (process {who.pid})"


def answer_of(
    reader: RingReader, what: str, timeout_s: float, plan: Sequence[PlanRecord] = ()
) -> tuple[bytes, requests.Answer]:
    """Ask a training for something, as ``ask`` does; return what it has written, and its answer.

    Raises:
        AskError: If it cannot be asked, does not answer, says why not, or its answer cannot be read.
    """
    run = reader.identity.run
    doing = f"having {run} follow the plan" if plan else f"waiting for an iteration of {run} to end"
    with ExitStack() as undo, progress(doing):
        # Beside the ring, which both can reach: a container may have a /tmp of its own.
        name = "errors.json" if what == "errors" else "plan.json"
        raw = empty_file(reader.path.with_name(name), undo)
        answer = ask(reader, raw, what, 1, timeout_s, undo, plan=plan)
        try:
            return raw.read_bytes(), answer
        except OSError as error:
            msg = f"cannot read the answer of the training: {error}"
            raise AskError(msg) from error


def ask(
    reader: RingReader,
    raw: Path,
    what: str,
    iterations: int,
    timeout_s: float,
    undo: ExitStack,
    *,
    plan: Sequence[PlanRecord] = (),
) -> requests.Answer:
    """Ask a training for something, wait for its answer, and return it.

    Args:
        reader: Of its ring.
        raw: An empty file of this user, over which it writes what is asked for; ``follow`` leaves it empty.
        what: ``trace``, ``errors``, ``layers`` or ``follow``.
        iterations: How many iterations it is about.
        timeout_s: How long it is waited for. Unit: s.
        undo: Takes the request back in the end.
        plan: Of ``follow``: the precision plan, layer by layer.

    Raises:
        AskError: If it cannot be asked, does not answer, or says why not.
    """
    request = requests.Request(
        secrets.token_hex(8), os.getpid(), raw, iterations, what, tuple(plan)
    )
    _make_room(reader.path)
    # Before it is written: Ctrl-C may come right after.
    undo.callback(_take_back, reader.path, request.token)
    try:
        requests.write_request(reader.path, request)
    except FileExistsError:
        msg = f"another command is waiting for an answer of {_name(reader)}; try again later"
        raise AskError(msg) from None
    except OSError as error:
        msg = f"cannot ask the training, beside its ring {str(reader.path)!r}: {error}"
        raise AskError(msg) from error
    noun = _NOUNS[what]
    answer = _wait(reader, request.token, timeout_s, noun)
    if answer.why_not:
        msg = f"no {noun}: {answer.why_not}"
        raise AskError(msg)
    return answer


_NOUNS = {
    "trace": "trace",
    "errors": "error budget",
    "layers": "precision plan",
    "follow": "word that the plan is followed",
}


def _take_back(ring: Path, token: str) -> None:
    """Take a request and its answer back, unless the request that is there is somebody else's."""
    try:
        is_ours = requests.read_request(ring).token == token
    except FileNotFoundError:  # the training has taken it
        is_ours = True
    except (OSError, ValueError):
        is_ours = False
    if is_ours:
        requests.withdraw(ring)


def _make_room(ring: Path) -> None:
    """Take away the request of somebody who is no more."""
    with suppress(OSError, ValueError):
        # Signal 0 only asks whether the process exists. One of another user raises PermissionError,
        # an OSError: it lives, and its request stays.
        try:
            os.kill(requests.read_request(ring).pid, 0)
        except ProcessLookupError:
            requests.withdraw(ring)


def empty_file(output: Path, undo: ExitStack) -> Path:
    """Return a new file beside ``output``, on the same file system; it goes in the end.

    Raises:
        AskError: If there can be none.
    """
    try:
        descriptor, name = tempfile.mkstemp(
            prefix=f".{output.name}.", suffix=".part", dir=output.parent
        )
    except OSError as error:
        msg = f"cannot write {output.name!r}: {error}"
        raise AskError(msg) from error
    os.close(descriptor)
    part = Path(name)
    undo.callback(part.unlink, missing_ok=True)
    return part


def _wait(reader: RingReader, token: str, timeout_s: float, noun: str) -> requests.Answer:
    until = time.monotonic() + timeout_s
    while True:
        lives = reader.writer_alive()  # before the answer: what it wrote at last is there then
        with suppress(OSError, ValueError):
            answer = requests.read_answer(reader.path)
            if answer.token == token:
                return answer
        if not lives:
            msg = f"no {noun}: the training {_name(reader)} has ended"
            raise AskError(msg)
        if time.monotonic() > until:
            msg = (
                f"no {noun} within {timeout_s:g} s: the training {_name(reader)} did not answer. It"
                " does between two iterations, at level standard or deep; --timeout waits longer"
            )
            raise AskError(msg)
        time.sleep(POLL_SECONDS)
