"""``ampwatch ops``: which op of a training on this machine ran in which dtype, and why."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from ampwatch.errors import RingError, did_you_mean
from ampwatch.host.daemon.discovery import find_rings
from ampwatch.report.op_table import render
from ampwatch.report.precision_words import NO_CENSUS
from ampwatch.runtime import ring_directories
from ampwatch.settings import Settings
from ampwatch.wire.records import CensusRecord, RunIdentity
from ampwatch.wire.ring import RingReader

DESCRIPTION = """\
Show which ops of a training ran in which dtype: calls, FLOPs, bytes, casts, and why some
ran in float32 although autocast is used.

It reads the rings of this user's trainings on this machine, of which each holds the newest
iteration whose ops were counted. No daemon is needed, and nothing is changed.
"""

EPILOG = """\
examples:
  ampwatch ops
      of the training that was started last, by op
  ampwatch ops --by module --run gpt --rank 3
      of one rank, by module
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    add = parser.add_argument
    add("--run", help="name of the run; the one that was started last if not given")
    add("--rank", type=int, help="global rank; the lowest on this machine if not given")
    add("--by", choices=("op", "module", "dtype"), default="op", help="what to group by")


def run(args: argparse.Namespace) -> int:
    """Print the table.

    Raises:
        SettingsError: If a setting is not usable.
        RingError: If there is no such training here, or none of its ops was counted yet.
    """
    settings = Settings.resolve()
    places = ring_directories(settings.ring_dir, settings.runtime_dir)
    found = list(_censuses(places))
    wanted = [
        (who, census)
        for who, census in found
        if args.run in (None, who.run) and args.rank in (None, who.rank)
    ]
    if not wanted:
        raise RingError(_none_of(args, [who for who, _ in found], places))
    newest = max(wanted, key=lambda entry: entry[0].started_ns)[0].run
    who, census = min(
        (entry for entry in wanted if entry[0].run == newest),
        key=lambda entry: (entry[0].rank, -entry[0].started_ns),
    )
    if census is None:
        msg = f"run {who.run}, rank {who.rank}: {NO_CENSUS}"
        raise RingError(msg)
    print(f"Run {who.run}, rank {who.rank}")
    print(render(census, args.by, shutil.get_terminal_size((120, 40)).columns), end="")
    return 0


def _censuses(places: Iterable[Path]) -> Iterator[tuple[RunIdentity, CensusRecord | None]]:
    """Yield who writes each ring, and the newest census in it."""
    for path in find_rings(places, any_user=False).rings:
        try:
            reader = RingReader(path)
        except RingError:  # it has just ended, or is of another release
            continue
        censuses = [record for record in reader.poll() if isinstance(record, CensusRecord)]
        yield reader.identity, censuses[-1] if censuses else None
        reader.close()


def _none_of(args: argparse.Namespace, found: list[RunIdentity], places: Iterable[Path]) -> str:
    asked = " and ".join(
        f"{name} {value}"
        for name, value in (("run", args.run), ("rank", args.rank))
        if value is not None
    )

    here = ", ".join(sorted(f"{who.run} (rank {who.rank})" for who in found))
    where = ", ".join(map(str, places))
    expected = f"expected a training with {asked}" if asked else "expected a training of this user"
    near = did_you_mean(args.run or "", {who.run for who in found})
    return f"{expected} on this machine, found {here or 'none'} in {where}{near}"
