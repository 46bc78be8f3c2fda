"""``ampwatch lab diff``: two runs compared."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

DESCRIPTION = """\
Compare two runs trained on the same batches: float32 against float16,
before and after a change of library, one GPU against eight. Say at which step, module and op
they first differ by more than their formats explain, and how that spreads.

Both have to be recorded: ampwatch.monitor(model, scaler, lab=True, record_dir="DIR"), or
AMPWATCH_LAB=1 AMPWATCH_RECORD_DIR=DIR in the environment. Each leaves a tape in DIR. No daemon is needed,
and tapes are read on any machine; nothing in them is executed.
"""

HELP = "say where two runs of the same batches first differ"

EPILOG = """\
examples:
  ampwatch lab diff float32 float16
      the newest run in each of two directories, with all of its ranks
  ampwatch lab diff old.tape new.tape --json
      everything that was compared, for programs
  ampwatch lab diff one-gpu eight-gpus
      all ranks of both: rank by rank where there are as many, else by what all ranks have alike

The exit status is 0 if they are the same or differ as their formats explain, 3 if they differ
by more, and 1 if they cannot be compared.
"""

DIFFERENT = 3
MAX_WIDTH = 100
MIN_WIDTH = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    add = parser.add_argument
    add("a", metavar="A", help="a tape, or a directory of tapes")
    add("b", metavar="B", help="the run to compare it with")
    add("--json", action="store_true", help="everything, for programs")


def run(args: argparse.Namespace) -> int:
    """Print the difference.

    Raises:
        DiffError: If the runs cannot be compared.
    """
    from ampwatch.cli.progress import progress  # noqa: PLC0415 - --help must be quick
    from ampwatch.lab.difference.ranks import compare_runs  # noqa: PLC0415 - likewise
    from ampwatch.lab.difference.words import difference_document, render_difference  # noqa: PLC0415
    from ampwatch.lab.tape.files import find_tapes  # noqa: PLC0415 - likewise

    with progress("comparing the tapes"):
        runs = compare_runs(*(find_tapes(Path(asked)) for asked in (args.a, args.b)))
    try:
        if args.json:
            print(json.dumps(difference_document(runs), indent=2))
        else:
            columns = shutil.get_terminal_size((MAX_WIDTH, 40)).columns
            width = min(max(columns, MIN_WIDTH), MAX_WIDTH)
            print(_printable(render_difference(runs, width)), end="")
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has read enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0 if runs.is_explained else DIFFERENT


def _printable(text: str) -> str:
    """Return ``text`` as the terminal can show it: names of modules may be any text."""
    encoding = sys.stdout.encoding or "utf-8"
    plain = "".join(
        c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text
    )
    return plain.encode(encoding, errors="replace").decode(encoding)
