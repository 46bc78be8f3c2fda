"""``ampwatch url``: the address of the page, with the token of this user."""

from __future__ import annotations

import argparse
import shlex

from ampwatch.cli import daemon_state
from ampwatch.errors import DaemonError, did_you_mean
from ampwatch.host.daemon.leftovers import find_leftovers
from ampwatch.report.one_line import address, printable
from ampwatch.settings import Settings
from ampwatch.wire.rendezvous.token import TOKEN_FIELD

DESCRIPTION = """\
Print the address of the page of this user's daemon, with the token that it asks for.

Paste it into a browser, which then needs no token for a month: links in logs and alerts
work. The address is a secret, as everybody who has it can read your runs. Keep it off
command lines, which every user of a machine can read.
"""

EPILOG = """\
examples:
  ampwatch url
      to be pasted into a browser
  ampwatch url --run gpt --rank 3 --finding forward_overflow@decoder.7
      what leads to a finding; --step 812 marks a step in the charts
  ampwatch url --header | curl -H @- http://127.0.0.1:PORT/metrics
      what Prometheus reads, by a program

The token is made once and kept in daemon.token in the runtime directory. Remove that file,
and the daemon makes another one. AMPWATCH_READERS=all has a daemon ask for none.

The exit status is 1 if no daemon serves, or if it does not show the run. A run that has ended is
shown for ten minutes; after that `ampwatch report` says what went wrong in it.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    add = parser.add_argument
    add("--run", default="", metavar="NAME", help="the run that the page shows")
    add("--rank", type=int, metavar="R", help="a rank of it")
    add("--step", type=int, metavar="N", help="a step that the charts mark")
    add("--finding", default="", metavar="KEY", help="a finding that is marked, as KIND@PLACE")
    add(
        "--header",
        action="store_true",
        help="print the header by which a program sends the token instead",
    )


def run(args: argparse.Namespace) -> int:
    """Print it.

    Raises:
        SettingsError: If a setting is not usable.
        DaemonError: If no daemon serves, there is no token, or the daemon shows no such run.
    """
    if not args.run and (args.rank is not None or args.step is not None or args.finding):
        args.parser.error(
            "expected --run NAME with --rank, --step or --finding, which are of a run"
        )
    settings = Settings.resolve()
    # Whom a lock names, and nobody else: who just listens on the port must not get the token.
    found = daemon_state.shown_by(settings)
    token = daemon_state.token_of(found)
    if args.header:
        if not token:
            msg = f"the daemon at {found.info.url} asks for no token"
            raise DaemonError(msg)
        print(f"Authorization: Bearer {token}")
    elif args.run:
        _check_is_shown(args.run, settings)
        wanted = {"rank": args.rank, "step": args.step, "finding": args.finding}
        print(address(found.info.url, args.run, token=token, **wanted))
    else:
        print(f"{found.info.url}?{TOKEN_FIELD}={token}" if token else found.info.url)
    return 0


def _check_is_shown(run: str, settings: Settings) -> None:
    """Check that the daemon shows a run.

    Raises:
        DaemonError: If it shows others only.
    """
    try:
        shown = [of.run for of in daemon_state.read(settings).runs]
    except DaemonError:  # it wants a password, or is busy: the page says what is not there
        return
    if run in shown:
        return
    name = run.partition("~")[0]  # what follows is the daemon's, to tell runs of one name apart
    if find_leftovers(settings, name).boxes:
        advice = f"; `ampwatch report {shlex.quote(name)}` says what is known of it"
    else:
        otherwise = "a run is there once its training has called ampwatch.monitor()"
        advice = did_you_mean(run, shown, otherwise)
    there = ", ".join(sorted(map(printable, shown))) or "no run"
    msg = f"the daemon does not show run {run!r}: it shows {there}{advice}"
    raise DaemonError(msg)
