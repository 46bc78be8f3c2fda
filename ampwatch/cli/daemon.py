"""``ampwatch daemon``: the host program in the foreground."""

from __future__ import annotations

import argparse
import logging

from ampwatch.host.daemon.app import DaemonOptions, serve
from ampwatch.host.daemon.detach import BoundedLog
from ampwatch.settings import ADDRESSES, Settings

DESCRIPTION = """\
Serve the runs of this machine: the page, Prometheus metrics, service discovery.

A training process starts a daemon if none runs, and that daemon ends when nothing is left to
watch. Start one by hand to keep it running, to listen for other machines, or to protect it.

  /         the page                     /metrics  for Prometheus, text or OpenMetrics
  /healthz  liveness and version         /sd       for Prometheus's http_sd_configs
  /state.json                            everything about all ranks
  /events                                the state of a page and its changes: ?run=RUN&rank=RANK
  /ranks                                 a row a rank for `ampwatch top`, as MessagePack
  /map.json                              values outside their number format, by module: ?run=RUN&rank=RANK
  /whatif.json                           gradients in another format, at another scale: ?run=RUN&rank=RANK&format=F&exponent=E
  /ended/    runs that have ended, by their reports; only with the token or a login
  /explain/  pages of kinds of findings, /runbooks/ runbooks of alerts, /docs/ guides
  /debug/kernels.json                    kernels of the newest profiler windows, by name and rule
"""

EPILOG = """\
examples:
  ampwatch daemon
      for this user's runs, on 127.0.0.1, until Ctrl-C
  ampwatch daemon --host 0.0.0.0 --web.config.file web.yml
      for a Prometheus elsewhere, with TLS and a password
  ampwatch daemon --otlp http://localhost:4318
      for an OpenTelemetry Collector, which gets the content of /metrics every minute
  sudo ampwatch daemon --machine
      for the runs of every user; root, under a service manager

On loopback the daemon answers to localhost, 127.0.0.1, [::1] and the name given with --host;
through `kubectl port-forward` or `ssh -L` the page is at localhost as well.

A daemon asks for the token of its user, which `ampwatch url` prints, or for the users or client
certificates of its web-config file, which is read again at SIGHUP. The daemon of a machine has no
user of its own: on loopback it answers every user of the machine; beyond loopback give it a
web-config file. AMPWATCH_READERS=token makes it ask for a token as well, =all makes the daemon of a
user ask for nothing.

Beyond loopback, a daemon that asks for nothing answers to addresses, to names without a domain or in
a private domain, to the names of this machine, and to those of --web.external-address and
--external-url.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    add = parser.add_argument
    add("--host", help="address to listen on (AMPWATCH_HOST)")
    add("--port", help="port to listen on, 0 for any free one (AMPWATCH_PORT)")
    add(
        "--web.config.file",
        dest="web_config_file",
        metavar="FILE",
        default="",
        help="exporter-toolkit web-config: TLS, client certificates, basic auth, rate limit; followed when it changes",
    )
    add(
        "--web.external-address",
        dest="external_address",
        metavar="HOST:PORT",
        default="",
        help="address that /sd gives Prometheus to scrape; default: the address of the request",
    )
    add(
        "--external-url",
        metavar="URL",
        help="where others open the page, behind a reverse proxy for instance (AMPWATCH_EXTERNAL_URL)",
    )
    add(
        "--grafana-url",
        metavar="URL",
        help="the Grafana that has the dashboards, for links (AMPWATCH_GRAFANA_URL)",
    )
    add(
        "--alertmanager",
        dest="alertmanager_url",
        metavar="URL",
        help="Alertmanager, for links to silences (AMPWATCH_ALERTMANAGER_URL)",
    )
    add(
        "--otlp",
        metavar="URL",
        nargs="?",
        const="",
        help="push metrics and findings by OTLP as well, to URL or where OTEL_EXPORTER_OTLP_ENDPOINT says; "
        "needs pip install 'ampwatch[otlp]'",
    )
    add("--machine", action="store_true", help="read the rings of every user; needs root")
    gpus = parser.add_mutually_exclusive_group()
    gpus.add_argument(
        "--no-gpu",
        dest="gpu",
        action="store_const",
        const="off",
        help="leave the GPUs alone, where dcgm-exporter reads them (AMPWATCH_GPU=off)",
    )
    gpus.add_argument(
        "--demo-gpu",
        dest="gpu",
        action="store_const",
        const="demo",
        help="show GPUs that do not exist, to try the page and dashboards (AMPWATCH_GPU=demo)",
    )
    levels = ("debug", "info", "warning", "error")
    add("--log-level", choices=levels, default="info", help="how much is logged to stderr")
    # Of the launcher: end when idle; go on holding a lock and detach.
    add("--auto", action="store_true", help=argparse.SUPPRESS)
    add("--lock-fd", type=int, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Serve until ended.

    Raises:
        SettingsError: If a setting is not usable.
        DaemonError: If the daemon cannot start, or a part of it died.
    """
    logging.basicConfig(
        level=args.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        # Of a daemon that was started by hand, stderr is not ours to cut.
        handlers=[logging.StreamHandler() if args.lock_fd is None else BoundedLog()],
    )
    options = DaemonOptions(
        machine=args.machine,
        auto=args.auto,
        web_config_file=args.web_config_file,
        external_address=args.external_address,
        otlp=args.otlp,
    )
    names = ("host", "port", "gpu", *ADDRESSES)
    given = {name: getattr(args, name) for name in names}
    serve(Settings.resolve(given), options, args.lock_fd)
    return 0
