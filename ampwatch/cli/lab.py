"""``ampwatch lab``: the verbs of the laboratory."""

from __future__ import annotations

import argparse

from ampwatch import laboratory

DESCRIPTION = """\
The laboratory: what a training would lose in other number formats, op by op, and where two
runs of the same batches part.

It is off by default. ampwatch.monitor(model, scaler, lab=True), or AMPWATCH_LAB=1 in the
environment of the training, turns it on.
"""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line, and those that stood there without it before."""
    parser = subparsers.add_parser(
        "lab",
        help="plan formats, show where errors appear, compare two runs",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )

    def show_help(_args: argparse.Namespace) -> int:
        parser.print_help()
        return 0

    parser.set_defaults(func=show_help)
    verbs = parser.add_subparsers(title="commands", metavar="<command>")
    for verb in laboratory.VERBS:
        module = laboratory.load(f"cli.{verb}")
        module.register(verbs, help=module.HELP)
        # Their old place, until the next release; help does not list it.
        module.register(subparsers)
