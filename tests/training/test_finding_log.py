"""Findings in the log: of the ranks of a machine that find the same, one writes."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from ampwatch.diagnosis.news import News, Reason
from ampwatch.training import said
from ampwatch.training.finding_log import FindingLog
from ampwatch.training.said import Said, path_for
from ampwatch.wire.records import Finding, Severity
from tests.host.daemon.parts import ROOT
from tests.workshop.alone import python
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
        return FindingLog(who, said=Said(self.path, rank), wait=lambda _: wait(60))

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
    found = (
        re.search(r"run gpt ((?:also )?ranks? [\d, -]+?)(?: of \d+)? step", line)
        for line in caplog.messages
    )
    return [match[1] for match in found if match]


@pytest.fixture(autouse=True)
def everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="ampwatch")


def test_what_a_rank_alone_finds_is_its_own_line(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """Beside what all of them find, which is one line for all."""
    for log in reversed(machine.logs):
        log.notify(collapse())
    machine.logs[3].notify(collapse(where="optimizer:1"))
    machine.close()

    assert ranks_of(caplog) == ["ranks 0-7", "rank 3"]
    assert "run gpt rank 3 of 8 step 7: scale_collapse in optimizer 1" in caplog.messages[1]


def test_a_rank_that_dies_leaves_its_line_to_the_next(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """It has noted what it has found, and its turn never comes."""
    for log in machine.logs[:3]:
        log.notify(collapse())
    machine.close(1, 2)

    assert ranks_of(caplog) == ["ranks 0-2"]


def test_who_finds_it_when_it_has_been_said_adds_that_once(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """One of them for all; who comes after that is silent."""
    machine.logs[5].notify(collapse())
    machine.close(5)
    for rank in (0, 1, 7):
        machine.logs[rank].notify(collapse())
    machine.close(7, 0, 1)
    machine.logs[3].notify(collapse())
    machine.close(3)

    assert ranks_of(caplog) == ["rank 5", "also ranks 0-1, 7"]
    assert caplog.messages[1] == (
        "ampwatch WARNING run gpt also ranks 0-1, 7 of 8 step 7: scale_collapse in optimizer 0"
    )


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

    assert "WARNING run gpt rank 0 of 8 step 7: " in caplog.messages[0]


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


def test_a_handler_that_raises_costs_the_line_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Log handlers are the user's; the disk has room again later."""
    lines: list[str] = []

    class Full(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())
            if len(lines) == 1:
                raise OSError(28, "No space left on device")

    monkeypatch.setattr(logging.getLogger("ampwatch"), "handlers", [Full()])
    log = FindingLog(identity(world_size=1))
    log.notify(collapse())
    log.notify(collapse())
    log.close()

    assert ["scale_collapse" in line for line in lines] == [True, True]
    assert caplog.messages == lines[1:]


def test_the_file_is_private_and_goes_with_the_last_rank(own_places: Path) -> None:
    """Nothing is left behind."""
    path = path_for(own_places / "rings", identity(run="gpt", world_size=2), "log")
    one, other = Said(path, 0), Said(path, 1)
    assert path.stat().st_mode & 0o777 == 0o600
    one.close()
    assert path.exists()
    other.close()

    assert list((own_places / "rings").iterdir()) == []


RANK = """
import sys
from pathlib import Path
from ampwatch.training.said import Said, path_for
from tests.workshop.records import identity
directory, rank = Path(sys.argv[1]), int(sys.argv[2])
said = Said(path_for(directory, identity(run="again", rank=rank, world_size=4), "log"), rank)
for what in sys.stdin:
    said.found(what)
    print(said.says(what), said.finders(what), flush=True)
said.close()
"""


class Ranks:
    """Ranks of one start of a job, as processes of this launcher, that speak when they are asked."""

    def __init__(self, directory: Path, *ranks: int) -> None:
        self._processes = {
            rank: subprocess.Popen(
                [sys.executable, "-c", RANK, str(directory), str(rank)],
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in ranks
        }

    def ask(self, rank: int, what: str) -> str:
        process = self._processes[rank]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{what}\n")
        process.stdin.flush()
        return process.stdout.readline().strip()

    def kill(self, rank: int) -> None:
        process = self._processes.pop(rank)
        process.send_signal(signal.SIGKILL)
        process.communicate()

    def finish(self) -> None:
        for process in self._processes.values():
            process.communicate()


@pytest.mark.rotating
def test_a_job_that_was_killed_says_again_what_it_finds_when_it_is_started_again(
    own_places: Path,
) -> None:
    """From the same launcher: a loop of a shell, a notebook, torch.multiprocessing.spawn."""
    rings = own_places / "rings"
    first = Ranks(rings, 2, 3)
    assert first.ask(2, "overflow") == "True [2]"
    assert first.ask(3, "overflow") == "False [2, 3]"
    first.kill(2)
    first.kill(3)

    second = Ranks(rings, 0, 1)
    assert second.ask(0, "overflow") == "True [0]"
    assert second.ask(1, "overflow") == "False [0, 1]"
    second.finish()
    assert list(rings.iterdir()) == []


def test_who_dies_has_said_what_it_has_said(own_places: Path) -> None:
    """To the ranks that have seen it alive; and the last one of them that lives removes the file."""
    rings = own_places / "rings"
    ranks = Ranks(rings, 0, 1)
    assert ranks.ask(0, "first") == "True [0]"
    assert ranks.ask(1, "second") == "True [1]"
    assert ranks.ask(0, "third") == "True [0]"
    ranks.kill(0)

    assert ranks.ask(1, "third") == "False [0, 1]"
    ranks.finish()
    assert list(rings.iterdir()) == []


def test_a_start_of_a_launcher_that_names_it_has_a_file_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the ranks of the last start are still dying."""
    who, paths = identity(run="elastic", world_size=2), set()
    for name in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT"):
        for value in "12":
            monkeypatch.setattr(said, "_opened", Counter())
            monkeypatch.setenv(name, value)
            paths.add(path_for(tmp_path, who, "log"))

    assert len(paths) == 6


def test_a_fork_that_closes_leaves_the_file_to_its_parent(tmp_path: Path) -> None:
    """It has inherited the monitor, and has never been a rank."""
    path = tmp_path / "gpt.said"
    log = FindingLog(identity(run="gpt", world_size=2), said=Said(path, 0))
    if not (child := os.fork()):
        with suppress(BaseException):
            log.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert path.exists()
    log.close()

    assert not path.exists()


@pytest.mark.parametrize(
    "name",
    ["notes.said", "²-1-x.said", ".said", "1-1.said", f"{'9' * 200}-1-ab.said", b"\xff-1-a.said"],
)
def test_a_file_of_somebody_else_is_left_alone(name: str | bytes, own_places: Path) -> None:
    """Whatever it is called, and whatever is in it."""
    rings = own_places / "rings"
    foreign = rings / os.fsdecode(name)
    foreign.write_bytes(b"says \xff \xc2\xb2\n")
    path_for(rings, identity(run="left", world_size=2), "log")

    assert list(rings.iterdir()) == [foreign]


def test_lines_that_nobody_of_ours_has_written_are_none(tmp_path: Path) -> None:
    """Digits that are no decimals, numbers without end, bytes that are no text."""
    path = tmp_path / "gpt.said"
    path.write_bytes(
        b"says a \xc2\xb2 1-1\nhere - 1\n\xff\n" + b"says a 1 " + b"9" * 9999 + b"-1\n"
    )
    rank = Said(path, 0)

    rank.found("it")
    assert rank.says("it")
    assert rank.finders("it") == [0]
    rank.close()
    assert not path.exists()


def test_the_name_of_a_launcher_may_be_any_bytes(own_places: Path) -> None:
    """Also such as stand around it in /proc."""
    code = (
        "import subprocess, sys\n"
        "open('/proc/self/comm', 'wb').write(b'\\xff) Z 1')\n"
        f"sys.exit(subprocess.run([sys.executable, '-c', sys.argv[1], {str(own_places / 'rings')!r},"
        " '0'], input=b'it\\n').returncode)"
    )
    assert python("-c", code, RANK).stdout == "True [0]\n"


def test_each_monitor_of_a_run_has_a_file_of_its_own(tmp_path: Path) -> None:
    """A second training of the process says again what it finds; and a report is no log."""
    who = identity(run="twice", world_size=2)

    assert len({path_for(tmp_path, who, topic) for topic in ("log", "log", "report")}) == 3


def test_what_a_launcher_that_is_gone_has_left_is_removed(own_places: Path) -> None:
    """What lives, what another machine has left, and what is not ours, stays."""
    rings = own_places / "rings"
    alive = path_for(rings, identity(run="left", world_size=2), "log")
    machine, launcher, began, job = alive.name.split("-")
    assert launcher == str(os.getppid())
    gone = rings / f"{machine}-{launcher}-{int(began) + 1}-{job}"
    elsewhere = rings / f"{'0' * 16}-{launcher}-{int(began) + 1}-{job}"
    other = rings / "x.ring"
    for path in (gone, alive, elsewhere, other):
        path.write_text("")
    path_for(rings, identity(run="left", world_size=2), "log")

    assert sorted(rings.iterdir()) == sorted([alive, elsewhere, other])
