"""A million watched steps, and a day of a daemon: memory and time stay flat, nothing is lost, nothing is left.

Usage: ``make soak ARGS="--steps 20000 --hours 2 --json benchmarks/results/x.json"``. The training runs at ``standard``,
with a GradScaler that skips as it searches for its scale and bursts of overflow that make findings; a program beside
it scrapes the daemon and keeps three pages open. The day of the daemon is one of a clock that is set by hand: four
ranks write, end and come again every hour. Unlike the benchmarks it asserts, in words, and ends with 1 if one does
not hold. Steps are timed by the clock of their thread, so that a busy machine does not matter.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

import ampwatch
from ampwatch.host.daemon.watcher import RingWatcher
from ampwatch.host.fleet import Fleet
from ampwatch.host.metrics.prometheus import PrometheusExporter
from ampwatch.host.page.broadcast import Broadcast
from ampwatch.host.page.lines import Shown
from ampwatch.host.page.page import Feed
from ampwatch.runtime import SHARED_MEMORY
from ampwatch.settings import Settings
from ampwatch.wire.rendezvous.lock import read_info
from ampwatch.wire.rendezvous.token import read_token
from ampwatch.wire.ring import RingWriter
from benchmarks.conditions import kept, own_places, write
from tests.promises.test_it_leaves_nothing_behind import _residue
from tests.trainings import Run
from tests.workshop.clocks import START, Clock
from tests.workshop.records import end, finding, identity, optimizer, step

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

STEPS = 1_000_000
HOURS = 24.0
PAGES = 3
SCRAPE_SECONDS = 1.0

BURST_EVERY = 2000
"""Steps from one burst of overflow to the next."""

BURST_STEPS = 8
WARM_UP_STEPS = 500

SAMPLES = 200
"""Looks at the memory of both processes in the whole run."""

MAX_GROWTH_KIB = 8 << 10
"""Growth of resident memory from the second tenth to the last: that of allocators and of histories that fill."""

MAX_SLOWER = 1.25
"""Last tenth over first tenth, of the median step."""

MAX_SLOWER_TAIL = 1.5
"""The same of the 99th percentile."""

MAX_SLOWER_SCRAPE = 2.0
MIN_SCRAPE_MS = 20.0
"""Scrapes that take less are not compared: they are noise."""

TICK_SECONDS = 5.0
RANKS = 4
LIFE_HOURS = 1.0
GRACE_SECONDS = 600.0


class Check(NamedTuple):
    """A statement that holds or does not.

    Attributes:
        what: The statement.
        got: The numbers.
        holds: Whether it does.
    """

    what: str
    got: str
    holds: bool


def main() -> int:
    """Soak; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="make soak", description=(__doc__ or "").partition("\n")[0]
    )
    add = parser.add_argument
    add("--steps", type=int, default=STEPS, help="steps of the training; 0 for none")
    add("--hours", type=float, default=HOURS, help="hours of the daemon; 0 for none")
    add("--json", type=Path, metavar="FILE", help="where to write the numbers")
    add("--read", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.read:
        return read_daemon(args.read[0], int(args.read[1]))
    results: list[dict[str, Any]] = []
    checks: list[Check] = []
    for name, amount, soak in (("training", args.steps, train), ("daemon", args.hours, a_day)):
        if amount:
            print(
                f"==> Soaking the {name}: {amount:g} {'steps' if name == 'training' else 'hours'}",
                flush=True,
            )
            numbers, found = soak(amount)
            results.append({"soak": name, **numbers, "checks": [each._asdict() for each in found]})
            checks += found
            for each in found:
                print(
                    f"    {'holds' if each.holds else 'FAILS'}: {each.what}: {each.got}", flush=True
                )
    if args.json:
        write(args.json, kept(results, "cpu", steps=args.steps, hours=args.hours))
    return int(not all(each.holds for each in checks))


# The training


def train(steps: int) -> tuple[dict[str, Any], list[Check]]:
    """Train a small model for many steps, watched, scraped and looked at."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    with own_places():
        return _train(steps, Path(os.environ["AMPWATCH_RUNTIME_DIR"]).parent)


def _train(steps: int, place: Path) -> tuple[dict[str, Any], list[Check]]:
    os.environ["AMPWATCH_REPORT_DIR"] = str(place / "reports")
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    adam = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cpu", growth_interval=100)
    inputs = torch.randn(64, 8, 16)

    def iterate(number: int) -> None:
        x = inputs[number % 64]
        if number % BURST_EVERY >= BURST_EVERY - BURST_STEPS:
            x = x * 1e6  # more than float16 holds: the first product overflows
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(adam)
        scaler.update()
        adam.zero_grad()

    for number in range(10):
        iterate(number)
    run = Run([model], [adam], scaler)
    before = _residue(run)
    every = max(steps // SAMPLES, 1)
    times = torch.zeros(steps, dtype=torch.float32).add_(
        1.0
    )  # written once, so that it does not grow
    ours: list[int] = []
    theirs: list[int] = []
    findings: set[tuple[str, str]] = set()
    begun = time.monotonic()
    with ampwatch.monitor(model, scaler, optimizer=adam, run="soak") as watch:
        info = read_info(Path(os.environ["AMPWATCH_RUNTIME_DIR"]))
        if info is None:
            msg = "expected a daemon, got none; see the log of monitor()"
            raise RuntimeError(msg)
        reader = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.soak", "--read", info.host, str(info.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(steps):
            clock = time.thread_time_ns()
            iterate(number)
            times[number] = (time.thread_time_ns() - clock) / 1e3
            if number % every == 0:
                ours.append(resident_kib())
                theirs.append(resident_kib(info.pid))
        findings = {(f.kind, f.where) for f in watch.findings}
        seconds = time.monotonic() - begun
        metrics = _settled_metrics(info.host, info.port, steps)
        said, _ = reader.communicate("end")
    seen = json.loads(said)
    # What is taken back when the last reference goes is taken back now.
    del watch
    left = {name: value for name, value in _residue(run).items() if value != before[name]}
    files = _files_left(place)
    checks = [
        Check("every step is counted", f"{metrics['ampwatch_steps_total']:.0f} of {steps}", metrics["ampwatch_steps_total"] == steps),
        Check("steps are skipped", f"{metrics['ampwatch_optimizer_steps_skipped_total']:.0f}", metrics["ampwatch_optimizer_steps_skipped_total"] > 0),
        Check("there are findings", ", ".join(sorted(kind for kind, _ in findings)), len(findings) > 0),
        *(
            Check(f"{name} is 0", f"{metrics[name]:.0f}", metrics[name] == 0)
            for name in ("ampwatch_ring_records_dropped_total", "ampwatch_ring_records_lost_total", "ampwatch_observations_dropped_total", "ampwatch_sensor_errors_total")
        ),
        _flat("the memory of the training is flat", ours),
        _flat("the memory of the daemon is flat", theirs),
        *_steady(times.tolist()),
        Check("every scrape is answered", f"{seen['failed']} of {len(seen['ms'])} failed", seen["failed"] == 0 and len(seen["ms"]) > 0),
        _steady_scrapes(seen["ms"]),
        Check(f"{PAGES} pages are told to the end", f"last events {seen['pages']} s before it", len(seen["pages"]) == PAGES and max(seen["pages"], default=99) < 30),
        Check("nothing is left in the process", ", ".join(left) or "nothing", not left),
        Check("nothing is left in memory", ", ".join(files) or "nothing", not files),
    ]  # fmt: skip
    numbers = {
        "steps": steps,
        "seconds": round(seconds, 1),
        "scrapes": len(seen["ms"]),
        "training_kib": ours,
        "daemon_kib": theirs,
        "overhead_seconds": metrics.get("ampwatch_overhead_seconds_total"),
    }
    return numbers, checks


def resident_kib(pid: int | str = "self") -> int:
    """Return the resident memory of a process. Unit: KiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024


def _flat(what: str, found: Sequence[int]) -> Check:
    tenth = max(len(found) // 10, 1)
    early, late = found[tenth : 2 * tenth], found[-tenth:]
    growth = statistics.median(late) - statistics.median(early or found)
    late_half = found[len(found) // 2 :]
    slope = (
        statistics.linear_regression(range(len(late_half)), late_half).slope * len(found)
        if len(late_half) > 1
        else 0.0
    )
    got = f"{growth:+.0f} KiB from the second tenth to the last (at most {MAX_GROWTH_KIB}); the slope of the second half is {slope:+.0f} KiB a run"
    return Check(what, got, growth <= MAX_GROWTH_KIB)


def _steady(microseconds: list[float]) -> list[Check]:
    settled = microseconds[min(WARM_UP_STEPS, len(microseconds) // 10) :]
    tenth = max(len(settled) // 10, 1)
    first, last = sorted(settled[:tenth]), sorted(settled[-tenth:])
    checks = []
    for name, share, most in (
        ("median", 0.5, MAX_SLOWER),
        ("99th percentile", 0.99, MAX_SLOWER_TAIL),
    ):
        early, late = (values[int(share * (len(values) - 1))] for values in (first, last))
        got = f"{early:.0f} us in the first tenth, {late:.0f} us in the last (at most x {most})"
        checks.append(Check(f"the {name} step is as fast in the end", got, late <= most * early))
    return checks


def _steady_scrapes(milliseconds: list[float]) -> Check:
    tenth = max(len(milliseconds) // 10, 1)
    early, late = (
        statistics.median(part or [0.0]) for part in (milliseconds[:tenth], milliseconds[-tenth:])
    )
    got = f"median {early:.1f} ms in the first tenth, {late:.1f} ms in the last"
    return Check(
        "a scrape is as fast in the end", got, late <= max(MAX_SLOWER_SCRAPE * early, MIN_SCRAPE_MS)
    )


def _settled_metrics(host: str, port: int, steps: int) -> dict[str, float]:
    """Return sums of the run's metrics, by name, when the daemon has read all of them, or in half a minute."""
    until = time.monotonic() + 30
    while True:
        with contextlib.closing(http.client.HTTPConnection(host, port, timeout=30)) as connection:
            connection.request("GET", "/metrics", headers=_headers(host, port))
            text = connection.getresponse().read().decode()
        sums: dict[str, float] = {}
        for name, value in re.findall(
            r'^(ampwatch_\w+)\{[^}]*run="soak"[^}]*\} (\S+)', text, re.MULTILINE
        ):
            sums[name] = sums.get(name, 0.0) + float(value)
        if sums.get("ampwatch_steps_total") == steps or time.monotonic() > until:
            return sums
        time.sleep(0.2)


def _headers(host: str, port: int) -> dict[str, str]:
    token = read_token(Path(os.environ["AMPWATCH_RUNTIME_DIR"]))
    return {"Host": f"{host}:{port}", **({"Authorization": f"Bearer {token}"} if token else {})}


def _files_left(place: Path) -> list[str]:
    """Return the rings that are still there when the daemon has had time to take them."""
    until = time.monotonic() + 30
    while (found := [p.name for p in (place / "rings").iterdir()]) and time.monotonic() < until:
        time.sleep(0.2)
    return found


# What reads the daemon, in a process of its own


def read_daemon(host: str, port: int) -> int:
    """Scrape a daemon and keep pages open until stdin ends; print what was seen."""
    milliseconds: list[float] = []
    failed = 0
    over = threading.Event()
    told = [0.0] * PAGES
    for number in range(PAGES):
        threading.Thread(target=_page, args=(host, port, told, number), daemon=True).start()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    while True:
        begun = time.monotonic()
        try:
            with contextlib.closing(
                http.client.HTTPConnection(host, port, timeout=30)
            ) as connection:
                connection.request("GET", "/metrics", headers=_headers(host, port))
                answer = connection.getresponse()
                failed += answer.status != http.client.OK or not answer.read()
        except OSError:
            failed += 1
        milliseconds.append(round((time.monotonic() - begun) * 1e3, 2))
        if over.wait(SCRAPE_SECONDS):
            break
    now = time.monotonic()
    print(
        json.dumps(
            {"ms": milliseconds, "failed": failed, "pages": [round(now - at, 1) for at in told]}
        )
    )
    return 0


def _page(host: str, port: int, told: list[float], number: int) -> None:
    """Read events, and connect anew where the connection ends, as a browser does."""
    while True:
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection(host, port, timeout=30)
            connection.request("GET", "/events", headers=_headers(host, port))
            answer = connection.getresponse()
            while line := answer.readline():
                if line.startswith(b"event: "):
                    told[number] = time.monotonic()
        time.sleep(1)


# A day of the daemon


def a_day(hours: float) -> tuple[dict[str, Any], list[Check]]:
    """Have a watcher, a fleet, scrapes and a page live through hours of a clock that is set by hand."""
    place = Path(tempfile.mkdtemp(prefix="ampwatch-soak-", dir=SHARED_MEMORY))
    try:
        return _a_day(hours, place)
    finally:
        shutil.rmtree(place, ignore_errors=True)


class _Job:
    """The ranks of a run, which write a step each tick."""

    def __init__(self, place: Path, started: float, slots: int) -> None:
        who = {
            "world_size": RANKS,
            "started_ns": int(started * 1e9),
            "pid": os.getpid(),
            "run": "day",
        }
        self.writers = [
            RingWriter.create([place], identity(rank=rank, local_rank=rank, **who), slots=slots)
            for rank in range(RANKS)
        ]
        self.steps = 0

    def tick(self, now: float) -> None:
        at = int(now * 1e9)
        for writer in self.writers:
            writer.put(step(self.steps, time_ns=at, duration_s=TICK_SECONDS))
            writer.put(optimizer(0, step=self.steps, total_steps=self.steps + 1))
            if self.steps % 100 == 7:
                writer.put(finding())
        self.steps += 1

    def finish(self, now: float) -> None:
        for writer in self.writers:
            writer.close(end(time_ns=int(now * 1e9)), keep=True)


def _a_day(
    hours: float,
    place: Path,
    *,
    life_hours: float = LIFE_HOURS,
    slots: int = 0,
    steps_per_tick: int = 1,
) -> tuple[dict[str, Any], list[Check]]:
    clock = Clock(START)
    place.mkdir(mode=0o700, exist_ok=True)
    settings = Settings(grace_seconds=GRACE_SECONDS)
    fleet = Fleet(settings, clock)
    watcher = RingWatcher(fleet, lambda: [place], grace_seconds=GRACE_SECONDS, clock=clock)
    exporter = PrometheusExporter(fleet)
    # Held as by a page that shows what comes first.
    channel = Broadcast(Feed(fleet, clock)).channel(Shown())
    ticks = int(hours * 3600 / TICK_SECONDS)
    life = int(life_hours * 3600 / TICK_SECONDS)
    every = max(ticks // SAMPLES, 1)
    memory: list[int] = []
    polls: list[float] = []
    scrapes: list[float] = []
    most_ranks = lost = jobs = 0
    job: _Job | None = None
    descriptors = 0
    begun = time.monotonic()
    for number in range(ticks):
        clock.now += TICK_SECONDS
        if number % life == 0:
            if job is not None:
                job.finish(clock.now)
            job, jobs = _Job(place, clock.now, slots or settings.ring_slots), jobs + 1
        assert job is not None
        for _ in range(steps_per_tick):
            job.tick(clock.now)
        polls.append(_timed(watcher.poll))
        if number % 3 == 0:
            scrapes.append(_timed(exporter.render))
            # The page's state is made anew every second of its own clock; here each time.
            channel.since(0, 0.0)
        if number % every == 0:
            memory.append(resident_kib())
            most_ranks = max(most_ranks, len(fleet.ranks()))
        if number == min(life // 2, ticks - 1):
            descriptors = _descriptors()
    lost = sum(rank.records_lost for rank in fleet.ranks())
    # Half-way through a life, as above: while a job has just ended its rings are still there.
    growth = _descriptors() - descriptors
    if job is not None:
        job.finish(clock.now)
    watcher.poll()
    clock.now += 2 * GRACE_SECONDS
    watcher.poll()
    exporter.render()
    ranks_left = len(fleet.ranks())
    files = [path.name for path in place.iterdir()]
    watcher.close()
    checks = [
        _flat("the memory of the daemon is flat over the day", memory),
        *(
            _as_fast(f"a {what} takes as long in the end", taken)
            for what, taken in (("poll", polls), ("scrape", scrapes))
        ),
        Check("no record is lost", f"{lost}", lost == 0),
        Check("a run that came again takes the place of the one before", f"{most_ranks} ranks at most, {jobs} starts of {RANKS}", most_ranks <= 2 * RANKS),
        Check("descriptors are given back", f"{growth:+d}", growth <= RANKS),
        Check("ranks go when their time is over", f"{ranks_left} are left", ranks_left == 0),
        Check("no file is left", ", ".join(files) or "nothing", not files),
    ]  # fmt: skip
    numbers = {
        "hours": hours,
        "polls": ticks,
        "scrapes": len(scrapes),
        "jobs": jobs,
        "seconds": round(time.monotonic() - begun, 1),
        "daemon_kib": memory,
    }
    return numbers, checks


def _timed(call: Callable[[], object]) -> float:
    begun = time.thread_time_ns()
    call()
    return (time.thread_time_ns() - begun) / 1e6


def _as_fast(what: str, milliseconds: list[float]) -> Check:
    # The first tenth has histories that are still short; what counts is that it does not go on.
    tenth = max(len(milliseconds) // 10, 1)
    early = statistics.median(milliseconds[2 * tenth : 3 * tenth] or milliseconds)
    late = statistics.median(milliseconds[-tenth:])
    got = f"median {early:.2f} ms in the third tenth, {late:.2f} ms in the last (at most x {MAX_SLOWER_TAIL})"
    return Check(what, got, late <= MAX_SLOWER_TAIL * early)


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


if __name__ == "__main__":
    sys.exit(main())
