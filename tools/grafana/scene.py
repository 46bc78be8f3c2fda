"""Something to look at: two real trainings, one of which breaks, and a Prometheus that saw it.

    python -m tools.grafana.scene DIR [--minutes 8]

A float16 training on two ranks, which ``ampwatch.inject`` breaks half way, a healthy one in bfloat16
and one that dies early; the daemon with GPUs that do not exist; a Prometheus that scrapes every five
seconds, with the alert rules. It ends with the Prometheus still there, to draw from until Ctrl-C. The
data stay in ``DIR``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path

from ampwatch.errors import AmpwatchError

ROOT = Path(__file__).parents[2]
RULES = ROOT / "dashboards" / "alerts" / "*.rules.yml"
SCRAPE_SECONDS = 5.0

LAST_SECONDS = 15.0
"""Time at the end that is not drawn: the trainings end in it, and a run that has ended says less. Unit: s."""

CONFIG = """\
global:
  scrape_interval: {scrape:g}s
  evaluation_interval: {scrape:g}s
rule_files: ['{rules}']
scrape_configs:
  - job_name: ampwatch
    static_configs:
      - targets: ['127.0.0.1:{daemon}']
"""


def main() -> None:
    """Train, then keep Prometheus until Ctrl-C."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, help="where everything lies; made if it is missing")
    parser.add_argument("--minutes", type=float, default=8.0, help="how long it trains")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with suppress(KeyboardInterrupt):
            _play(arguments.directory, arguments.minutes * 60)
    except AmpwatchError as error:
        sys.exit(f"scene: {error}")


def _play(directory: Path, seconds: float) -> None:
    program = shutil.which("prometheus")
    if program is None:
        msg = "expected the program prometheus on the PATH, found none; on Debian: apt-get install prometheus"
        raise AmpwatchError(msg)
    directory.mkdir(parents=True, exist_ok=True)
    daemon_port, prometheus_port = _free_port(), _free_port()
    config = directory / "prometheus.yml"
    config.write_text(CONFIG.format(scrape=SCRAPE_SECONDS, rules=RULES, daemon=daemon_port))
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "AMPWATCH_RUNTIME_DIR": str(directory / "runtime"),
        "AMPWATCH_RING_DIR": str(directory / "rings"),
        "AMPWATCH_PORT": str(daemon_port),
        "AMPWATCH_READERS": "all",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    python = sys.executable
    actor = ["-m", "tools.grafana.actors", "--seconds", str(seconds)]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    begin = time.time()
    with ExitStack() as stack:

        def start(*command: str) -> subprocess.Popen[bytes]:
            process = subprocess.Popen(command, env=environment, cwd=ROOT)  # noqa: S603 - our own
            stack.callback(_end, process)
            return process

        start(python, "-m", "ampwatch", "daemon", "--demo-gpu", "--log-level", "warning")
        start(
            program,
            f"--config.file={config}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{prometheus_port}",
            "--log.level=warn",
        )
        _await(f"http://127.0.0.1:{daemon_port}/healthz")
        start(python, *actor, "--name", "gpt-tryout", "--pause", "0.5", "--crash")
        trainings = [
            start(python, *torchrun, *actor, "--name", "gpt-fp16"),
            start(python, *actor, "--name", "gpt-bf16", "--dtype", "bfloat16", "--pause", "0.3"),
        ]
        for training in trainings:
            if training.wait() != 0:
                msg = f"expected the trainings to end well, got exit status {training.returncode}; what it said is above"
                raise AmpwatchError(msg)
        print(
            f"Prometheus answers until Ctrl-C. Draw with:\n  python -m tools.grafana"
            f" --prometheus http://127.0.0.1:{prometheus_port} --scrape-seconds {SCRAPE_SECONDS:g}"
            f" --start {begin:.0f} --end {time.time() - LAST_SECONDS:.0f}"
            " --set ampwatch-run.run=gpt-fp16 --set ampwatch-layers.run=gpt-fp16 --out docs/images",
            flush=True,
        )
        signal.pause()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _await(url: str) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        with suppress(OSError), urllib.request.urlopen(url, timeout=1):  # noqa: S310 - loopback
            return
        time.sleep(0.1)
    msg = f"expected an answer at {url} within 30 s, got none"
    raise AmpwatchError(msg)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(30)


if __name__ == "__main__":
    main()
