"""Does a page that somebody looks at delay the scrape?

``python benchmarks/pages.py`` puts 256 ranks on a machine, opens three pages and closes them again, turn by
turn, and scrapes their daemon meanwhile. Then it asks for the state. Ranks are simulated (`simulated.py`),
the rest is real.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import sys
import threading
import time

from fleet import HERE, child, cpu_seconds, get, resident, watched

EVENTS = b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n"
TURN_SECONDS = 6.0
PAUSE_SECONDS = 0.35


def look(port: int, num_pages: int) -> None:
    """Be so many browsers until the end of standard input; print the bytes that came."""
    came = [0] * num_pages

    def read(index: int) -> None:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(EVENTS)
            while data := connection.recv(1 << 18):
                came[index] += len(data)

    for index in range(num_pages):
        threading.Thread(target=read, args=(index,), daemon=True).start()
    sys.stdin.read()
    print(json.dumps(came), flush=True)


def turn(pid: int, port: int, num_pages: int) -> tuple[list[float], float]:
    """Return the times of scrapes beside open pages, and the daemon's share of a core."""
    command = (HERE / "pages.py", "--look", str(port), "--pages", str(num_pages))
    with child(*command) as browsers:
        time.sleep(2.0)
        times = []
        used, begin = cpu_seconds(pid), time.monotonic()
        while time.monotonic() - begin < TURN_SECONDS:
            times.append(get(port, "/metrics")[1])
            time.sleep(PAUSE_SECONDS)
        share = (cpu_seconds(pid) - used) / (time.monotonic() - begin)
        assert browsers.stdin is not None
        browsers.stdin.close()
        browsers.wait(20)
    return times, share


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=256)
    parser.add_argument("--pages", type=int, default=3)
    parser.add_argument("--turns", type=int, default=6, help="of each kind")
    parser.add_argument("--look", type=int, metavar="PORT", help="be the browsers")
    args = parser.parse_args()
    if args.look:
        look(args.look, args.pages)
        return
    with watched(args.ranks) as (daemon, info):
        times: dict[int, list[float]] = {0: [], args.pages: []}
        shares: dict[int, list[float]] = {0: [], args.pages: []}
        for _ in range(args.turns):
            for num_pages in times:
                some, share = turn(daemon.pid, info.port, num_pages)
                times[num_pages] += some
                shares[num_pages].append(share)
        for num_pages, taken in times.items():
            print(
                f"{num_pages} pages: scrape median {statistics.median(taken):.3f} s,"
                f" worst {max(taken):.3f} s, of {len(taken)};"
                f" daemon {statistics.mean(shares[num_pages]):.2f} of a core"
            )
        ratio = statistics.median(times[args.pages]) / statistics.median(times[0])
        print(f"ratio of medians {ratio:.2f}")
        for _ in range(3):
            body, took = get(info.port, "/state.json")
            print(f"state: {len(body) / 1e6:.1f} MB in {took:.2f} s")
        print(f"{resident(daemon.pid) >> 20} MB resident")


if __name__ == "__main__":
    main()
