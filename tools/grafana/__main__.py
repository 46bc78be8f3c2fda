"""Draw the dashboards as Grafana's packages draw them with the data of a Prometheus.

    python -m tools.grafana --prometheus URL [--out DIR] [--only NAME ...]

``tools.grafana.scene`` makes a Prometheus with something to look at.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from pathlib import Path

from ampwatch.errors import AmpwatchError
from tools.grafana.page import Setting, chromium, drawn, picture, served

DASHBOARDS = Path(__file__).parents[2] / "dashboards"


def main() -> None:
    """Write a picture of each dashboard."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.grafana",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--prometheus", required=True, metavar="URL", help="where the queries go")
    add("--out", type=Path, default=Path(), metavar="DIR", help="where the pictures go")
    add("--only", nargs="*", default=[], metavar="NAME", help="as ampwatch-run; all if not given")
    add("--start", type=float, help="Unix time; an hour before the end if not given")
    add("--end", type=float, default=time.time(), help="Unix time; now if not given")
    add("--scrape-seconds", type=float, default=15.0, help="scrape interval of the data source")
    add(
        "--set",
        action="append",
        default=[],
        metavar="DASHBOARD.VARIABLE=VALUE",
        help="what is chosen, as ampwatch-run.run=gpt; all where nothing is",
    )
    try:
        _draw(parser.parse_args())
    except AmpwatchError as error:
        sys.exit(f"grafana: {error}")


def _draw(arguments: argparse.Namespace) -> None:
    files = sorted(DASHBOARDS.glob("ampwatch-*.json"))
    if unknown := set(arguments.only) - {file.stem for file in files}:
        msg = f"expected --only with names of dashboards, as ampwatch-run, got {' '.join(unknown)}"
        raise AmpwatchError(msg)
    start = arguments.end - 3600 if arguments.start is None else arguments.start
    arguments.out.mkdir(parents=True, exist_ok=True)
    with served() as address, chromium() as browser:
        for file in files:
            if arguments.only and file.stem not in arguments.only:
                continue
            span = start, arguments.end, arguments.scrape_seconds
            setting = Setting(arguments.prometheus, *span, _chosen(arguments.set, file.stem))
            dashboard = json.loads(file.read_text(encoding="utf-8"))
            report = drawn(browser, address, dashboard, setting)
            png = arguments.out / f"dashboard-{file.stem.removeprefix('ampwatch-')}.png"
            png.write_bytes(picture(browser))
            print(f"{png}: {png.stat().st_size / 1e3:.0f} kB", flush=True)
            for panel in report["panels"]:
                for problem in panel["problems"]:
                    print(f"  {panel['title']}: {problem}", file=sys.stderr)


def _chosen(settings: list[str], dashboard: str) -> dict[str, list[str]]:
    chosen: dict[str, list[str]] = {}
    for setting in settings:
        match = re.fullmatch(r"([^.=]+)\.(\w+)=(.*)", setting)
        if match is None:
            msg = f"expected --set DASHBOARD.VARIABLE=VALUE, got {setting!r}"
            raise AmpwatchError(msg)
        if match[1] == dashboard:
            chosen.setdefault(match[2], []).append(match[3])
    return chosen


if __name__ == "__main__":
    main()
