"""``ampwatch grafana``: the dashboards into a Grafana, out of one, and what differs."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ampwatch.operate.grafana import Board, BoardWishes
    from ampwatch.operate.grafana.server import GrafanaServer

DESCRIPTION = """\
Put the dashboards into a Grafana (10.4 or newer), say what differs there, or write what it
has into files.

Where it is is told by GRAFANA_URL or --url, and how to get in by GRAFANA_TOKEN or
--token-file: the token of a service account, which no option takes and no message shows.
It needs the extra `grafana`, in an environment of its own: `ampwatch explain grafana`.
"""

EPILOG = """\
examples:
  export GRAFANA_URL=https://grafana.example.com GRAFANA_TOKEN=glsa_...
  ampwatch grafana push --prometheus-url http://prometheus:9090
      folder, datasource and all dashboards; what is there already is left alone
  ampwatch grafana push --datasource P8E80F9AEF21F6940 --dry-run
      what would be done with a datasource that is there
  ampwatch grafana diff run layers
      how these two differ from the shipped ones; the exit status is 1 if they do
  ampwatch grafana export backup/
      the dashboards of the folder as files
"""

PUSH = """\
Make a Grafana have the folder, the datasource and the dashboards. What is as it should be is
left alone. If something stands against it, as a dashboard that was changed by hand, nothing
is written, and the difference is shown.
"""

DIFF = """\
Say what `push` with the same options would change, as a unified diff, and write nothing.
The exit status is 0 if there is no difference, 1 if there is one, 2 if that cannot be told.
"""

EXPORT = """\
Write the dashboards of the folder into DIR, a file <uid>.json each, in the order and form of
the shipped ones. Files of these names are replaced. `push --dashboards DIR` takes them back.
"""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = subparsers.add_parser(
        "grafana",
        help="put the dashboards into a Grafana, or say what differs",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=raw,
        allow_abbrev=False,
    )
    verbs = parser.add_subparsers(title="commands", metavar="<command>", required=True)
    for name, description, does, function in (
        ("push", PUSH, "make Grafana have the dashboards", push),
        ("diff", DIFF, "say what push would change", diff),
    ):
        verb = verbs.add_parser(
            name, help=does, description=description, formatter_class=raw, allow_abbrev=False
        )
        verb.add_argument(
            "dashboard", nargs="*", help="its uid, ampwatch- may be left out; all if none is given"
        )
        _wishes(verb)
        _access(verb)
        verb.set_defaults(func=function)
        if name == "push":
            verb.add_argument("--dry-run", action="store_true", help="only say what would be done")
    verb = verbs.add_parser(
        "export",
        help="write what Grafana has into files",
        description=EXPORT,
        formatter_class=raw,
        allow_abbrev=False,
    )
    verb.add_argument("directory", metavar="DIR", help="where to; made if it is not there")
    _what(verb)
    _access(verb)
    verb.set_defaults(func=export)


def _wishes(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--datasource",
        metavar="UID",
        help="uid of the datasource the dashboards open on (ampwatch-prometheus)",
    )
    add(
        "--prometheus-url",
        metavar="URL",
        help="make that datasource, or have it point here: where Prometheus is for Grafana",
    )
    add(
        "--scrape-interval",
        default="10s",
        metavar="DURATION",
        help="of that Prometheus; a wrong one makes gaps (10s)",
    )
    add("--force", action="store_true", help="replace what was changed by hand in Grafana")
    _what(parser)


def _what(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--folder", default="ampwatch", metavar="UID", help="uid of the folder (ampwatch)")
    add("--dashboards", metavar="DIR", help="JSON files to use instead of the shipped ones")


def _access(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--url", help="address of Grafana, with its sub-path (GRAFANA_URL)")
    add("--token-file", metavar="FILE", help="holds the token (or GRAFANA_TOKEN)")
    add("--org-id", type=int, metavar="N", help="the organization, if not that of the token")
    add("--timeout", type=float, default=10.0, metavar="S", help="seconds for an answer (10)")
    tls = parser.add_mutually_exclusive_group()
    tls.add_argument("--ca-file", metavar="FILE", help="PEM file with the authorities to trust")
    tls.add_argument("--insecure", action="store_true", help="verify no certificate")


def push(args: argparse.Namespace) -> int:
    """Push.

    Raises:
        SettingsError: If an option is not usable.
        GrafanaError: If Grafana does not do what it is asked to.
    """
    from ampwatch.operate.grafana import push as do  # noqa: PLC0415 - --help must be quick

    wishes, boards = _asked(args)
    do(_server(args), boards, wishes, _say, dry_run=args.dry_run)
    return 0


def diff(args: argparse.Namespace) -> int:
    """Print the differences, with the exit status of ``diff``: 2 stands for trouble."""
    from ampwatch.errors import AmpwatchError  # noqa: PLC0415 - as above
    from ampwatch.operate.grafana import diff as do  # noqa: PLC0415 - as above

    try:
        wishes, boards = _asked(args)
        return int(do(_server(args), boards, wishes, _say))
    except AmpwatchError as error:
        print(f"ampwatch: {error}", file=sys.stderr)
        return 2


def export(args: argparse.Namespace) -> int:
    """Export.

    Raises:
        SettingsError: If an option is not usable.
        GrafanaError: If Grafana does not do what it is asked to.
    """
    from ampwatch.errors import SettingsError  # noqa: PLC0415 - as above
    from ampwatch.operate.grafana import BoardWishes, load  # noqa: PLC0415 - as above
    from ampwatch.operate.grafana import export as do  # noqa: PLC0415 - as above

    if not args.directory:
        msg = "expected the name of a directory, got an empty one, as of a variable that is not set; for the one you are in say ."
        raise SettingsError(msg)
    wishes = BoardWishes(folder=args.folder)
    boards = load(_directory(args))
    do(_server(args), Path(args.directory), boards, wishes.folder, _say)
    return 0


def _say(line: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    try:
        # A title in Grafana may be any text, and a terminal may not be able to show it.
        print(line.encode(encoding, errors="replace").decode(encoding), flush=True)
    except BrokenPipeError:  # whoever reads has read enough, and a push must go on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _asked(args: argparse.Namespace) -> tuple[BoardWishes, list[Board]]:
    from ampwatch.operate.grafana import BoardWishes, load  # noqa: PLC0415 - as above
    from ampwatch.operate.grafana.plan import DATASOURCE  # noqa: PLC0415 - as above

    wishes = BoardWishes(
        folder=args.folder,
        datasource=args.datasource if args.datasource is not None else DATASOURCE,
        prometheus_url=args.prometheus_url,
        scrape_interval=args.scrape_interval,
        force=args.force,
    )
    return wishes, load(_directory(args), args.dashboard)


def _directory(args: argparse.Namespace) -> Path:
    from ampwatch.shipped import shipped  # noqa: PLC0415 - as above

    return Path(args.dashboards) if args.dashboards else shipped("dashboards")


def _server(args: argparse.Namespace) -> GrafanaServer:
    from ampwatch.operate.grafana import find_place  # noqa: PLC0415 - as above
    from ampwatch.operate.grafana.server import GrafanaServer  # noqa: PLC0415 - as above

    place = find_place(
        os.environ,
        url=args.url,
        token_file=args.token_file,
        org_id=args.org_id,
        ca_file=args.ca_file,
        insecure=args.insecure,
        timeout_s=args.timeout,
    )
    return GrafanaServer(place)
