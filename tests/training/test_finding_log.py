"""Findings in the log: of the ranks of a machine that find the same, one writes."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from ampwatch.diagnosis.news import News, Reason
from ampwatch.training.finding_log import FindingLog
from ampwatch.training.said import Said, path_for
from ampwatch.wire.records import Finding, Severity
from tests.host.daemon.parts import ROOT, Place, eventually
from tests.workshop.records import identity

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RANKS = 8


def collapse(
    reason: Reason = Reason.MADE,
    severity: Severity = Severity.WARNING,
    since: Severity | None = None,
    where: str = "optimizer:0",
) -> News:
    finding = Finding("scale_collapse", severity, where, "It broke", "Mend it", last_step=7)
    return News(finding, reason, severity, finding, since)


class Machine:
    """Ranks whose turns come when the test says so."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "gpt.said"
        self.turns = [threading.Event() for _ in range(RANKS)]
        self.logs = [self._log(rank) for rank in range(RANKS)]

    def _log(self, rank: int) -> FindingLog:
        who = identity(run="gpt", rank=rank, local_rank=rank, world_size=RANKS)
        wait = self.turns[rank].wait
        return FindingLog(who, said=Said(self.path, rank), wait=lambda _: wait(20))

    def close(self, *ranks: int) -> None:
        for rank in ranks or range(RANKS):
            self.turns[rank].set()
            self.logs[rank].close()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.close()


def ranks_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = (re.search(r"run gpt (ranks? [\d, -]+) step", line) for line in caplog.messages)
    return [match[1] for match in found if match]


@pytest.fixture(autouse=True)
def everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="ampwatch")


def test_what_all_ranks_find_is_one_line_of_the_first_whose_turn_comes(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """For all of them."""
    for log in reversed(machine.logs):
        log.notify(collapse())
    machine.close()

    assert ranks_of(caplog) == ["ranks 0-7"]


def test_what_a_rank_alone_finds_is_its_own_line(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """Beside what all of them find."""
    for log in machine.logs:
        log.notify(collapse())
    machine.logs[3].notify(collapse(where="optimizer:1"))
    machine.close()

    assert ranks_of(caplog) == ["ranks 0-7", "rank 3"]
    assert "optimizer 1" in caplog.messages[1]


def test_a_rank_that_dies_leaves_its_line_to_the_next(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """It has noted what it has found, and its turn never comes."""
    for log in machine.logs[:3]:
        log.notify(collapse())
    machine.close(1, 2)

    assert ranks_of(caplog) == ["ranks 0-2"]


def test_who_finds_it_when_it_has_been_said_is_silent(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """Also the lowest rank."""
    machine.logs[5].notify(collapse())
    machine.close(5)
    machine.logs[0].notify(collapse())
    machine.close(0)

    assert ranks_of(caplog) == ["rank 5"]


def test_a_finding_that_becomes_worse_is_one_line_more(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """And one that comes back after it was over is another one."""
    course = [
        collapse(),
        collapse(Reason.WORSE, Severity.CRITICAL, Severity.WARNING),
        collapse(Reason.CHANGED, Severity.INFO),
        collapse(Reason.WORSE, Severity.WARNING, Severity.INFO),
    ]
    for log in machine.logs:
        for news in course:
            log.notify(news)
    machine.close()

    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR", "WARNING"]
    assert ranks_of(caplog) == ["ranks 0-7"] * 3


def test_a_line_says_what_was_so_when_it_was_found(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """A finding goes on changing while its line waits."""
    news = collapse()
    machine.logs[0].notify(news)
    news.finding.last_step, news.finding.severity = 900, Severity.CRITICAL
    machine.close()

    assert "WARNING run gpt rank 0 step 7: " in caplog.messages[0]


def test_the_only_rank_writes_at_once_and_has_no_thread(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing to agree on."""
    log = FindingLog(identity(run="gpt", world_size=1))
    log.notify(collapse())

    assert caplog.messages[0].startswith("ampwatch WARNING run gpt step 7: scale_collapse in")
    assert not [t for t in threading.enumerate() if t.name == "ampwatch-log"]


@pytest.mark.parametrize(
    ("news", "expected"),
    [
        (collapse(severity=Severity.INFO), 0),
        (collapse(Reason.CHANGED), 0),
        (collapse(Reason.EXPLAINED, Severity.CRITICAL), 1),
        (collapse(Reason.WORSE, since=Severity.INFO), 1),
        # The story has become worse by a symptom, whose own line names this root.
        (collapse(Reason.WORSE, since=Severity.WARNING), 0),
    ],
)
def test_only_what_a_reader_has_to_know_is_a_line(
    news: News, expected: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A log is read by people."""
    FindingLog(identity(world_size=1)).notify(news)

    assert len(caplog.messages) == expected


def test_ranks_that_cannot_agree_each_write(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """Twice is better than never."""
    machine.path.unlink()
    machine.path.mkdir()
    for log in machine.logs[:2]:
        log.notify(collapse())
    machine.close(0, 1)

    assert ranks_of(caplog) == ["rank 0", "rank 1"]


def test_a_handler_that_raises_ends_the_log_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Log handlers are the user's."""

    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "scale_collapse" in record.getMessage():
                raise OSError(28, "No space left on device")

    monkeypatch.setattr(logging.getLogger("ampwatch"), "handlers", [Broken()])
    log = FindingLog(identity(world_size=1))
    log.notify(collapse())
    log.notify(collapse())
    log.close()

    assert sum("switched its sensor 'log' off" in m for m in caplog.messages) == 1


TRAINING = """
import os, torch, ampwatch
torch.set_num_threads(1)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
watch = ampwatch.monitor(model, scaler, run="gpt", level="light")
print("ready", flush=True)
input()  # until both are there
for i in range(12):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(torch.ones(4, 8)).float().mean()
    scaler.scale(loss * (float("inf") if i > 2 else 1.0)).backward()
    scaler.step(optimizer)
    scaler.update()
print("done", flush=True)
input()
"""


def test_two_ranks_that_fail_alike_write_two_lines_and_the_address(own_places: Path) -> None:
    """As a person sees them: a script without logging; a warning, and then that it is critical."""
    place = Place(own_places)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", TRAINING],
            env=place.environment
            | {"PYTHONPATH": str(ROOT), "RANK": str(rank), "LOCAL_RANK": str(rank)}
            | {"WORLD_SIZE": "2", "AMPWATCH_IDLE_EXIT_SECONDS": "1", "AMPWATCH_GRACE_SECONDS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for word in ("ready\n", "done\n"):
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == word
        for rank in ranks:
            assert rank.stdin is not None
            rank.stdin.write("\n")
            rank.stdin.flush()
    told = "".join(rank.communicate(timeout=120)[1] for rank in ranks)
    eventually(lambda: place.info() is None, "the daemon ends by itself")

    assert told.count("ampwatch: watching run gpt: http://127.0.0.1:") == 1
    # On a busy machine one of them may come after the line of the other.
    lines = re.findall(
        r"ampwatch (\w+) run gpt ranks? [01-]+ step \d+: scale_collapse in (.*?):", told
    )
    assert lines == [
        ("WARNING", "optimizer 0"),
        ("CRITICAL", "optimizer 0, escalated from warning"),
    ]
    assert len(told.splitlines()) == 3
    assert not list((own_places / "rings").glob("*.said"))


def test_the_file_is_private_and_goes_with_the_last_rank(own_places: Path) -> None:
    """Nothing is left behind."""
    path = path_for(own_places / "rings", identity(run="gpt", world_size=2))
    one, other = Said(path, 0), Said(path, 1)
    assert path.stat().st_mode & 0o777 == 0o600
    one.close()
    assert path.exists()
    other.close()

    assert list((own_places / "rings").iterdir()) == []


def test_each_monitor_of_a_run_has_a_file_of_its_own(tmp_path: Path) -> None:
    """A second training of the process says again what it finds."""
    who = identity(run="twice", world_size=2)

    assert path_for(tmp_path, who) != path_for(tmp_path, who)


def test_what_a_launcher_that_is_gone_has_left_is_removed(own_places: Path) -> None:
    """Its ranks were killed; what lives, and what is not ours, stays."""
    gone, alive, other = (
        own_places / "rings" / name for name in ("1-99999999999-ab.said", "", "x.ring")
    )
    alive = path_for(own_places / "rings", identity(run="left", world_size=2))
    for path in (gone, alive, other):
        path.write_text("")
    path_for(own_places / "rings", identity(run="left", world_size=2))

    assert sorted((own_places / "rings").iterdir()) == sorted([alive, other])
    assert alive.name.startswith(f"{os.getppid()}-")
