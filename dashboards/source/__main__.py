"""Write the JSON of all dashboards, or check that what is committed is current."""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dashboards.source import gpu, layers, overview, precision, ranks, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from dashboards.source.page import Page

DIRECTORY = Path(__file__).parents[1]

BOOK: dict[str, Callable[[], Page]] = {
    "ampwatch-overview.json": overview.page,
    "ampwatch-run.json": run.page,
    "ampwatch-layers.json": layers.page,
    "ampwatch-precision.json": precision.page,
    "ampwatch-gpu.json": gpu.page,
    "ampwatch-ranks.json": ranks.page,
}
"""Name of the file and maker of its page, in the order in which a reader needs them."""


def differences(directory: Path) -> dict[str, str]:
    """Return what each file lacks to be current, as a unified diff.

    Args:
        directory: Where the dashboards lie. One that belongs to no entry of the book has to go.
    """
    wanted = {name: page().json() for name, page in BOOK.items()}
    found = {file.name: file.read_text(encoding="utf-8") for file in directory.glob("*.json")}
    return {
        name: "".join(
            difflib.unified_diff(
                found.get(name, "").splitlines(keepends=True),
                wanted.get(name, "").splitlines(keepends=True),
                fromfile=f"{name} as it lies there",
                tofile=f"{name} as generated",
                n=1,
            )
        )
        for name in sorted(wanted.keys() | found.keys())
        if wanted.get(name) != found.get(name)
    }


def main() -> int:
    """Write the files; with ``--check`` leave them and end with 1 if one is not current."""
    parser = argparse.ArgumentParser(prog="python -m dashboards.source", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if one is stale")
    if parser.parse_args().check:
        stale = differences(DIRECTORY)
        for name, difference in stale.items():
            print("\n".join(difference.splitlines()[:40]))
            print(
                f"expected dashboards/{name} as dashboards/source makes it, got the above; change"
                " dashboards/source, not the JSON, then run: make dashboards",
                file=sys.stderr,
            )
        return 1 if stale else 0
    for name, page in BOOK.items():
        (DIRECTORY / name).write_text(page().json(), encoding="utf-8")
        print(f"dashboards/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
