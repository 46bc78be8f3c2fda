"""``ampwatch lab diff``: two runs compared."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ampwatch.cli.output import encodable, piped, progress, width
from ampwatch.lab.difference.ranks import compare_runs
from ampwatch.lab.difference.words import difference_document, render_difference
from ampwatch.lab.tape.files import find_tapes

DESCRIPTION = """\
Compare two runs trained on the same batches: float32 against float16,
before and after a change of library, one GPU against eight. Say at which step, module and op
they first differ by more than their formats explain, and how that spreads.

Both have to be recorded: ampwatch.monitor(model, scaler, lab=True, record_dir="DIR"), or
AMPWATCH_LAB=1 AMPWATCH_RECORD_DIR=DIR in the environment. Each leaves a tape in DIR. No daemon is needed,
and tapes are read on any machine; nothing in them is executed.
"""

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
    with progress("comparing the tapes"):
        runs = compare_runs(*(find_tapes(Path(asked)) for asked in (args.a, args.b)))
    with piped():
        if args.json:
            print(json.dumps(difference_document(runs), indent=2))
        else:
            text = render_difference(runs, width())
            # Names of modules may be any text.
            shown = (
                c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text
            )
            print(encodable("".join(shown)), end="")
    return 0 if runs.is_explained else DIFFERENT
