"""Plays every state, asks every way out, and holds both against the table.

``python -m tests.states.score [STATE...]`` prints the score: states by ways out, and each thing that
is wrong.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.alerts.rules import ROOT
from tests.states.acts import ACTS
from tests.states.asked import Shown, server_of, shown, untrue
from tests.states.played import Played
from tests.states.rules import Evaluated, evaluate
from tests.states.series import Scraped, alerts_as_series
from tests.states.table import TABLE
from tests.states.told import Message, told
from tests.workshop.servers import Quiet, answering

PLAY_SECONDS = 400


@dataclass
class Seen:
    """One state, seen on every way out.

    Attributes:
        played: The script and what it has left.
        scraped: What was scraped of it.
        evaluated: What the rules make of that.
        messages: What somebody is told when he looks.
        shown: What the dashboards show then.
        untrue: What they say of each run without an answer, and is not so.
    """

    played: Played
    scraped: Scraped
    evaluated: Evaluated
    messages: list[Message]
    shown: list[Shown]
    untrue: dict[str, list[str]] = field(default_factory=dict)


@dataclass
class Everything:
    """All states that were played, by name."""

    seen: dict[str, Seen] = field(default_factory=dict)


class _Poster(Quiet, BaseHTTPRequestHandler):
    server: _Posts

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        training, rank = self.path.strip("/").split("/")
        self.server.bodies.setdefault((training, int(rank)), []).append(body)
        self.send_response(200)
        self.end_headers()


class _Posts(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Poster)
        self.bodies: dict[tuple[str, int], list[dict[str, Any]]] = {}


def play(directory: Path, names: Sequence[str]) -> dict[str, Played]:
    """Play the scripts, unless they were played in ``directory`` before, and keep what was posted."""
    plays = {name: Played(ACTS[name], directory / "plays" / name) for name in names}
    directory.mkdir(exist_ok=True)
    kept = directory / "posted.json"
    with (directory / "lock").open("w") as lock:
        # One process plays, the others of the same session wait for it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            _play_anew(directory, names, kept)
    for training, rank, bodies in json.loads(kept.read_text()):
        for name, played in plays.items():
            if training in {act.name for act in ACTS[name].trainings}:
                played.posted[training, rank] = bodies
    return plays


def _play_anew(directory: Path, names: Sequence[str], kept: Path) -> None:
    posts = _Posts()
    with answering(posts) as hook:
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        environment = {k: v for k, v in environment.items() if not k.startswith("AMPWATCH_")}
        command = [sys.executable, "-m", "tests.states.stage", str(directory / "plays"), hook]
        done = subprocess.run(
            [*command, *names],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=PLAY_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        kept.write_text(json.dumps([[*key, bodies] for key, bodies in posts.bodies.items()]))


@contextmanager
def watch(
    directory: Path, stage: Path, names: Sequence[str] = (), *, servers: bool = True
) -> Iterator[Everything]:
    """Play states and ask everything about them.

    Args:
        directory: For what asks.
        stage: For what is played; what was played there before is not played again.
        names: The states; all if empty.
        servers: Ask an Alertmanager and a Prometheus as well; else nobody is told, and no dashboard is shown.
    """
    names = list(names) or list(ACTS)
    plays = play(stage, names)
    scraped = {name: Scraped.of(instance_of(name), p.scrapes) for name, p in plays.items()}
    evaluated = evaluate(scraped, directory)
    looks = {name: played.looked_at for name, played in plays.items()}
    found = Everything()
    if not servers:
        for name in names:
            found.seen[name] = Seen(plays[name], scraped[name], evaluated[name], [], [])
        yield found
        return
    messages = told(evaluated, looks, directory)
    with ExitStack() as stack:
        everything = [*scraped.values(), *(_alerts(scraped[n], evaluated[n]) for n in names)]
        server = stack.enter_context(server_of(everything, directory / "prometheus"))
        for name in names:
            board = shown(server, instance_of(name), looks[name])
            found.seen[name] = Seen(
                plays[name],
                scraped[name],
                evaluated[name],
                messages[name],
                board,
                {
                    row.run: untrue(server, instance_of(name), row.run, looks[name])
                    for row in TABLE[name]
                },
            )
    yield found


def instance_of(name: str) -> str:
    """Return the address of the daemon in a state."""
    return f"{name.replace('_', '-')}.example:10917"


def _alerts(scraped: Scraped, evaluated: Evaluated) -> Scraped:
    firing: dict[float, list[dict[str, str]]] = {}
    for alert in evaluated.alerts:
        firing.setdefault(alert.time, []).append(alert.labels)
    return alerts_as_series(firing, scraped.times)


def score(directory: Path, stage: Path, names: Sequence[str]) -> int:
    """Print what is right and what is wrong; return how much is wrong."""
    from tests.states.checks import WAYS  # noqa: PLC0415 - it imports what is above

    with watch(directory, stage, names) as found:
        wrong = {
            (name, way): [f"{row.run}: {each}" for row in TABLE[name] for each in check(seen, row)]
            for name, seen in found.seen.items()
            for way, check in WAYS.items()
        }
    right = sum(not complaints for complaints in wrong.values())
    lines = [f"# Score: {right} of {len(wrong)} right (states x ways out)\n"]
    lines += [f"| state | {' | '.join(WAYS)} |", "|---|" + "---|" * len(WAYS)]
    for name in found.seen:
        cells = (str(len(wrong[name, way]) or "ok") for way in WAYS)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    for (name, way), complaints in wrong.items():
        if complaints:
            lines += [f"\n## {name} x {way}", *(f"- {each}" for each in complaints)]
    sys.stdout.write("\n".join([*lines, ""]))
    return len(wrong) - right


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        # Kept, where one is named, to look at it and to ask again.
        score(Path(place), Path(os.environ.get("STATES_PLAYS", place)), sys.argv[1:])
