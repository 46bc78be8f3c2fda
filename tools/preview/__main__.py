"""Draw the dashboards as they look with the data of a Prometheus.

    python -m tools.preview --prometheus URL [--out DIR] [--only NAME ...]

``tools.preview.scene`` makes a Prometheus with something to look at.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ampwatch.errors import AmpwatchError
from tools.preview.intervals import TimeSpan
from tools.preview.pictures import chromium, picture
from tools.preview.prometheus import Prometheus
from tools.preview.sheet import sheet

if TYPE_CHECKING:
    from collections.abc import Sequence

HERE = Path(__file__).parents[2] / "dashboards"


def main(given: Sequence[str] | None = None) -> int:
    """Write a picture of each dashboard.

    Args:
        given: The arguments of the command line.
    """
    parser = argparse.ArgumentParser(
        prog="python -m tools.preview",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--prometheus", required=True, metavar="URL", help="who is asked")
    add("--out", type=Path, default=Path(), metavar="DIR", help="where the pictures go")
    add("--only", nargs="*", default=[], metavar="NAME", help="as ampwatch-run; all if not given")
    add("--start", type=float, help="Unix time; an hour before the end if not given")
    add("--end", type=float, help="Unix time; now if not given")
    add("--scrape-seconds", type=float, default=15.0, help="scrape interval of the data source")
    add(
        "--set",
        action="append",
        default=[],
        metavar="DASHBOARD.VARIABLE=VALUE",
        help="what is chosen, as ampwatch-run.run=gpt; all where nothing is",
    )
    add("--unfolded", action="store_true", help="open the rows that are folded at first")
    add("--html", action="store_true", help="keep the page beside the picture")
    arguments = parser.parse_args(given)
    end = time.time() if arguments.end is None else arguments.end
    start = end - 3600 if arguments.start is None else arguments.start
    span = TimeSpan(start, end, arguments.scrape_seconds)
    try:
        _draw(arguments, span)
    except (AmpwatchError, ValueError) as error:
        print(f"preview: {error}", file=sys.stderr)
        return 1
    return 0


def _draw(arguments: argparse.Namespace, span: TimeSpan) -> None:
    files = [
        file
        for file in sorted(HERE.glob("ampwatch-*.json"))
        if not arguments.only or file.stem in arguments.only
    ]
    if not files:
        msg = f"expected --only with names of dashboards, as ampwatch-run, got {' '.join(arguments.only)}"
        raise AmpwatchError(msg)
    prometheus = Prometheus(arguments.prometheus)
    pages = {}
    for file in files:
        dashboard = json.loads(file.read_text(encoding="utf-8"))
        chosen = _chosen(arguments.set, file.stem)
        name = f"dashboard-{file.stem.removeprefix('ampwatch-')}"
        pages[name] = sheet(dashboard, prometheus, span, chosen, unfolded=arguments.unfolded)
    arguments.out.mkdir(parents=True, exist_ok=True)
    with chromium() as browser, tempfile.TemporaryDirectory() as scratch:
        for name, text in pages.items():
            page = (arguments.out if arguments.html else Path(scratch)) / f"{name}.html"
            page.write_text(text, encoding="utf-8")
            png = arguments.out / f"{name}.png"
            png.write_bytes(picture(browser, page))
            print(f"{png}: {png.stat().st_size / 1e3:.0f} kB", flush=True)


def _chosen(settings: list[str], dashboard: str) -> dict[str, list[str]]:
    chosen: dict[str, list[str]] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        board, dot, variable = name.partition(".")
        if not (equals and dot):
            msg = f"expected --set DASHBOARD.VARIABLE=VALUE, got {setting!r}"
            raise AmpwatchError(msg)
        if board == dashboard:
            chosen.setdefault(variable, []).append(value)
    return chosen


if __name__ == "__main__":
    sys.exit(main())
