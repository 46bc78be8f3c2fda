"""The daemons of many hosts in one process: what a Prometheus scrapes of a large job.

``python benchmarks/hosts.py DIRECTORY HOSTS WHICH`` prints the ports and serves until its
standard input ends. Each has rings, a fleet and a port of its own, as on its machine; only
the interpreter is shared. `fleet.py` times daemons in processes of their own.
"""

from __future__ import annotations

import json
import selectors
import sys
import threading
from pathlib import Path

from ampwatch.host.daemon.app import Daemon, DaemonOptions
from ampwatch.host.fleet import fleet
from ampwatch.settings import Settings

POLL_SECONDS = 1.0


def main() -> None:
    """Serve, look into the rings once a second, and end."""
    place, num_hosts, which = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    fleet.MAX_RANKS = 4096
    daemons = [
        Daemon(
            Settings(
                runtime_dir=str(place / str(host) / "runtime"),
                ring_dir=str(place / str(host) / "rings"),
                port=0,
                readers="all",
                gpu="off",
                report_files=0,
                module_series_ranks=which,
            ),
            DaemonOptions(),
        )
        for host in range(num_hosts)
    ]
    for daemon in daemons:
        daemon.step()
        threading.Thread(target=daemon._server.serve_forever, daemon=True).start()
    print(json.dumps([daemon._server.server_port for daemon in daemons]), flush=True)
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ)
        while not selector.select(POLL_SECONDS):
            for daemon in daemons:
                daemon.step()


if __name__ == "__main__":
    main()
