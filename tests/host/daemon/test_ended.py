"""Runs that have ended, as the daemon lists, opens and compares them."""

from __future__ import annotations

import json
import os
import re
from http import HTTPStatus
from pathlib import Path

import pytest

from ampwatch.host.daemon import ended
from ampwatch.host.daemon.app import Daemon, DaemonOptions
from ampwatch.host.daemon.assets import STATIC
from ampwatch.host.daemon.ended import EndedRuns
from ampwatch.host.daemon.site import Request, Response, Site
from ampwatch.host.fleet import Fleet
from ampwatch.host.page.ended_page import SYMBOLS
from ampwatch.report.verdict import Level
from ampwatch.settings import Settings
from ampwatch.wire.blackbox import Box, files
from ampwatch.wire.records import RunState
from tests.workshop.boxes import box
from tests.workshop.clocks import SECOND, START, Clock
from tests.workshop.records import alarm, identity, step

DAY = 86400


def leave(
    runs: Path, run: str, started: int = 0, rank: int = 0, state: RunState = RunState.FAILED
) -> Path:
    who = identity(run=run, started_ns=(START + started) * SECOND, rank=rank, world_size=2)
    steps = [step(i, time_ns=who.started_ns + 60 * (i + 1) * SECOND) for i in range(5)]
    made = Box(who, state, "", steps=steps, findings=[alarm("scale_collapse")])
    return files.write(runs, made, most=64)


def listed(runs: EndedRuns) -> list[str]:
    return [row.run for row in runs.listing().rows]


@pytest.fixture
def runs(tmp_path: Path) -> EndedRuns:
    return EndedRuns(Fleet(Settings()), str(tmp_path))


@pytest.fixture
def site(runs: EndedRuns) -> Site:
    return Site(Fleet(Settings()), ended=runs)


def ask(site: Site, path: str = "/ended/", *picked: str) -> Response:
    return site.answer(Request(path, {"run": list(picked)} if picked else {}, "", "", ""))


def test_runs_are_listed_the_newest_first(tmp_path: Path, runs: EndedRuns) -> None:
    """A row for each run, whatever the number of its ranks; a second start is a run of its own."""
    for started in (0, 5000):
        leave(tmp_path, "gpt", started, rank=1)
        leave(tmp_path, "gpt", started, rank=0)
    leave(tmp_path, "bert", 300)

    rows = runs.listing().rows

    assert [(row.run, row.ranks) for row in rows] == [("gpt", 2), ("bert", 1), ("gpt", 2)]
    assert (rows[0].seconds, rows[0].iterations, rows[0].kinds) == (300.0, 5, ("scale_collapse",))


def test_a_run_that_goes_on_has_not_ended(tmp_path: Path) -> None:
    """Its report was written at a finding. One that this daemon does not see is listed, and that is said."""
    leave(tmp_path, "gpt", state=RunState.RUNNING)
    leave(tmp_path, "gone", state=RunState.RUNNING)
    fleet = Fleet(Settings(), Clock(START))
    who = identity(run="gpt", started_ns=START * SECOND, rank=0, world_size=2)
    fleet.apply("ring", who, [], alive=True, lost=0, dropped=0)
    site = Site(fleet, ended=EndedRuns(fleet, str(tmp_path)))

    page = ask(site).body.decode()
    assert ">gone</a>" in page
    assert ">gpt</a>" not in page
    assert "It did not report its end." in page
    fleet.apply("ring", who, [], alive=False, lost=0, dropped=0)
    assert ">gpt</a>" in ask(site).body.decode()


def test_the_list_is_bounded(
    tmp_path: Path, runs: EndedRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In age, runs, files and bytes; what is left out is counted, and what is too large is named."""
    paths = [leave(tmp_path, f"run{i}", 5000 * i) for i in range(6)]
    month = paths[5].stat().st_mtime - (ended.DAYS + 1) * DAY
    os.utime(paths[5], (month, month))
    assert listed(runs) == ["run4", "run3", "run2", "run1", "run0"]

    monkeypatch.setattr(ended, "MAX_RUNS", 3)
    monkeypatch.setattr(ended, "MAX_FILES", 4)
    assert (listed(runs), runs.listing().num_left_out) == (["run4", "run3", "run2"], 2)
    monkeypatch.setattr(ended, "MAX_BYTES", paths[4].stat().st_size)
    assert (listed(runs), runs.listing().num_left_out) == (["run4"], 4)
    monkeypatch.setattr(ended, "MAX_FILE_BYTES", 100)
    fresh = EndedRuns(Fleet(Settings()), str(tmp_path))
    assert "at most 100 bytes" in fresh.listing().problems[0]


def test_what_is_no_report_stops_nothing(tmp_path: Path, runs: EndedRuns, site: Site) -> None:
    """A pipe, a directory, damage, markup: the others are listed, and the page says what it could not read."""
    name = leave(tmp_path, "gpt").name
    inside = tmp_path / "gpt"
    os.mkfifo(inside / "pipe.json")
    (inside / "a.json").mkdir()
    (inside / "b.json").write_text('{"format": "ampwatch-report", "version": 1, "ranks": [7]}')
    (inside / f"{name}<script>.json").write_text("[" * 100_000)
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")

    page = ask(site).body.decode()

    assert listed(runs) == ["gpt"]
    assert len(runs.listing().problems) == 4
    assert "Files that cannot be read" in page
    assert "<script>" not in page


def test_a_file_is_read_again_when_it_has_changed(tmp_path: Path, runs: EndedRuns) -> None:
    """And only then: its time and size say so."""
    path = leave(tmp_path, "gpt")
    before = path.stat()
    assert listed(runs) == ["gpt"]

    path.write_bytes(b" " * before.st_size)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert listed(runs) == ["gpt"]
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert listed(runs) == []
    path.unlink()
    assert runs.listing().problems == []


def test_a_report_opens_as_a_page_that_runs_nothing(tmp_path: Path, site: Site) -> None:
    """Whatever names a run has; only what is listed can be opened, and a name is never a path."""
    evil = "<script>alert(1)</script>"
    leave(tmp_path, evil)
    key = f"{START * SECOND}-{evil}"
    assert "<script>alert" not in ask(site).body.decode()

    answer = ask(site, "/ended/report", key)

    assert "Run &lt;script&gt;" in answer.body.decode()
    assert answer.headers["Content-Security-Policy"].startswith("default-src 'none';")
    for other in ("", "0-gpt", f"{key}x", *map(str, tmp_path.glob("*/*"))):
        assert ask(site, "/ended/report", other).status is HTTPStatus.NOT_FOUND


def test_two_runs_are_compared_with_what_differs_marked(tmp_path: Path, site: Site) -> None:
    """Figures, findings, facts; with anything but two runs of the list a sentence says what to do."""
    leave(tmp_path, "gpt")
    made = box()
    made.identity = identity(run="bert", started_ns=START * SECOND, world_size=1)
    made.findings.append(alarm("scale_collapse"))
    files.write(tmp_path, made, most=4)
    keys = [f"{START * SECOND}-{run}" for run in ("gpt", "bert")]

    page = ask(site, "/ended/", *keys).body.decode()

    row = '<tr class="differs"><th scope="row">≠ loss scale</th><td>2¹⁶</td><td>2⁷</td></tr>'
    assert row in page
    assert '<tr><th scope="row">growths</th><td>0</td><td>0</td></tr>' in page
    assert "forward_overflow in module decoder.3.ffn</th><td>not found</td><td>critical" in page
    assert "≠ torch</th><td>-</td><td>2.13.0</td>" in page
    assert page.count("checked") == 2
    for picked in (keys[:1], [*keys, keys[0]], [keys[0], "0-gone"]):
        assert "Choose two runs" in ask(site, "/ended/", *picked).body.decode()


@pytest.mark.parametrize(
    ("machine", "readers", "why"),
    [
        (False, "auto", ""),
        (False, "token", ""),
        (False, "all", ended.OPEN_TO_ALL),
        (True, "auto", ended.MACHINE),
        (True, "token", ended.MACHINE),
    ],
)
def test_reports_are_for_their_user_alone(
    tmp_path: Path, *, machine: bool, readers: str, why: str
) -> None:
    """A daemon of all users shows none, nor one that answers who has no token; the page says why."""
    leave(tmp_path / "reports", "gpt")
    key = f"{START * SECOND}-gpt"
    names = {"ring_dir": "rings", "runtime_dir": "runtime", "report_dir": "reports"}
    settings = {name: str(tmp_path / place) for name, place in names.items()}
    daemon = Daemon(
        Settings.resolve({**settings, "port": 0, "readers": readers, "gpu": "off"}),
        DaemonOptions(machine=machine),
    )
    try:
        site = daemon._server.site
        answers = [ask(site), ask(site, "/ended/report", key), ask(site, "/ended/", key, key)]
        lists_ended = json.loads(ask(site, "/state.json").body)["lists_ended"]
    finally:
        daemon._server.server_close()

    assert lists_ended is not bool(why)
    for answer in answers:
        assert answer.status is (HTTPStatus.FORBIDDEN if why else HTTPStatus.OK)
        assert (b"gpt" in answer.body) is not bool(why)
        assert why.partition("`")[0] in answer.body.decode()


def test_a_state_has_the_symbol_that_it_has_on_the_page_of_a_run() -> None:
    """This page has no script, and so cannot ask the one of that page."""
    script = (STATIC / "words.js").read_text(encoding="utf-8").partition("};")[0]
    there = dict(re.findall(r'"?([a-z][a-z ]*)"?: "(.)"', script))

    assert {level.value: there[level.value] for level in Level} == SYMBOLS
