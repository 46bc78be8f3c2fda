"""How long a scrape of a daemon takes that watches 8 GPUs, and how long a look at them.

Run it with ``python benchmarks/gpu_scrape.py``; it needs a C compiler, and no GPU. The
driver is the stand-in of the tests, which answers at once: what is timed is everything but
the driver, pynvml included. On a machine with GPUs, ``--real`` times those.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

from ampwatch.wire.rendezvous.lock import read_info

NUM_GPUS = 8
NUM_SCRAPES = 300
NUM_LOOKS = 100
STANDIN = Path(__file__).parents[1] / "tests" / "host" / "gpu" / "nvml_standin.c"
LOOK = """
import json, sys, time
from ampwatch.host.gpu.source import open_source
source = open_source(None)
times = []
for _ in range(int(sys.argv[1])):
    begin = time.perf_counter()
    found = source.read()
    times.append((time.perf_counter() - begin) * 1e3)
    time.sleep(0.12)
print(json.dumps([len(found.gpus), found.gpus[0].facts["name"], times]))
source.close()
"""


def environment(place: Path, *, real: bool) -> dict[str, str]:
    """Return the environment of a daemon of its own, with the stand-in as its driver."""
    given = {
        **os.environ,
        "AMPWATCH_RUNTIME_DIR": str(place / "runtime"),
        "AMPWATCH_RING_DIR": str(place / "rings"),
        "AMPWATCH_PORT": "0",
        "AMPWATCH_READERS": "all",
    }
    (place / "runtime").mkdir(mode=0o700)
    if not real:
        library = place / "libnvidia-ml.so.1"
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-O2", "-o", library, STANDIN, "-lm", "-lpthread"],
            check=True,
        )
        (place / "driver").write_text(f"gpus={NUM_GPUS}\n", encoding="utf-8")
        given |= {"LD_LIBRARY_PATH": str(place), "NVML_STANDIN": str(place / "driver")}
    return given


def scrapes(place: Path, environ: dict[str, str]) -> tuple[list[float], int, int]:
    """Return how long scrapes over HTTP took, and series and bytes of one. Unit: ms."""
    command = [sys.executable, "-m", "ampwatch", "daemon", "--log-level", "warning"]
    with subprocess.Popen(command, env=environ) as daemon:
        try:
            while (info := read_info(place / "runtime")) is None:
                time.sleep(0.05)
            time.sleep(11)  # two passes, so that GPM has values
            times = []
            for _ in range(NUM_SCRAPES):
                begin = time.perf_counter()
                connection = http.client.HTTPConnection(info.host, info.port)
                connection.request("GET", "/metrics")
                body = connection.getresponse().read()
                connection.close()
                times.append((time.perf_counter() - begin) * 1e3)
                time.sleep(0.01)
        finally:
            daemon.terminate()
    series = sum(line.startswith(b"ampwatch_") for line in body.splitlines())
    return times, series, len(body)


def looks(environ: dict[str, str]) -> tuple[int, str, list[float]]:
    """Return the number of GPUs, the name of the first, and how long looks took. Unit: ms."""
    command = [sys.executable, "-c", LOOK, str(NUM_LOOKS)]
    num_gpus, name, times = json.loads(subprocess.check_output(command, env=environ))
    return num_gpus, name, times


def summary(times: list[float]) -> dict[str, float]:
    """Return median, 99th percentile and largest value."""
    cut = statistics.quantiles(times, n=100)[98]
    values = {"median_ms": statistics.median(times), "p99_ms": cut, "max_ms": max(times)}
    return {name: round(value, 3) for name, value in values.items()}


def main() -> None:
    """Measure, print, and keep the numbers if told to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--real", action="store_true", help="the GPUs of this machine")
    parser.add_argument("--json", metavar="FILE", help="keep the numbers")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        environ = environment(place, real=args.real)
        num_gpus, name, look_times = looks(environ)
        scrape_times, series, size = scrapes(place, environ)
    results = {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "driver": "of this machine" if args.real else "stand-in library; no GPU",
        "gpus": num_gpus,
        "gpu": name,
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "python": platform.python_version(),
        "nvidia-ml-py": version("nvidia-ml-py"),
        "series": series,
        "bytes": size,
        "scrape": summary(scrape_times),
        "look": summary(look_times),
    }
    print(json.dumps(results, indent=2))
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
