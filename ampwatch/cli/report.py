"""``ampwatch report``: what went wrong in a run, in words, also after it is gone."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ampwatch.cli.output import encodable, piped
from ampwatch.numerics.written import counted

if TYPE_CHECKING:
    from ampwatch.report.gate import Check
    from ampwatch.settings import Settings
    from ampwatch.wire.blackbox import Box

HELP = "report what went wrong in a run, during it or afterwards"

DESCRIPTION = """\
Report what went wrong in a training: what to do first, what broke, where, since when, and how
sure that is.

A run with a finding writes a report at once, and again when it ends. For a run that was killed,
ran out of memory or hangs, the rest is read from its ring in shared memory. Of a run that ended
without findings the daemon writes one. A report is a JSON file: copy it to any machine and name it here. No daemon is
needed, and nothing is changed.
"""

EPILOG = """\
examples:
  ampwatch report
      the run that was started last
  ampwatch report gpt --html gpt.html
      the last run of that name, as one HTML file with pictures
  ampwatch report --short
      on one screen: state, cause, place, what to do first; other findings are counted
  ampwatch report --all
      one line for each of the newest 50 runs that left a report
  ampwatch report gpt --json > gpt.json
      everything that is known of all its ranks
  ampwatch report gpt.json
      on any machine
  ampwatch report gpt.json --check "skips<1%, scale>=1024, findings=0"
      in CI: exit status 0 if each holds on each rank, else 1 and the reason
"""

MAX_LISTED = 50
"""Runs that ``--all`` lists; ``--short`` and ``--json`` have all of them."""

MAX_WIDTH = 100
MIN_WIDTH = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    add = parser.add_argument
    add(
        "run",
        nargs="?",
        metavar="RUN|PATH",
        help="name of the run, or a report, a directory of reports (with a slash: ./reports) or a"
        " ring; the run that was started last if not given",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="everything, for programs")
    how.add_argument("--short", action="store_true", help="on one screen; with --all for each run")
    how.add_argument(
        "--check",
        type=_checks,
        metavar="LIMITS",
        help="whether numbers keep to limits: skips, scale, findings, critical, nonfinite, or keys of"
        " `watch.metrics()`",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--html", metavar="OUT", help="write a page of its own to OUT")
    which.add_argument(
        "--all", action="store_true", help="a line for each run instead of the newest run"
    )


def _checks(expression: str) -> list[Check]:
    """Return what ``--check`` asks for; argparse says what is wrong with it, and ends with 2."""
    from ampwatch.errors import SettingsError  # noqa: PLC0415 - --help must be quick
    from ampwatch.report.gate import parse  # noqa: PLC0415 - likewise

    try:
        return parse(expression)
    except SettingsError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run(args: argparse.Namespace) -> int:
    """Print the report, or what came of the checks; return the exit status.

    Raises:
        SettingsError: If a setting is not usable.
        ReportError: If there is nothing to report on, or the page cannot be written.
    """
    if args.check and args.html:
        args.parser.error("expected --check without --html: write the page in a run of its own")
    if args.check:
        return _check(args)
    with piped():
        _print_report(args)
    return 0


def _check(args: argparse.Namespace) -> int:
    """Print whether the checks hold, and of a run in which one does not what went wrong."""
    from ampwatch.host.daemon.leftovers import jobs  # noqa: PLC0415 - as above
    from ampwatch.report.gate import gate  # noqa: PLC0415 - likewise

    found = jobs(boxes_of(args.run))
    held = True
    with piped():
        for job in found if args.all else found[-1:]:
            holds, text = gate(args.check, job)
            held &= holds
            print(encodable(text), end="")
            if not holds and any(box.has_alarm for box in job):
                print(f"\n{_short(job)}", end="")
    return 0 if held else 1


def _print_report(args: argparse.Namespace) -> None:
    from ampwatch.cli.progress import progress  # noqa: PLC0415 - likewise
    from ampwatch.host.daemon.leftovers import jobs  # noqa: PLC0415 - likewise
    from ampwatch.report.judged_boxes import render_json  # noqa: PLC0415 - likewise
    from ampwatch.wire.blackbox.document import to_json  # noqa: PLC0415 - --help must be quick

    with progress("reading what runs have left"):
        found = jobs(boxes_of(args.run))
    if args.all:
        if args.json:
            print(to_json(box for job in found for box in job))
        elif args.short:
            print("\n".join(map(_short, reversed(found))), end="")
        else:
            print("\n".join(_listed(found)))
        return
    newest = found[-1]
    if args.json:
        print(render_json(newest))
    if args.html:
        _write_page(args.html, newest)
    if args.short:
        _print_short(newest, others=found[:-1])
    elif not (args.html or args.json):
        _print_text(newest, others=found[:-1])


def boxes_of(asked: str | None) -> list[Box]:
    """Return what there is of a run, or in a path.

    Args:
        asked: Name of the run or path; of all runs if ``None``.

    Raises:
        ReportError: If there is nothing.
    """
    from ampwatch.host.daemon.leftovers import find_leftovers, read_path  # noqa: PLC0415 - as above
    from ampwatch.settings import Settings  # noqa: PLC0415 - likewise

    if asked is not None and is_path(asked):
        return read_path(Path(asked))
    settings = Settings.resolve()
    leftovers = find_leftovers(settings, asked)
    for problem in leftovers.problems:
        print(f"ampwatch: {problem}", file=sys.stderr)
    if not leftovers.boxes:
        _nothing(asked, settings)
    return leftovers.boxes


def is_path(asked: str) -> bool:
    """Return whether ``asked`` is a path: runs are mostly called like a directory that is there, too."""
    path = Path(asked)
    if path.is_dir():
        return "/" in asked
    return path.exists() or path.suffix in (".json", ".ring")


def _nothing(asked: str | None, settings: Settings) -> NoReturn:
    from ampwatch.errors import ReportError, did_you_mean  # noqa: PLC0415 - likewise
    from ampwatch.host.daemon.leftovers import find_leftovers  # noqa: PLC0415 - likewise
    from ampwatch.runtime import ring_directories  # noqa: PLC0415 - likewise
    from ampwatch.wire.blackbox.files import report_directory  # noqa: PLC0415 - as above

    places = [report_directory(settings.report_dir)]
    places += ring_directories(settings.ring_dir, settings.runtime_dir)
    where = ", ".join(map(str, places))
    if asked is None:
        msg = f"no report and no running training in {where}; without a daemon a run that ended well leaves none"
        raise ReportError(msg)
    others = {box.identity.run for box in find_leftovers(settings).boxes}
    names = f"only {', '.join(sorted(others))}" if others else "nor any other"
    names += f"; to read the directory, write ./{asked}" if Path(asked).is_dir() else ""
    msg = f"no run or file {asked!r} in {where}, {names}; without a daemon a run that ended well leaves none{did_you_mean(asked, others)}"
    raise ReportError(msg)


def _print_text(job: list[Box], others: list[list[Box]]) -> None:
    from ampwatch.report.report import render_boxes  # noqa: PLC0415 - as above

    print(encodable(render_boxes(job, _width())), end="")
    _print_others(others)


def _width() -> int:
    columns = shutil.get_terminal_size((MAX_WIDTH, 40)).columns
    return min(max(columns, MIN_WIDTH), MAX_WIDTH)


def _print_others(others: list[list[Box]]) -> None:
    if others:
        print(f"\n{counted(len(others), 'earlier run')}: ampwatch report --all")


def _print_short(job: list[Box], others: list[list[Box]]) -> None:
    from ampwatch.report.short import INDENT  # noqa: PLC0415 - as above

    print(_short(job), end="")
    if any(box.findings for box in job):
        more = f"ampwatch explain --run {shlex.quote(job[0].identity.run)}"
        print(encodable(f"{'more':<{INDENT}}{more}"))
    _print_others(others)


def _short(job: list[Box]) -> str:
    """Return the report of one run in some ten lines."""
    from ampwatch.report.short import render_short  # noqa: PLC0415 - as above

    return encodable(render_short(job, time.time(), _width()))


def _listed(found: list[list[Box]]) -> list[str]:
    """Return two lines for each of the newest jobs, and how many came before."""
    from ampwatch.report.html_report import when  # noqa: PLC0415 - as above
    from ampwatch.report.run_list import row_of  # noqa: PLC0415 - likewise

    lines = []
    for row in map(row_of, reversed(found[-MAX_LISTED:])):
        kinds = ", ".join(row.kinds) or "no finding"
        ranks = f" ({row.ranks} ranks)" if row.ranks > 1 else ""
        lines.append(f"{when(row.started_ns)}  {row.run}{ranks}: {row.level}, {kinds}")
        lines.append(f"    {row.progress}")
    if earlier := found[:-MAX_LISTED]:
        lines.append(f"{counted(len(earlier), 'earlier run')}: ampwatch report --all --short")
    return [encodable(line) for line in lines]


def _write_page(out: str, job: list[Box]) -> None:
    from ampwatch.cli.progress import progress  # noqa: PLC0415 - as above
    from ampwatch.errors import ReportError  # noqa: PLC0415 - likewise
    from ampwatch.report.html_report import render_html  # noqa: PLC0415 - likewise

    with progress("drawing the page"):
        page = render_html(job)
    try:
        # It names tracebacks, settings and the host, as reports do: readable by its owner alone.
        file = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(file, "w", encoding="utf-8") as f:
            f.write(page)
    except OSError as error:
        msg = f"cannot write {out!r}: {error.strerror}"
        raise ReportError(msg) from error
    print(f"Written: {Path(out).absolute()}", file=sys.stderr)
