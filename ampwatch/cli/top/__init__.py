"""``ampwatch top``: every rank on this machine in a line, trouble first, once a second."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ampwatch.cli.top.cells import Line
    from ampwatch.cli.top.rows import Row

DESCRIPTION = """\
Show how the trainings of this machine go: a line for each rank, trouble first, with what is
wrong, loss scale and loss of late, and the GPU. It asks the daemon that trainings start by
themselves, once a second.

  up, down   choose a rank            Enter  open its findings, with evidence and advice
  f          next finding             Esc    back
  s          sort by trouble, by run and rank, or slowest first
  /          show only the ranks that have some words in their run, host, state or findings
  q          quit
"""

EPILOG = """\
examples:
  ampwatch top
      until q is pressed
  ampwatch top --once
      one table, as plain text; a pipe gets the same
  ampwatch top | grep failing
      for a script

Colours need Rich (pip install 'ampwatch[ui]') and are left out where NO_COLOR is set;
without Rich the rest is the same. A daemon that wants a password gets that of `machine
localhost` in ~/.netrc, or in the file that NETRC names. The exit status is 1 if no daemon serves.
"""

WIDTH = 120
"""Columns of a table that goes into a pipe. Unit: characters."""

MIN_WIDTH = 40


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = subparsers.add_parser(
        "top",
        help="show how all ranks on this machine go, trouble first, live",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--once", action="store_true", help="print one table and end")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Show it.

    Raises:
        SettingsError: If a setting is not usable.
        DaemonError: If no daemon serves, or it refuses.
    """
    from ampwatch.cli.daemon_state import DaemonState, of_ended_runs  # noqa: PLC0415 - --help must be quick
    from ampwatch.settings import Settings  # noqa: PLC0415 - likewise

    settings = Settings.resolve()
    source = DaemonState(settings)

    def read() -> dict[str, Any]:
        return {**source.read(), "ended": of_ended_runs(settings)}

    state = read()
    is_live = sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    if is_live and not args.once:
        from ampwatch.cli.top.live import watch  # noqa: PLC0415 - likewise

        return watch(read, state)
    try:
        columns = shutil.get_terminal_size((WIDTH, 40)).columns
        _say(once(state, max(columns, MIN_WIDTH), is_ascii=is_ascii(sys.stdout)))
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has read enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def once(state: Mapping[str, Any], width: int, *, is_ascii: bool = False) -> str:
    """Return a state as plain text: the table, then the four lines of each run in trouble.

    Args:
        state: That of the daemon; and as ``ended`` what to say of runs that it does not show any more.
        width: Cells of a line.
        is_ascii: Whether only ASCII can be shown.
    """
    from textwrap import wrap  # noqa: PLC0415 - --help must be quick

    from ampwatch.cli.top.cells import clean, fitted, text_of  # noqa: PLC0415 - --help must be quick
    from ampwatch.cli.top.rows import badness_of, lines_of, rows_of  # noqa: PLC0415 - likewise
    from ampwatch.cli.top.story import headline_lines  # noqa: PLC0415 - likewise
    from ampwatch.cli.top.table import head_and_lines  # noqa: PLC0415 - likewise
    from ampwatch.cli.top.view import Order  # noqa: PLC0415 - likewise

    rows = sorted(rows_of(state), key=Order.TROUBLE.key())
    if not rows:
        hint = "; a training that calls ampwatch.monitor() appears here by itself"
        return f"{summary(rows)}{hint}{state.get('ended', '')}"
    head, table = head_and_lines(rows, width, is_ascii=is_ascii)
    lines: list[Line] = [fitted(line, width) for line in (head, *table)]
    for run, told in state["runs"].items():
        level = clean(told.get("level", ""))
        if is_trouble(badness_of(level)):
            lines += [[], *headline_lines(clean(run), level, lines_of(told), width)]
    return "\n".join([*wrap(summary(rows), width), *map(text_of, lines)])


def summary(rows: Sequence[Row]) -> str:
    """Say how many ranks there are and how they go, the worst first."""
    from collections import Counter  # noqa: PLC0415 - as above

    if not rows:
        return "no run"
    ordered = sorted(rows, key=lambda row: row.badness)
    levels = ", ".join(f"{n} {level}" for level, n in Counter(r.level for r in ordered).items())
    runs = len({row.run for row in rows})
    ranks = f"{len(rows)} rank{'s' if len(rows) != 1 else ''}"
    return f"{ranks} of {runs} run{'s' if runs != 1 else ''}: {levels}"


def is_trouble(badness: int) -> bool:
    """Return whether somebody ought to look at a run or a rank."""
    from ampwatch.report.verdict import Level  # noqa: PLC0415 - as above

    return badness <= Level.ATTENTION.badness


def is_ascii(stream: Any) -> bool:
    """Return whether ``stream`` can show nothing but ASCII."""
    from ampwatch.report.sparks import BLOCKS  # noqa: PLC0415 - as above

    try:
        f"{BLOCKS}─".encode(stream.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return True
    return False


def _say(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, errors="replace").decode(encoding))
