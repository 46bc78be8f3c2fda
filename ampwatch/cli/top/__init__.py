"""``ampwatch top``: all runs on this machine, a line for each rank."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import sys

from ampwatch.cli import daemon_state
from ampwatch.cli.output import MIN_WIDTH, encodable, piped
from ampwatch.cli.top.table import clean, once
from ampwatch.report.rank_list import RankList
from ampwatch.settings import Settings

DESCRIPTION = """\
Show all runs on this machine: one line for each rank, worst first, with its finding, its recent
loss scale and loss, and its GPU. The daemon, which a training starts by itself, is read once a
second.

  up, down   choose a rank            Enter  open its findings, with evidence and advice
  f          next rank with a finding, in an open rank the next finding
  Esc        back
  s          sort by severity, by run and rank, or slowest first
  /          filter: show only ranks whose run, host, state or findings contain some words
  q          quit
"""

EPILOG = """\
examples:
  ampwatch top
      until q is pressed
  ampwatch top --once
      one table, as plain text; so does a pipe
  ampwatch top | grep failing
      for a script

The live table needs Rich (pip install 'ampwatch[ui]'); without Rich one table is printed. Colours
are off where NO_COLOR is set. If the daemon asks for a password, that of `machine localhost` in
~/.netrc, or in the file that NETRC names, is sent. The exit status is 1 if no daemon serves.
"""

WIDTH = 120
"""Columns of a table that goes into a pipe. Unit: characters."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    parser.add_argument("--once", action="store_true", help="print one table and end")


def run(args: argparse.Namespace) -> int:
    """Show it.

    Raises:
        SettingsError: If a setting is not usable.
        DaemonError: If no daemon serves, or it refuses.
    """
    settings = Settings.resolve()

    def read() -> tuple[RankList, str]:
        return daemon_state.read(settings, clean), daemon_state.of_ended_runs(settings)

    first = read()
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    if is_terminal and not args.once:
        if importlib.util.find_spec("rich") is not None:
            from ampwatch.cli.top.live import watch  # noqa: PLC0415 - an extra

            return watch(read, first)
        print("ampwatch: the live table needs Rich: pip install 'ampwatch[ui]'", file=sys.stderr)
    with piped():
        width = max(shutil.get_terminal_size((WIDTH, 40)).columns, MIN_WIDTH)
        print(encodable(once(*first, width)))
    return 0
