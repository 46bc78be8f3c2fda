"""``ampwatch doctor``: what this machine can and cannot measure, and why."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial

from ampwatch import __version__
from ampwatch.cli.output import hanging, in_colours, progress, width
from ampwatch.doctor.check import Check
from ampwatch.doctor.examination import Probe, examine, is_able, probes
from ampwatch.settings import Settings

Examination = Mapping[str, list[Check]]

DESCRIPTION = """\
Check what ampwatch can measure on this machine, why something is missing, and what to do.

Nothing is changed: no daemon is started, and no file is made. Run it with the Python that
trains, inside the container if there is one, and attach its output to a bug report.

  ok        works
  absent    not available here, and not needed
  problem   should work, but does not
"""

EPILOG = """\
examples:
  ampwatch doctor
      print the checks
  ampwatch doctor --json | jq '.checks[] | select(.state == "problem")'
      for a script

The exit status is 1 if ampwatch cannot work here because no ring can be written, and 0
otherwise.
"""

SYMBOLS = {"ok": "+", "absent": "-", "problem": "!"}
COLOURS = {"ok": "green", "absent": "bright_black", "problem": "red"}
MAX_WIDTH = 110
INDENT = 36


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    parser.add_argument("--json", action="store_true", help="print JSON, for a script")


def run(args: argparse.Namespace) -> int:
    """Examine, and print what was found.

    Raises:
        SettingsError: If a setting is not usable.
    """
    with progress("examining this machine") as say:

        def announced(group: str, probe: Probe) -> list[Check]:
            say(f"examining {group}")
            return probe()

        known = probes(Settings.resolve())
        found = examine({group: partial(announced, group, probe) for group, probe in known.items()})
    able = is_able(found)
    if args.json:
        print(as_json(found, able=able))
    elif in_colours():
        print_with_rich(found)
    else:
        print(as_text(found, width(MAX_WIDTH)))
    return 0 if able else 1


def as_json(found: Examination, *, able: bool) -> str:
    """Return the examination for a program: one object, a flat list of checks in it."""
    checks = [
        {"group": group, **asdict(check)} for group, checks in found.items() for check in checks
    ]
    return json.dumps({"version": __version__, "able": able, "checks": checks}, indent=2)


def as_text(found: Examination, width: int) -> str:
    """Return the examination for a reader, in lines of at most ``width`` characters if possible."""
    lines = [f"ampwatch {__version__}"]
    for group, checks in found.items():
        lines += ["", group]
        for check in checks:
            state = check.state.value
            head = f"  {SYMBOLS[state]} {state:<8} {check.name:<22} "
            lines += hanging(head + check.why, width, INDENT)
            if check.remedy:
                lines += hanging(" " * INDENT + f"-> {check.remedy}", width, INDENT)
    return "\n".join(lines)


def print_with_rich(found: Examination) -> None:
    """Print the examination as a table in colours."""
    from rich.console import Console  # noqa: PLC0415 - an extra
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(
        title=f"ampwatch {__version__}", box=None, title_justify="left", show_header=False
    )
    for group, checks in found.items():
        table.add_row()
        table.add_row(Text(group, "bold"))
        for check in checks:
            state = check.state.value
            words = Text(check.why)
            if check.remedy:
                words.append(f"\n-> {check.remedy}", "cyan")
            table.add_row(Text(f"  {SYMBOLS[state]} {state}", COLOURS[state]), check.name, words)
    Console().print(table)
