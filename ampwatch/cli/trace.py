"""``ampwatch trace``: have a running training profile itself now, and write the trace."""

from __future__ import annotations

import argparse
import gzip
import math
import os
import secrets
import shutil
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ampwatch.errors import TraceError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.wire.ring import RingReader
    from ampwatch.wire.ring.requests import TraceAnswer

DESCRIPTION = """\
Ask a training that runs under ampwatch to profile its next iterations, and write what
torch.profiler has seen as a Chrome trace: open it in https://ui.perfetto.dev.

The training has to be of this user, on this machine, at level standard or deep, and with a
ring (not serve=False). It warms the profiler up for one iteration, records one to three,
waits for the device twice, and goes on. Nothing in its program changes.
"""

EPILOG = """\
examples:
  ampwatch trace trace.json
      the only training of this user
  ampwatch trace --run gpt --rank 3 --iterations 3 trace.json.gz
      one of several; compressed

It ends with status 1 and a sentence if there is no trace: another profiler was active, no
iteration ended in time, the training ended. No file is left behind then.
"""

POLL_SECONDS = 0.05
TIMEOUT_SECONDS = 120.0


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = subparsers.add_parser(
        "trace",
        help="have a running training profile itself now, and write the trace",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("output", type=_output, metavar="OUTPUT", help="where to write: FILE.json or FILE.json.gz")
    add("--run", metavar="NAME", help="name of the run, if there are several")
    add("--rank", type=int, metavar="N", help="rank, if the run has several on this machine")
    add(
        "--iterations",
        type=int,
        choices=(1, 2, 3),
        default=1,
        help="iterations to record (default: %(default)s)",
    )
    add(
        "--timeout",
        type=_seconds,
        default=TIMEOUT_SECONDS,
        metavar="S",
        help="give up after S seconds (default: %(default)g)",
    )
    add("--force", action="store_true", help="replace a file that is there")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Ask, wait, and say what there is to see.

    Raises:
        AmpwatchError: If there is no trace, saying why, or a setting is not usable.
    """
    from ampwatch.cli.progress import progress  # noqa: PLC0415 - not for --help

    output: Path = args.output.absolute()
    if output.exists() and not args.force:
        msg = f"expected a new file, got {str(output)!r}, which exists; --force replaces it"
        raise TraceError(msg)
    with ExitStack() as undo:
        reader = _choose(_readers(undo), args.run, args.rank)
        with progress(f"waiting for an iteration of {reader.identity.run} to end"):
            answer = _ask(reader, output, args, undo)
    print(f"{output}\n{summary(answer)}")
    return 0


def _readers(undo: ExitStack) -> list[RingReader]:
    """Return the rings of this user whose training runs."""
    from ampwatch.errors import RingError  # noqa: PLC0415
    from ampwatch.host.daemon.discovery import find_rings  # noqa: PLC0415 - not for --help
    from ampwatch.runtime import ring_directories  # noqa: PLC0415
    from ampwatch.settings import Settings  # noqa: PLC0415
    from ampwatch.wire.ring import RingReader  # noqa: PLC0415

    settings = Settings.resolve()
    directories = ring_directories(settings.ring_dir, settings.runtime_dir)
    readers = []
    for path in find_rings(directories, any_user=False).rings:
        with suppress(RingError):  # gone, or of another version: not one that could answer
            reader = RingReader(path)
            undo.callback(reader.close)
            if reader.writer_alive():
                readers.append(reader)
    return readers


def _choose(readers: Sequence[RingReader], run_name: str | None, rank: int | None) -> RingReader:
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
            "expected a training of this user that runs under ampwatch.monitor() with a ring,"
            " found none; `ampwatch doctor` says where rings are looked for"
        )
    elif not matching:
        near = did_you_mean(run_name or "", {reader.identity.run for reader in readers})
        msg = f"expected a training for {asked}, found only:\n{those}{near}"
    else:
        msg = f"expected one training, found {len(matching)}; choose by --run and --rank:\n{those}"
    raise TraceError(msg)


def _name(reader: RingReader) -> str:
    who = reader.identity
    return f"--run {who.run} --rank {who.rank}  (process {who.pid})"


def _ask(
    reader: RingReader, output: Path, args: argparse.Namespace, undo: ExitStack
) -> TraceAnswer:
    """Return the answer of the training; its trace is at ``output`` then."""
    from ampwatch.wire.ring.requests import TraceRequest, withdraw, write_request  # noqa: PLC0415

    raw = _empty_file(output, undo)
    request = TraceRequest(secrets.token_hex(8), os.getpid(), raw, args.iterations)
    _make_room(reader.path)
    try:
        write_request(reader.path, request)
    except FileExistsError:
        msg = f"expected nobody else to wait for a trace of {_name(reader)}, but somebody does; try again"
        raise TraceError(msg) from None
    except OSError as error:
        msg = f"cannot ask the training, beside its ring {str(reader.path)!r}: {error}"
        raise TraceError(msg) from error
    undo.callback(withdraw, reader.path)
    answer = _wait(reader, request.token, args.timeout)
    if answer.why_not:
        msg = f"no trace: {answer.why_not}"
        raise TraceError(msg)
    _finish(raw, output, undo)
    return answer


def _make_room(ring: Path) -> None:
    """Take away the request of somebody who is no more."""
    from ampwatch.wire.ring.requests import read_request, withdraw  # noqa: PLC0415

    with suppress(OSError, ValueError):
        # Signal 0 only asks whether the process exists. One of another user raises PermissionError,
        # an OSError: it lives, and its request stays.
        try:
            os.kill(read_request(ring).pid, 0)
        except ProcessLookupError:
            withdraw(ring)


def _empty_file(output: Path, undo: ExitStack) -> Path:
    """Return a new file beside ``output``, on the same file system; it goes in the end."""
    try:
        descriptor, name = tempfile.mkstemp(
            prefix=f".{output.name}.", suffix=".part", dir=output.parent
        )
    except OSError as error:
        msg = f"expected a directory to write {output.name!r} to, got: {error}"
        raise TraceError(msg) from error
    os.close(descriptor)
    part = Path(name)
    undo.callback(part.unlink, missing_ok=True)
    return part


def _wait(reader: RingReader, token: str, timeout_s: float) -> TraceAnswer:
    from ampwatch.wire.ring.requests import read_answer  # noqa: PLC0415

    until = time.monotonic() + timeout_s
    while True:
        lives = reader.writer_alive()  # before the answer: what it wrote at last is there then
        with suppress(OSError, ValueError):
            answer = read_answer(reader.path)
            if answer.token == token:
                return answer
        if not lives:
            msg = f"no trace: the training {_name(reader)} has ended"
            raise TraceError(msg)
        if time.monotonic() > until:
            msg = (
                f"no trace within {timeout_s:g} s: the training {_name(reader)} did not answer. It"
                " does between two iterations, at level standard or deep; --timeout waits longer"
            )
            raise TraceError(msg)
        time.sleep(POLL_SECONDS)


def _finish(raw: Path, output: Path, undo: ExitStack) -> None:
    """Move the trace to its place, compressed if its name says so."""
    done = raw
    try:
        if output.suffix == ".gz":
            done = _empty_file(output, undo)
            with raw.open("rb") as plain, gzip.open(done, "wb", compresslevel=6) as packed:
                shutil.copyfileobj(plain, packed)
        # mkstemp makes files that nobody else can read; the trace gets the mode of any other file.
        # The umask can only be read by setting it.
        umask = os.umask(0)
        os.umask(umask)
        done.chmod(0o666 & ~umask)
        done.replace(output)
    except OSError as error:
        msg = f"cannot write {str(output)!r}: {error}"
        raise TraceError(msg) from error


def summary(answer: TraceAnswer) -> str:
    """Return what the trace shows, in lines."""
    on_cpu = all(total.unit == "cpu" for total in answer.totals)
    what = "ops on the CPU" if on_cpu else "kernels"
    lines = [
        f"{_number(answer.iterations, 'iteration')} from {answer.step}: {_ms(answer.wall_ns)}, profiled"
    ]
    if not answer.totals:
        return "\n".join([*lines, f"no {what} were recorded: the trace has lost data"])
    if not on_cpu:
        lines.append(f"the GPU was busy for {_ms(answer.busy_ns)}")
    whole = sum(total.nanoseconds for total in answer.totals) or 1
    lines.append(f"{'unit':<9}{'dtype':<12}{'time':>12}{'share':>8}")
    lines += [
        f"{unit:<9}{dtype or '-':<12}{_ms(ns):>12}{ns / whole:>8.1%}"
        for unit, dtype, ns in answer.totals
    ]
    return "\n".join(lines)


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count != 1 else ''}"


def _ms(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e6:.2f} ms"


def _output(text: str) -> Path:
    path = Path(text)
    if path.name.endswith((".json", ".json.gz")):
        return path
    msg = f"expected FILE.json or FILE.json.gz, got {text!r}"
    raise argparse.ArgumentTypeError(msg)


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not number > 0:
        msg = f"expected a number of seconds > 0, got {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return number
