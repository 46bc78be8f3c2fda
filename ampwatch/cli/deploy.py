"""``ampwatch deploy``: the files that start Prometheus, Alertmanager and Grafana around it."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from ampwatch.cli.output import piped
from ampwatch.errors import DeployError
from ampwatch.operate.deploy.options import (
    DeployOptions,
    checked_port,
    checked_seconds,
    checked_target,
    is_loopback,
)
from ampwatch.operate.deploy.tree import tree
from ampwatch.operate.deploy.writing import FileChange, Plan, Theirs, plan, write
from ampwatch.runtime import private_directory, runtime_path
from ampwatch.settings import DEFAULT_PORT, Settings, checked_base, checked_url
from ampwatch.wire.rendezvous.token import TOKEN_FILE, ensure_token

DESCRIPTION = """\
Write the files of a deployment: Docker Compose, Kubernetes and systemd files, the configuration
of Prometheus, Alertmanager and Grafana, dashboards, alert rules and runbooks.

DIR is a new directory, or one that was written before: then only what differs is written, and
nothing at all where files were changed by hand, unless --keep or --force says what to do with
them. Nothing is started.
"""

EPILOG = """\
examples:
  ampwatch deploy stack
      the files with their defaults; then: docker compose -f stack/deploy/compose/compose.yaml up --build
  ampwatch deploy stack --target node-a --target node-b:10917
      and Prometheus scrapes the daemons of two machines
  ampwatch deploy stack --webhook https://chat.example.com/hook/ampwatch
      and alerts are sent there
  ampwatch deploy stack --dry-run
      what would be written, after an update of ampwatch for instance

Give all options each time: DIR is written to match them. See `ampwatch explain operate`.
"""

MAX_LISTED = 12
"""Files that are named in a message; of more, the number alone."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    add = parser.add_argument
    add("directory", metavar="DIR", help="where to write; made if missing")
    add(
        "--target",
        action="append",
        default=[],
        metavar="HOST[:PORT]",
        help="a daemon that Prometheus scrapes; once for each, besides this machine's",
    )
    add(
        "--port",
        default="",
        metavar="PORT",
        help="where daemons listen, in every file that names the port (default: 10917)",
    )
    add("--webhook", default="", metavar="URL", help="where Alertmanager sends alerts")
    add(
        "--grafana-url", metavar="URL", help="your Grafana, for the links in alerts and on the page"
    )
    add("--alertmanager", metavar="URL", help="your Alertmanager, for links to silences")
    add("--external-url", metavar="URL", help="where others open the page of this machine's daemon")
    add(
        "--runbooks",
        default="",
        metavar="URL",
        help="where your copy of the runbooks is, for the links in alerts",
    )
    add(
        "--scrape-interval",
        default="",
        metavar="10s",
        help="how often Prometheus scrapes, 5s to 60s (default: 10s)",
    )
    add(
        "--no-token",
        action="store_true",
        help="Prometheus sends no token: for the daemon of a machine, or one that is open to all",
    )
    add("--dry-run", action="store_true", help="list what would be written, and write nothing")
    changed = parser.add_mutually_exclusive_group()
    changed.add_argument(
        "--keep", action="store_true", help="keep files that were changed by hand, write the rest"
    )
    changed.add_argument(
        "--force", action="store_true", help="overwrite files that were changed by hand"
    )


def run(args: argparse.Namespace) -> int:
    """Write the files.

    Raises:
        DeployError, SettingsError: If an option is not usable, or the files cannot be written.
    """
    with piped():
        _deploy(args)
    return 0


def _deploy(args: argparse.Namespace) -> None:
    if not args.directory:
        msg = "expected the name of a directory, got an empty one, as of a variable that is not set; for the one you are in say ."
        raise DeployError(msg)
    options = options_of(args)
    todo = plan(Path(args.directory), tree(options))
    theirs = Theirs.KEEP if args.keep else Theirs.OVERWRITE if args.force else Theirs.REFUSE
    if args.dry_run:
        print(f"{_summary(todo, theirs)}\nNothing was written: --dry-run.")
        return
    if options.token_file:
        # Prometheus refuses a configuration that names a file which is not there.
        ensure_token(private_directory(Path(options.token_file).parent))
    write(todo, theirs=theirs)
    print(_summary(todo, theirs))
    print(_next(todo.directory, options))


def options_of(args: argparse.Namespace) -> DeployOptions:
    """Return the options, checked.

    Raises:
        DeployError, SettingsError: If one is not usable.
    """

    def base(option: str) -> str:
        given = getattr(args, option.strip("-").replace("-", "_"))
        return checked_base(f"`{option}`", given) if given else ""

    interval = args.scrape_interval
    token_file = ""
    if not args.no_token:
        token_file = str((runtime_path(Settings.resolve().runtime_dir) / TOKEN_FILE).absolute())
    port = checked_port(args.port) if args.port else DEFAULT_PORT
    return DeployOptions(
        targets=tuple(checked_target(target, port) for target in args.target),
        runbooks=base("--runbooks"),
        webhook=checked_url("`--webhook`", args.webhook) if args.webhook else "",
        grafana=base("--grafana-url"),
        alertmanager=base("--alertmanager"),
        external=base("--external-url"),
        scrape_seconds=checked_seconds(interval) if interval else 0,
        port=port,
        token_file=token_file,
    )


def _summary(todo: Plan, theirs: Theirs) -> str:
    shown = {
        FileChange.NEW: "new",
        FileChange.UPDATED: "updated",
        FileChange.REMOVED: "removed: no longer shipped",
        FileChange.THEIRS: {
            Theirs.KEEP: "kept: changed by hand",
            Theirs.OVERWRITE: "overwritten, though changed by hand",
            Theirs.REFUSE: "changed by hand: refused without --keep or --force",
        }[theirs],
        FileChange.LEFT: "left there: no longer shipped, but changed by hand",
        FileChange.SAME: "as they are",
    }
    before = f", written by ampwatch {todo.version} before" if todo.version else ""
    lines = [f"{todo.directory}: {len(todo.files)} files{before}"]
    for change, words in shown.items():
        if paths := todo.paths(change):
            lines.append(f"  {len(paths)} {words}")
            if change is not FileChange.SAME and len(paths) <= MAX_LISTED:
                lines += [f"    {path}" for path in paths]
    return "\n".join(lines)


def _next(directory: Path, options: DeployOptions) -> str:
    def at(path: str) -> str:
        return shlex.quote(str(directory / path))

    scraped = "your daemon" if options.token_file else "the daemon of this machine"
    lines = [
        "",
        "Next, whichever fits:",
        f"  docker compose -f {at('deploy/compose/compose.yaml')} up --build",
        "      all of it with a training to look at; Grafana is at http://localhost:3000",
        f"  prometheus --config.file={at('deploy/prometheus/prometheus.yml')}",
        f"  alertmanager --config.file={at('deploy/alertmanager/alertmanager.yml')}",
        f"      where you have them; {scraped} is scraped",
        f"  kubectl apply --server-side -k {at('deploy/kubernetes')}",
        "      dashboards, rules and a PodMonitor for the Prometheus Operator",
        f"  less {at('deploy/README.md')}",
        "      daemons under systemd, on Kubernetes nodes, beside jobs; fleets",
    ]
    if options.port != DEFAULT_PORT:
        lines += [
            "",
            f"Trainings, and daemons that you start by hand, need AMPWATCH_PORT={options.port} in their environment.",
        ]
    if options.token_file:
        lines += [
            "",
            f"Your daemon wants the token in {options.token_file},",
            "which you alone can read: start that Prometheus as yourself. For another user's, see",
            "`ampwatch explain operate`; for the daemon of a machine give --no-token.",
        ]
    if not options.webhook:
        lines += ["", "Alerts are sent nowhere yet: give --webhook URL, or edit alertmanager.yml."]
    if any(map(is_loopback, options.targets)):
        lines += [
            "",
            "A target on loopback is, in a container, the container: for Compose, host.docker.internal.",
        ]
    return "\n".join(lines)
