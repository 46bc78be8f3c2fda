"""What ampwatch finds in each story, written to files: run before a change and after it, and compare with ``diff -r``.

Usage: ``python -m tools.findings DIRECTORY [FILE ...] [--level LEVEL ...] [--only NAME ...]``. The programs are those of
``tests/stories``, sick and well, and those of each FILE with a ``STORIES`` table, the same and fixed. A program, a level and
a state make one file: the exception that ended it, each finding whole, and the report. A step takes a played time, so
that a file is the same each time.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch

import ampwatch
from ampwatch.training import session
from ampwatch.training.iteration.ledger import Clock
from tests.stories import collection, stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ampwatch.training.monitor import Monitor

ADDRESS = re.compile(r"0x[0-9a-f]{6,}")


def main() -> None:
    """Write a file for each program, level and state."""
    parser = argparse.ArgumentParser(prog="findings", description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path, help="where the files are written")
    parser.add_argument("files", nargs="*", type=Path, help="more programs")
    parser.add_argument("--level", nargs="*", default=list(stage.LEVELS))
    parser.add_argument("--only", nargs="*", default=[], help="names of programs")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    session.Clock = lambda: Clock(monotonic_ns=stage.TIME, unix_ns=stage.TIME)  # type: ignore[misc, assignment, attr-defined]
    programs = dict(_own())
    for file in given.files:
        programs |= _listed(file)
    for name, watch in programs.items():
        if given.only and not {name, name.rsplit("/", 1)[-1].rsplit(".", 1)[0]} & set(given.only):
            continue
        for level in given.level:
            path = given.directory / f"{name}.{level}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(ADDRESS.sub("0x", _text(watch, level)), encoding="utf-8")


def _text(watch: Callable[[str, list[Monitor]], None], level: str) -> str:
    """Run a program; return what was found."""
    stage.TIME.now_ns = 10**9
    monitors: list[Monitor] = []
    ended = "none"
    try:
        watch(level, monitors)
    except Exception as error:  # noqa: BLE001 - what ends a story is part of it
        ended = f"{type(error).__name__}: {error}"
    lines = [f"exception: {ended}"]
    for monitor in monitors:
        lines += [
            msgspec.json.format(msgspec.json.encode(finding), indent=1).decode()
            for finding in monitor.findings
        ]
        lines.append(str(monitor.report()))
    return "\n\n".join(lines) + "\n"


def _own() -> Iterator[tuple[str, Callable[[str, list[Monitor]], None]]]:
    """Programs of ``tests/stories``."""
    for story in [*collection.STORIES, *collection.ERRORS]:
        yield f"own/{story}.sick", partial(_run_own, partial(story.build, sick=True))
        yield f"own/{story}.well", partial(_run_own, partial(story.build, sick=False))
    for control in collection.CONTROLS:
        yield f"own/{control.__name__}.well", partial(_run_own, control)


def _run_own(build: Callable[[], stage.Program], level: str, monitors: list[Monitor]) -> None:
    stage.seed()
    program = build()
    with stage.watched(program, level) as watch:
        monitors.append(watch)
        program.run()


def _listed(file: Path) -> dict[str, Callable[[str, list[Monitor]], None]]:
    """Programs of a file with a table ``STORIES``."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        sys.exit(f"expected a file of Python, got {file}; name one with a table STORIES")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return {
        f"{file.stem}/{story.id}.{state}": partial(_run_listed, partial(story.build, fixed=fixed))
        for story in module.STORIES.values()
        for state, fixed in (("sick", False), ("well", True))
        if story.has_fix or not fixed
    }


def _run_listed(build: Callable[[], Any], level: str, monitors: list[Monitor]) -> None:
    stage.seed()
    run = build()
    with ampwatch.monitor(
        run.model,
        run.scaler,
        optimizer=run.optimizers or None,
        level=level,
        run="story",
        serve=False,
    ) as watch:
        monitors.append(watch)
        run.loop(lambda *_: stage.TIME.take(stage.STEP))


if __name__ == "__main__":
    main()
