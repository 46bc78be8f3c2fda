"""``ampwatch lab``: the verbs of the laboratory."""

from __future__ import annotations

import argparse

from ampwatch import laboratory
from ampwatch.cli import add_verb

DESCRIPTION = """\
The laboratory: the error of a training in other number formats, op by op, and the first
difference between two runs of the same batches.

It is off by default. ampwatch.monitor(model, scaler, lab=True), or AMPWATCH_LAB=1 in the
environment of the training, turns it on.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verbs of the verb."""
    verbs = parser.add_subparsers(title="commands", metavar="<command>")
    for verb, text in laboratory.VERBS.items():
        add_verb(verbs.add_parser(verb, help=text), laboratory.load(f"cli.{verb}"))
