"""How a thousand ranks look: what they cost the daemons, and what they cost Prometheus.

``python benchmarks/fleet.py daemon`` puts 1, 8, 64 and 256 ranks on one machine;
``python benchmarks/fleet.py prometheus`` lets a Prometheus scrape machines of 8 ranks, up to
1000 ranks (some 4 GB of memory, 600 MB of /dev/shm, forty minutes). Both keep their
numbers with ``--json FILE``. Ranks are simulated (`simulated.py`); rings, daemons, HTTP and
Prometheus are real.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleet_server import QUERIES, RECORDED, prometheus, timed

from ampwatch import __version__
from ampwatch.host.metrics.catalog import TOPICS
from ampwatch.wire.rendezvous.lock import read_info

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ampwatch.wire.rendezvous.lock import DaemonInfo

HERE = Path(__file__).parent
ON_ONE_MACHINE = (1, 8, 64, 256)
RANKS_PER_HOST = 8
HOSTS = (1, 8, 32, 125)
IDLE_SECONDS = 20.0
BETWEEN_SCRAPES = 1.0
NUM_SCRAPES = 20
SCRAPE_SECONDS = 15
MINUTES = 8
PAGE = HERE.parent / "docs" / "operate.md"
BEGIN, END = (f"<!-- {word} of what benchmarks/fleet.py writes -->" for word in ("begin", "end"))
TICKS = os.sysconf("SC_CLK_TCK")


@contextmanager
def child(*arguments: str | Path, **environ: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program of this directory until the end of its standard input."""
    command = [sys.executable, *map(str, arguments)]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environ},
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def said(process: subprocess.Popen[str]) -> Any:
    """Return the JSON that a child prints as its first line."""
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used. Unit: s."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident(pid: int) -> int:
    """Return the resident memory of a process. Unit: bytes."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    match = re.search(r"VmRSS:\s+(\d+) kB", text)
    return int(match[1]) * 1024 if match else 0


def get(port: int, path: str, **headers: str) -> tuple[bytes, float]:
    """Return the body of an answer and how long it took. Unit: s."""
    begin = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("GET", path, headers=headers)
    body = connection.getresponse().read()
    connection.close()
    return body, time.perf_counter() - begin


def series_by_topic(scrape: bytes) -> dict[str, int]:
    """Return how many series of a scrape belong to each topic of the catalog."""
    topics = {m.name: topic for topic, metrics in TOPICS.items() for m in metrics}
    found: Counter[str] = Counter()
    for line in scrape.decode().splitlines():
        if not line.startswith("#"):
            name = re.split(r"[{ ]", line, maxsplit=1)[0]
            found[topics.get(name) or topics[re.sub(r"_(bucket|sum|count)$", "", name)]] += 1
    return dict(found)


@contextmanager
def made_up_ranks(num_ranks: int, **more: str) -> Iterator[tuple[dict[str, str], Path]]:
    """Run ranks that write a step a second; yield what a daemon of them has as its variables.

    Args:
        num_ranks: How many.
        more: Variables of the daemon besides.

    Yields:
        Its runtime directory as well.
    """
    with tempfile.TemporaryDirectory(prefix="ampwatch-fleet-", dir="/dev/shm") as name:
        place = Path(name)
        runtime = place / "0" / "runtime"
        environ = {
            "AMPWATCH_RUNTIME_DIR": str(runtime),
            "AMPWATCH_RING_DIR": str(place / "0" / "rings"),
            "AMPWATCH_PORT": "0",
            "AMPWATCH_READERS": "all",
            "AMPWATCH_GPU": "off",
            "AMPWATCH_REPORT_FILES": "0",
            **more,
        }
        with child(HERE / "simulated.py", place, "1", str(num_ranks)) as writers:
            said(writers)
            yield environ, runtime


@contextmanager
def watched(
    num_ranks: int, settle_seconds: float = 5.0, **more: str
) -> Iterator[tuple[subprocess.Popen[str], DaemonInfo]]:
    """Run made-up ranks and a daemon that reads them and asks for no token.

    Args:
        num_ranks: How many.
        settle_seconds: Time for the daemon to read what there is already. Unit: s.
        more: Variables of the daemon besides.
    """
    with (
        made_up_ranks(num_ranks, **more) as (environ, runtime),
        child("-m", "ampwatch", "daemon", "--log-level", "warning", **environ) as daemon,
    ):
        while (info := read_info(runtime)) is None:
            time.sleep(0.05)
        time.sleep(settle_seconds)
        yield daemon, info


def on_one_machine(num_ranks: int, which: str) -> dict[str, Any]:
    """Return what ``num_ranks`` ranks cost the daemon of their machine."""
    with watched(num_ranks, AMPWATCH_MODULE_SERIES_RANKS=which) as (daemon, info):
        found = costs(daemon.pid, info.port)
    return {"ranks": num_ranks, **found, "start_s": round(seconds_to_start(num_ranks), 3)}


def seconds_to_start(num_ranks: int) -> float:
    """Return the time from starting a daemon beside that many rings to its first answer. Unit: s."""
    with made_up_ranks(num_ranks) as (environ, runtime):
        begin = time.perf_counter()
        with child("-m", "ampwatch", "daemon", "--log-level", "warning", **environ):
            while (info := read_info(runtime)) is None:
                time.sleep(0.002)
            get(info.port, "/healthz")
            return time.perf_counter() - begin


def costs(pid: int, port: int) -> dict[str, Any]:
    """Return what a daemon uses at rest, scraped, and asked for its page."""
    begin, used = time.monotonic(), cpu_seconds(pid)
    time.sleep(IDLE_SECONDS)
    idle = (cpu_seconds(pid) - used) / (time.monotonic() - begin)
    accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
    times = []
    used = cpu_seconds(pid)
    for _ in range(NUM_SCRAPES):
        packed, took = get(port, "/metrics", Accept=accept, **{"Accept-Encoding": "gzip"})
        times.append(took)
        time.sleep(BETWEEN_SCRAPES)
    between = statistics.mean(times) + BETWEEN_SCRAPES
    per_scrape = (cpu_seconds(pid) - used) / NUM_SCRAPES - idle * between
    body = gzip.decompress(packed) if packed[:2] == b"\x1f\x8b" else packed
    rss = resident(pid)
    state, state_took = get(port, "/state.json")
    return {
        "series": sum(series_by_topic(body).values()),
        "series_by_topic": series_by_topic(body),
        "scrape_bytes": len(body),
        "scrape_bytes_gzip": len(packed),
        "scrape_min_s": round(min(times), 4),
        "scrape_median_s": round(statistics.median(times), 4),
        "scrape_max_s": round(max(times), 4),
        "scrape_cpu_s": round(per_scrape, 4),
        "cpu_unscraped": round(idle, 4),
        "rss_bytes": rss,
        "state_bytes": len(state),
        "state_s": round(state_took, 3),
        "rss_bytes_after_state": resident(pid),
    }


def in_prometheus(num_hosts: int, which: str, minutes: float, seconds: int) -> dict[str, Any]:
    """Return what ``num_hosts`` machines cost the Prometheus that scrapes them."""
    with ExitStack() as stack:
        name = tempfile.TemporaryDirectory(prefix="ampwatch-fleet-", dir="/dev/shm")
        disk = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ampwatch-fleet-")))
        place = Path(stack.enter_context(name))
        for host in range(num_hosts):
            (place / str(host) / "runtime").mkdir(mode=0o700, parents=True)
        writers = stack.enter_context(
            child(HERE / "simulated.py", place, str(num_hosts), str(RANKS_PER_HOST))
        )
        num_ranks = said(writers)
        hosts = stack.enter_context(child(HERE / "hosts.py", place, str(num_hosts), which))
        ports = said(hosts)
        server = stack.enter_context(prometheus(disk, ports, seconds))
        empty = resident(server.pid)
        used, began = cpu_seconds(server.pid), time.monotonic()
        time.sleep(minutes * 60)
        cpu = (cpu_seconds(server.pid) - used) / (time.monotonic() - began)
        own = server.own()
        scrape, _ = get(ports[0], "/metrics")
        rss = resident(server.pid)
        series = own["prometheus_tsdb_head_series"]
        found = {
            "hosts": num_hosts,
            "ranks": num_ranks,
            "module_series_ranks": which,
            "minutes": minutes,
            "scrape_interval_s": seconds,
            "series_per_host": sum(series_by_topic(scrape).values()),
            "bytes_per_host": len(scrape),
            "head_series": series,
            "head_chunks": own["prometheus_tsdb_head_chunks"],
            "samples_per_second": server.value(
                "sum(rate(prometheus_tsdb_head_samples_appended_total[2m]))"
            ),
            "rss_bytes_empty": empty,
            "rss_bytes": rss,
            "heap_inuse_bytes": own["go_memstats_heap_inuse_bytes"],
            "rss_bytes_per_series": round((rss - empty) / series),
            "rss_bytes_per_rank": round((rss - empty) / num_ranks),
            "heap_bytes_per_series": round(own["go_memstats_heap_inuse_bytes"] / series),
            "cpu": round(cpu, 3),
            "scrape_seconds_median": server.value(
                'quantile(0.5, scrape_duration_seconds{job="ampwatch"})'
            ),
            "scrape_seconds_max": server.value('max(scrape_duration_seconds{job="ampwatch"})'),
            "targets_up": server.value('sum(up{job="ampwatch"})'),
            "rules_seconds": server.value("max(prometheus_rule_group_last_duration_seconds)"),
            "recorded_series": server.value(
                'count({__name__=~"(run|instance_run|instance_run_le):ampwatch_.+"})'
            ),
            "wal_bytes": sum(f.stat().st_size for f in disk.rglob("wal/*") if f.is_file()),
        }
        return {
            **found,
            "queries": {**timed(server, QUERIES), **timed(server, RECORDED, "recorded: ")},
        }


def main() -> None:
    """Measure, print, and keep the numbers if told to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=("daemon", "prometheus", "table"))
    parser.add_argument("sizes", nargs="*", type=int, help="ranks of the machine; or machines")
    parser.add_argument("--which", default="host", help="the setting module_series_ranks")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for each Prometheus")
    parser.add_argument(
        "--interval", type=int, default=SCRAPE_SECONDS, help="from scrape to scrape"
    )
    parser.add_argument("--json", metavar="FILE", help="keep the numbers; added to what is there")
    args = parser.parse_args()
    if args.part == "table":
        write_table(Path(args.json))
        return
    results = []
    for size in args.sizes or (ON_ONE_MACHINE if args.part == "daemon" else HOSTS):
        if args.part == "daemon":
            results.append({"module_series_ranks": args.which, **on_one_machine(size, args.which)})
        else:
            results.append(in_prometheus(size, args.which, args.minutes, args.interval))
        print(json.dumps(results[-1], indent=2), flush=True)
    if args.json:
        keep(Path(args.json), args.part, results)


def table(results: dict[str, Any]) -> str:
    """Return what the daemon costs as a table of docs/operate.md."""
    titles = (
        "ranks | `module_series_ranks` | series | scrape | on the wire | scrape: CPU"
        " | scrape: fastest, median | CPU at rest | resident memory | `/state.json` | start"
    )
    rows = [f"| {titles} |", f"|{' --- |' * 11}"]
    for row in sorted(results["daemon"], key=lambda row: row["ranks"]):
        cells = [
            row["ranks"],
            f"`{row['module_series_ranks']}`",
            row["series"],
            f"{row['scrape_bytes'] / 1e3:.0f} kB",
            f"{row['scrape_bytes_gzip'] / 1e3:.0f} kB",
            f"{row['scrape_cpu_s'] * 1e3:.0f} ms",
            f"{row['scrape_min_s'] * 1e3:.0f} ms, {row['scrape_median_s'] * 1e3:.0f} ms",
            f"{row['cpu_unscraped']:.1%}",
            f"{row['rss_bytes'] / 1e6:.0f} MB",
            f"{row['state_bytes'] / 1e3:.0f} kB, {row['state_s']:.2f} s",
            f"{row['start_s']:.2f} s",
        ]
        rows.append(f"| {' | '.join(map(str, cells))} |")
    what = f"{results['date']}, at commit `{results['commit']}`, {results['machine']}"
    return "\n".join([*rows, "", f"Measured {what}."])


def write_table(file: Path) -> None:
    """Put the table of a file of results where docs/operate.md marks its place."""
    text = PAGE.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    made = table(json.loads(file.read_text(encoding="utf-8")))
    PAGE.write_text(f"{before}{begin}\n{made}\n{end}{after}", encoding="utf-8")


def keep(file: Path, part: str, results: list[dict[str, Any]]) -> None:
    """Add results to a file, with what they were measured on."""
    version = ""
    if shutil.which("prometheus") is not None:
        said_by = subprocess.run(
            ["prometheus", "--version"], capture_output=True, text=True, check=False
        )
        version = (said_by.stdout + said_by.stderr).partition(" (")[0].rpartition(" ")[2]
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
        cwd=HERE,
    )
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    known |= {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "commit": commit.stdout.strip(),
        "machine": f"{os.cpu_count()} cores shared with others, {platform.machine()}, no GPU",
        "versions": {
            "ampwatch": __version__,
            "python": platform.python_version(),
            "prometheus": version,
        },
        part: [*known.get(part, []), *results],
    }
    file.write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
