"""``ampwatch grafana``: the dashboards into a Grafana, out of one, and what differs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from ampwatch.cli.output import encodable, piped
from ampwatch.errors import AmpwatchError, SettingsError
from ampwatch.operate.grafana import work
from ampwatch.operate.grafana.server import GrafanaServer
from ampwatch.operate.grafana.work import Change
from ampwatch.shipped import shipped

DESCRIPTION = """\
Install the dashboards in a Grafana (10.4 or newer), compare them with those there, or export
those there to files.

GRAFANA_URL or --url is the address of Grafana. GRAFANA_TOKEN or --token-file has the token of a
service account; no option takes the token, and no message shows it. The command needs the extra
`grafana`, in a virtual environment of its own: see `ampwatch explain operate`.
"""

EPILOG = """\
examples:
  export GRAFANA_URL=https://grafana.example.com GRAFANA_TOKEN=glsa_...
  ampwatch grafana push --prometheus-url http://prometheus:9090
      folder, datasource and all dashboards; what is up to date is left as it is
  ampwatch grafana push --datasource P8E80F9AEF21F6940 --dry-run
      what would be done, with an existing datasource
  ampwatch grafana diff run layers
      compare these two with the shipped ones; the exit status is 1 if they differ
  ampwatch grafana export backup/
      the dashboards of the folder as files
"""

PUSH = """\
Create or update the folder, the datasource and the dashboards in a Grafana. What is up to date is
left as it is. If a dashboard was changed by hand, nothing is written, and the difference is shown.
"""

DIFF = """\
Show what `push` with the same options would change, as a unified diff. Nothing is written.
The exit status is 0 if there is no difference, 1 if there is one, 2 if they cannot be compared.
"""

EXPORT = """\
Write the dashboards of the folder to DIR, one file <uid>.json each, in the form of the shipped
ones. Files of these names are replaced. `push --dashboards DIR` installs them again.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    verbs = parser.add_subparsers(title="commands", metavar="<command>", required=True)
    for name, description, does, function in (
        ("push", PUSH, "install the dashboards in Grafana", push),
        ("diff", DIFF, "show what push would change", diff),
        ("export", EXPORT, "write the dashboards of Grafana to files", export),
    ):
        verb = verbs.add_parser(name, help=does, description=description)
        add = verb.add_argument
        if name == "export":
            add("directory", metavar="DIR", help="directory to write to; made if it does not exist")
        else:
            add("dashboard", nargs="*", help="its uid, without ampwatch- or with it (all)")
            _wishes(verb)
        if name == "push":
            add("--dry-run", action="store_true", help="only say what would be done")
        add("--folder", default="ampwatch", metavar="UID", help="uid of the folder (ampwatch)")
        _access(verb)
        verb.set_defaults(func=function)


def _wishes(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--datasource",
        default="ampwatch-prometheus",
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
    server, changes = _planned(args)
    _say(work.push(server, changes, args.datasource, dry_run=args.dry_run))
    return 0


def diff(args: argparse.Namespace) -> int:
    """Print the differences, with the exit status of ``diff``: 2 stands for trouble."""
    try:
        _, changes = _planned(args)
    except AmpwatchError as error:
        print(f"ampwatch: {error}", file=sys.stderr)
        return 2
    for change in changes:
        _say(filter(None, (change.line(dry_run=True), change.diff)))
    return int(any(change.outcome != "unchanged" for change in changes))


def export(args: argparse.Namespace) -> int:
    """Export.

    Raises:
        SettingsError: If an option is not usable.
        GrafanaError: If Grafana does not do what it is asked to.
    """
    if not args.directory:
        msg = "expected the name of a directory, got an empty one, as of a variable that is not set; for the one you are in say ."
        raise SettingsError(msg)
    folder = work.Wishes(args.folder).folder
    _say(work.export(_server(args), Path(args.directory), folder))
    return 0


def _say(lines: Iterable[str]) -> None:
    for line in lines:
        with piped():  # a push must go on when nobody reads any more
            print(encodable(line))


def _planned(args: argparse.Namespace) -> tuple[GrafanaServer, list[Change]]:
    wishes = work.Wishes(
        args.folder, args.datasource, args.prometheus_url, args.scrape_interval, args.force
    )
    directory = Path(args.dashboards) if args.dashboards else shipped("dashboards")
    wanted = work.load(directory, args.dashboard)
    server = _server(args)
    return server, work.plan(server, wanted, wishes)


def _server(args: argparse.Namespace) -> GrafanaServer:
    token = os.environ.get("GRAFANA_TOKEN", "")
    if args.token_file is not None:
        try:
            token = Path(args.token_file).read_text(encoding="ascii", errors="replace")
        except OSError as error:
            msg = f"`--token-file`: expected a file with a token, got: {error}"
            raise SettingsError(msg) from None
    return GrafanaServer(
        args.url or os.environ.get("GRAFANA_URL", ""),
        token.strip(),
        org_id=args.org_id,
        verify=args.ca_file if args.ca_file is not None else not args.insecure,
        timeout_s=args.timeout,
    )
