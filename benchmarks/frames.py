"""How light is the page: what it loads before its first chart, what it is sent, and how smoothly it moves.

``python benchmarks/frames.py`` gives a daemon 18 ranks and then 256, each with a day of history, and opens its
page in headless Chromium. It counts what crosses the network until the first chart is drawn, and from then on the
frames of the page while every rank ends a step a second: at rest, and while it is scrolled. Other work on the
machine takes frames as well, so an empty page as long as this one takes turns with it: the difference is what the
page costs. The history is made up, the rest is real.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import platform
import random
import shutil
import statistics
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fleet import child, said
from msgspec.structs import replace
from selenium import webdriver

from ampwatch import __version__
from ampwatch.host.daemon.access import Access
from ampwatch.host.daemon.server import Server
from ampwatch.host.daemon.site import Site
from ampwatch.host.daemon.web_config import WebConfig
from ampwatch.host.fleet import Fleet
from ampwatch.settings import Settings
from ampwatch.wire.records import ALL_MODULES, SkipClass, Topic
from tests.integration.browsing import FLAGS
from tests.workshop.fleets import PRECISION, put
from tests.workshop.records import FACTS, histogram, identity, optimizer, ranges, sampling, step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from selenium.webdriver.chrome.webdriver import WebDriver

    from ampwatch.wire.records import Record

DAY_SECONDS = 86400.0
STEP_SECONDS = 30.0
SAMPLE_STEPS = 10
GROWTH_STEPS = 400
MODULES = [
    f"transformer.h.{i // 4}.{('attn.q', 'attn.k', 'mlp.up', 'mlp.down')[i % 4]}" for i in range(48)
]
NUM_RANKS = (18, 256)
FRAME_SECONDS = 1.0 / 60.0
SCROLL_PX_PER_S = 2000
SETTLED_SECONDS = 2.0

OBSERVER = """
window.seen = { frames: [], long: [], first: null };
new PerformanceObserver((list) => seen.long.push(...list.getEntries().map((e) => e.duration)))
  .observe({ type: "longtask", buffered: true });
new MutationObserver((_, self) => {
  if (!document.querySelector("#chart-scale svg path")) return;
  seen.first = performance.now();
  self.disconnect();
}).observe(document, { childList: true, subtree: true });
let last = 0;
requestAnimationFrame(function tick(now) {
  if (last) seen.frames.push(now - last);
  last = now;
  requestAnimationFrame(tick);
});
"""
"""Put into the page before anything else of it: when the first chart was there, and how long frames and tasks took."""


class Frames(NamedTuple):
    """The frames of a while.

    Attributes:
        lengths: How long each was on the screen. Unit: s.
        busy: Time that the main thread has worked. Unit: s.
        took: How long it was. Unit: s.
        long: Tasks of more than 50 ms. Unit: ms.
    """

    lengths: list[float]
    busy: float
    took: float
    long: list[float]

    def and_(self, later: Frames) -> Frames:
        """Return the frames of both whiles."""
        return Frames(*(mine + its for mine, its in zip(self, later, strict=True)))

    def told(self) -> dict[str, Any]:
        """Return what is to be known of them."""
        lengths = sorted(self.lengths)
        return {
            "busy": round(self.busy / self.took, 3),
            "frames_per_s": round(len(lengths) / sum(lengths), 1),
            "frame_99_ms": round(1000 * lengths[int(0.99 * len(lengths))], 1),
            "frame_worst_ms": round(1000 * lengths[-1], 1),
            "late_frames": round(sum(f > 1.5 * FRAME_SECONDS for f in lengths) / len(lengths), 4),
            "long_tasks_ms": [round(task) for task in sorted(self.long, reverse=True)[:5]],
        }


class MadeUpRank:
    """A rank of which nobody has written a ring.

    Args:
        rank: Which one.
        num_ranks: Of how many.
        started: Unix time. Unit: s.
    """

    def __init__(self, rank: int, num_ranks: int, started: float) -> None:
        self.key = f"/{rank}.ring"
        self.who = replace(
            identity(run="gpt", rank=rank, world_size=num_ranks), started_ns=int(started * 1e9)
        )
        self._random = random.Random(rank)
        self._index = -1
        self._scale = 15

    def step(self, now: float) -> Iterator[Record]:
        """Yield what it writes at the end of an iteration."""
        self._index += 1
        i = self._index
        skipped = i % GROWTH_STEPS == GROWTH_STEPS - 1
        self._scale = 14 + (i // GROWTH_STEPS) % 3
        yield step(
            i,
            time_ns=int((now - self._random.random()) * 1e9),
            duration_s=self._random.gauss(1.0, 0.05) if i else math.nan,
            loss=2.0 + 6.0 * math.exp(-i / 500) + self._random.gauss(0.0, 0.05),
            loss_scale=2.0**self._scale,
            skip_class=SkipClass.PROBE if skipped else SkipClass.NONE,
            consecutive_skips=int(skipped),
        )
        if i % SAMPLE_STEPS == 0:
            yield from self._sample(now)

    def _sample(self, now: float) -> Iterator[Record]:
        where = {"step": self._index, "time_ns": int(now * 1e9), "loss_scale": 2.0**self._scale}
        modules = MODULES if now > time.time() - 3 * SAMPLE_STEPS * STEP_SECONDS else []
        for module in (ALL_MODULES, *modules):
            peak = self._random.uniform(19, 21) - self._index / 1000
            bell = [math.ceil(1e6 * math.exp(-((e - peak) ** 2) / 30)) for e in range(40)]
            shape = histogram(-42 + self._scale, *bell, zeros=1000)
            yield ranges(module, Topic.GRADIENT, shape, dtype="float16", **where)
        yield sampling(step=self._index, interval=SAMPLE_STEPS)

    def day(self, started: float, now: float) -> Iterator[Record]:
        """Yield a day."""
        yield FACTS
        yield from PRECISION
        for i in range(int((now - started) / STEP_SECONDS)):
            yield from self.step(started + (i + 1) * STEP_SECONDS)
        yield optimizer(total_steps=self._index + 1)


def serve(num_ranks: int) -> None:
    """Serve the page of so many ranks, each of which ends a step a second, until standard input ends."""
    now = time.time()
    fleet, ranks = Fleet(Settings()), []
    for index in range(num_ranks):
        rank = MadeUpRank(index, num_ranks, now - DAY_SECONDS)
        put(fleet, rank.key, rank.who, rank.day(now - DAY_SECONDS, now))
        ranks.append(rank)
    access = Access("user", "all", Path(tempfile.mkdtemp()))
    server = Server("127.0.0.1", 0, Site(fleet, {}), WebConfig(), frozenset(), access)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    threading.Thread(target=lambda: (sys.stdin.read(), server.shutdown()), daemon=True).start()
    print(json.dumps(server.server_port), flush=True)
    while not server._stop.done():
        begin = time.time()
        for rank in ranks:
            put(fleet, rank.key, rank.who, rank.step(begin))
        time.sleep(max(0.05, 1.0 - (time.time() - begin)))


@contextmanager
def chromium() -> Iterator[WebDriver]:
    """Run a browser that tells what crosses its network."""
    with tempfile.TemporaryDirectory() as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        for flag in (*FLAGS, f"--user-data-dir={profile}", "--window-size=1440,900"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
        service = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
        driver = webdriver.Chrome(options=options, service=service)
        try:
            yield driver
        finally:
            driver.quit()


def events(browser: WebDriver) -> list[dict[str, Any]]:
    """Return what the network of the browser has done since this was asked last."""
    told = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [event for event in told if event["method"].startswith("Network.")]


def crossed(told: list[dict[str, Any]], until: float) -> dict[str, int]:
    """Return the bytes that came by ``until``, by route.

    Args:
        told: Events of the network.
        until: Timestamp as the browser has them. Unit: s.
    """
    routes, sizes = {}, {}
    for event in told:
        what = event["params"]
        if event["method"] == "Network.requestWillBeSent":
            routes[what["requestId"]] = what["request"]["url"].split("/", 3)[-1].partition("?")[0]
        elif what.get("timestamp", until) <= until and "encodedDataLength" in what:
            # What is whole says its size with its head; a stream is counted as it comes.
            size = what["encodedDataLength"]
            is_whole = event["method"] == "Network.loadingFinished"
            sizes[what["requestId"]] = size + (0 if is_whole else sizes.get(what["requestId"], 0))
    found: dict[str, int] = {}
    for request, size in sizes.items():
        route = "events" if routes.get(request) == "events" else "files"
        found[route] = found.get(route, 0) + size
    return found


def sent(port: int, path: str, num_events: int = 11) -> dict[str, int]:
    """Return the bytes of the first event of a stream, and of one of those after it."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
    stream = connection.getresponse()
    assert stream.fp is not None
    sizes, last = [0], time.monotonic()
    while len(sizes) <= num_events:
        taken = len(stream.fp.read1(1 << 20))
        if time.monotonic() - last > 0.4:  # events are a second apart
            sizes.append(0)
        last = time.monotonic()
        sizes[-1] += taken
    connection.close()
    return {"first_event": sizes[0], "later_event": round(statistics.median(sizes[1:-1]))}


def busy_seconds(browser: WebDriver) -> float:
    """Return the time that the page has worked: scripts, styles, layout and painting. Unit: s."""
    told = browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return float(next(metric["value"] for metric in told if metric["name"] == "TaskDuration"))


def opened_at(browser: WebDriver, port: int) -> dict[str, Any]:
    """Open the page, and return what came before its first chart."""
    browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": OBSERVER})
    browser.execute_cdp_cmd("Performance.enable", {})
    browser.execute_cdp_cmd("Network.setCacheDisabled", {"cacheDisabled": True})
    browser.get("about:blank")
    events(browser)
    begin = time.monotonic()
    browser.get(f"http://127.0.0.1:{port}/")
    while browser.execute_script("return window.seen.first") is None:
        if time.monotonic() - begin > 120:
            msg = "expected a chart in two minutes, got none"
            raise RuntimeError(msg)
        time.sleep(0.05)
    first = float(browser.execute_script("return window.seen.first"))
    told = events(browser)
    opened = next(
        e["params"]["timestamp"] for e in told if e["method"] == "Network.requestWillBeSent"
    )
    arrived = crossed(told, opened + first / 1000)
    return {
        "first_chart_s": round(first / 1000, 2),
        "files_bytes": arrived.get("files", 0),
        "events_bytes": arrived.get("events", 0),
    }


def rest(_: WebDriver, seconds: float) -> None:
    """Leave the page alone."""
    time.sleep(seconds)


def scroll(browser: WebDriver, seconds: float) -> None:
    """Scroll down and up again, as with a wheel, beside what itself can be scrolled."""
    until = time.monotonic() + seconds
    px = -round(SCROLL_PX_PER_S * seconds / 4)
    while time.monotonic() < until:
        gesture = {"x": 1435, "y": 450, "yDistance": px, "speed": SCROLL_PX_PER_S}
        browser.execute_cdp_cmd("Input.synthesizeScrollGesture", gesture)
        px = -px


def frames(browser: WebDriver, move: Callable[[WebDriver, float], None], seconds: float) -> Frames:
    """Count the frames of what is open while ``move`` does something with it."""
    browser.execute_script("Object.assign(seen, { frames: [], long: [] })")
    busy, begin = busy_seconds(browser), time.monotonic()
    move(browser, seconds)
    busy, took = busy_seconds(browser) - busy, time.monotonic() - begin
    seen = browser.execute_script("return seen")
    return Frames([frame / 1000 for frame in seen["frames"]], busy, took, seen["long"])


def take_turns(browser: WebDriver, port: int, seconds: float, rounds: int) -> dict[str, Any]:
    """Count frames of the page and of an empty one, in turns."""
    found: dict[str, Frames] = {}
    for _ in range(rounds):
        browser.get(f"http://127.0.0.1:{port}/")
        while browser.execute_script("return window.seen.first") is None:
            time.sleep(0.05)
        time.sleep(SETTLED_SECONDS)
        for what in ("page", "empty"):
            if what == "empty":
                px = browser.execute_script("return document.body.scrollHeight")
                browser.get(f"data:text/html,<body style='height:{px}px'>")
            for move in (rest, scroll):
                name = f"{what}_{move.__name__}"
                now = frames(browser, move, seconds)
                found[name] = now if name not in found else found[name].and_(now)
    return {name: counted.told() for name, counted in found.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=NUM_RANKS)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each turn")
    parser.add_argument(
        "--rounds", type=int, default=4, help="of turns of the page and an empty one"
    )
    parser.add_argument("--serve", type=int, metavar="RANKS", help="be the daemon")
    args = parser.parse_args()
    if args.serve:
        serve(args.serve)
        return
    print(json.dumps({"ampwatch": __version__, "machine": platform.machine()}))
    for num_ranks in args.ranks:
        with child(__file__, "--serve", str(num_ranks)) as daemon, chromium() as browser:
            port = said(daemon)
            seen = opened_at(browser, port)
            seen |= take_turns(browser, port, args.seconds, args.rounds)
            browser.get("about:blank")
            print(json.dumps({"ranks": num_ranks, **seen, **sent(port, "/events")}), flush=True)


if __name__ == "__main__":
    main()
