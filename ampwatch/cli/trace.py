"""``ampwatch trace``: have a running training profile itself now, and write the trace."""

from __future__ import annotations

import argparse
import gzip
import os
import shutil
from contextlib import ExitStack
from pathlib import Path

from ampwatch.cli.asking import add_choice, ask, choose, empty_file
from ampwatch.cli.output import progress
from ampwatch.errors import AskError
from ampwatch.numerics.written import counted
from ampwatch.wire.ring.requests import Answer

DESCRIPTION = """\
Profile the next iterations of a training that runs under ampwatch with torch.profiler, and write
a Chrome trace: open it in https://ui.perfetto.dev.

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

The exit status is 1, with a message, if there is no trace: another profiler was active, no
iteration ended in time, or the training ended. Then no file is written.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    add = parser.add_argument
    add("output", type=_output, metavar="OUTPUT", help="where to write: FILE.json or FILE.json.gz")
    add(
        "--iterations",
        type=int,
        choices=(1, 2, 3),
        default=1,
        help="iterations to record (default: %(default)s)",
    )
    add_choice(parser)
    add("--force", action="store_true", help="replace a file that is there")


def run(args: argparse.Namespace) -> int:
    """Ask, wait, and say what there is to see.

    Raises:
        AmpwatchError: If there is no trace, saying why, or a setting is not usable.
    """
    output: Path = args.output.absolute()
    if output.exists() and not args.force:
        msg = f"expected a new file, got {str(output)!r}, which exists; --force replaces it"
        raise AskError(msg)
    with ExitStack() as undo:
        reader = choose(undo, args.run, args.rank)
        with progress(f"waiting for an iteration of {reader.identity.run} to end"):
            raw = empty_file(output, undo)
            answer = ask(reader, raw, "trace", args.iterations, args.timeout, undo)
        _finish(raw, output, undo)
    print(f"{output}\n{summary(answer)}")
    return 0


def _finish(raw: Path, output: Path, undo: ExitStack) -> None:
    """Move the trace to its place, compressed if its name says so."""
    done = raw
    try:
        if output.suffix == ".gz":
            done = empty_file(output, undo)
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
        raise AskError(msg) from error


def summary(answer: Answer) -> str:
    """Return what the trace shows, in lines."""
    on_cpu = all(total.unit == "cpu" for total in answer.totals)
    what = "ops on the CPU" if on_cpu else "kernels"
    lines = [
        f"{counted(answer.iterations, 'iteration')} from {answer.step}: {_ms(answer.wall_ns)}, profiled"
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


def _ms(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e6:.2f} ms"


def _output(text: str) -> Path:
    path = Path(text)
    if path.name.endswith((".json", ".json.gz")):
        return path
    msg = f"expected FILE.json or FILE.json.gz, got {text!r}"
    raise argparse.ArgumentTypeError(msg)
