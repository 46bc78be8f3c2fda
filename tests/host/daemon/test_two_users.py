"""A daemon that serves several users: real rings of a real second user."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ampwatch.host.daemon.watcher import RingWatcher
from ampwatch.host.fleet import Fleet
from ampwatch.host.fleet.fleet import CollectorPass
from ampwatch.host.fleet.owners import NAMES_FILE, NameOwners, user_name
from ampwatch.host.metrics.prometheus import PrometheusExporter
from ampwatch.host.page.page import Feed
from ampwatch.settings import Settings
from tests.host.daemon.parts import ROOT
from tests.wire.rendezvous.test_machine import NOBODY, needs_root

pytestmark = needs_root

WRITER = """
import os, sys
from pathlib import Path
from ampwatch.wire.ring import RingWriter
from tests.workshop.records import identity, step
directory, uid, started_ns, last = Path(sys.argv[1]), *map(int, sys.argv[2:])
os.setgroups([]); os.setgid(uid); os.setuid(uid)
writer = RingWriter.create([directory], identity(run="prod", started_ns=started_ns), slots=64)
writer.put(step(last, time_ns=started_ns))
print("written", flush=True)
sys.stdin.read()
"""


@contextmanager
def prod(directory: Path, uid: int, started_ns: int, last: int) -> Iterator[None]:
    """A process of a user, with a ring that says it is of the run `prod`; alive meanwhile."""
    directory.mkdir(mode=0o700, exist_ok=True)
    os.chown(directory, uid, uid)
    arguments = [str(directory), str(uid), str(started_ns), str(last)]
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "written\n"
        yield
        process.kill()


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that every user may enter."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


def new_daemon(shared: Path) -> tuple[Fleet, RingWatcher, NameOwners]:
    """The parts of a daemon of the machine that know of runs."""
    fleet = Fleet(Settings())
    # The forger's directory is found first.
    places = [shared / "a-forger", shared / "root"]
    watcher = RingWatcher(fleet, lambda: places, grace_seconds=600.0, any_user=True)
    fleet.owners.keep_in(shared)
    return fleet, watcher, fleet.owners


def steps(fleet: Fleet) -> dict[str, tuple[str, float]]:
    """User and newest step of each run, as Prometheus is told."""
    fleet.passes["rings"] = CollectorPass(success=True, duration_seconds=0)
    exporter = PrometheusExporter(fleet)
    text = exporter.render("text/plain")[0].decode().splitlines()
    said = [
        line for line in text if line.startswith(("ampwatch_run_info{", "ampwatch_steps_total{"))
    ]
    found: dict[str, dict[str, str]] = {}
    for line in said:
        run = line.partition('run="')[2].partition('"')[0]
        user = line.partition('user="')[2].partition('"')[0]
        found.setdefault(run, {}).update(
            {"user": user} if user else {"steps": line.rpartition(" ")[2]}
        )
    return {run: (values["user"], float(values["steps"])) for run, values in found.items()}


def test_a_forged_ring_takes_no_series_not_even_from_a_daemon_that_is_started_again(
    shared: Path,
) -> None:
    """It says that it is prod, and that it began an hour before."""
    now_ns = time.time_ns()
    hour_ns = 3600 * 10**9
    with ExitStack() as processes:
        fleet, watcher, names = new_daemon(shared)
        processes.enter_context(prod(shared / "root", 0, now_ns, 41))
        watcher.poll()
        alone = steps(fleet)
        processes.enter_context(prod(shared / "a-forger", NOBODY, now_ns - hour_ns, 98))
        watcher.poll()
        both = steps(fleet)
        page = {run: said["ranks"]["0"]["user"] for run, said in Feed(fleet).full()["runs"].items()}
        names.save_if_due()
        watcher.close()

        again, watcher, _ = new_daemon(shared)
        watcher.poll()
        after = steps(again)
        watcher.close()

    assert alone == {"prod": ("root", 42.0)}
    assert both == {"prod": ("root", 42.0), f"prod~uid{NOBODY}": (user_name(NOBODY), 99.0)}
    assert page == {"prod": "root", f"prod~uid{NOBODY}": user_name(NOBODY)}
    assert after == both
    assert (shared / NAMES_FILE).stat().st_mode & 0o777 == 0o600
