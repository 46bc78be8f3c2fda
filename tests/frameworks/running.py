"""Runs one program one way, and gathers everything that can be known of it from outside."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.frameworks.environments import Environment
from tests.host.daemon.parts import ROOT, Daemon, Place

PROGRAMS = Path(__file__).with_name("programs")
MAX_SECONDS = 240
"""A program that takes longer hangs."""

MAX_SECONDS_OF_ALL = 600
"""Of several runs of a program together, one of which may hang: a test has 900."""

ABORTED = "terminate called without an active exception"
"""Last words of a process of several ranks in which a thread of gloo lets go of a Python object while the
interpreter goes away: once in some fifty runs on a busy machine, with and without ampwatch, after the training
has ended. The thread goes on after ``destroy_process_group``: what wraps a model keeps the group."""

MAX_ABORTS = 3
"""Of one program in a row, before it counts as a failure."""


SAID = ("code", "stdout", "stderr")
"""Files in which a fork leaves its exit status and what it has said."""


class Way(Enum):
    """How a program is watched."""

    BARE = "bare"
    EDIT = "edit"
    ZERO = "zero edits"


class Fault(Enum):
    """What is planted in a program; the values are what it is told."""

    NONE = ""
    OVERFLOW = "overflow"
    GRADIENT = "gradient"


@dataclass
class Outcome:
    """What became of one run of one program.

    Attributes:
        code: Its exit status; None if it hung.
        stdout: What it printed.
        stderr: What it and ampwatch said.
        ranks: What each rank wrote down itself.
        samples: Samples of ``/metrics`` of the run: name, labels, value.
        reports: The report that each rank has left; none where nothing was wrong.
    """

    code: int | None
    stdout: str
    stderr: str
    ranks: list[dict[str, Any]]
    samples: list[tuple[str, dict[str, str], float]] = field(default_factory=list)
    reports: list[dict[str, Any]] = field(default_factory=list)

    def values(self, name: str, rank: int, **labels: str) -> Iterator[float]:
        """Yield the values of a metric of one rank, restricted to ``labels``."""
        wanted = {"rank": str(rank), **labels}
        for sample, its, value in self.samples:
            if sample == name and all(its.get(key) == text for key, text in wanted.items()):
                yield value

    def total(self, name: str, rank: int, **labels: str) -> float:
        """Return the sum of a metric of one rank; 0 where there is none."""
        return sum(self.values(name, rank, **labels))

    def labels(self, label: str, rank: int, *names: str) -> set[str]:
        """Return the values of a label in the series of one rank; of these metrics, if some are named."""
        return {
            its[label]
            for sample, its, _ in self.samples
            if label in its and its.get("rank") == str(rank) and (not names or sample in names)
        }

    @property
    def is_aborted(self) -> bool:
        """Whether PyTorch ended it by itself."""
        return bool(self.code) and ABORTED in self.stderr

    @property
    def is_watched(self) -> bool:
        """Whether ampwatch saw anything of it."""
        return bool(self.samples)


@dataclass(frozen=True)
class Start:
    """One run of a program, as it is to be started.

    Attributes:
        arguments: What the program is told.
        environment: Its environment.
        ranks: In how many processes.
    """

    arguments: tuple[str, ...]
    environment: dict[str, str]
    ranks: int = 1


def run_program(command: list[str], environment: dict[str, str], seconds: float) -> Outcome:
    """Run a command to its end; ask it and all that it has started to end after so many seconds."""
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that forks of it can be ended with it
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            stdout, stderr = process.communicate(timeout=30)
            return Outcome(None, stdout, stderr, [])
        finally:
            # It does not hear of Ctrl-C, nor of the time limit of a test.
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    return Outcome(process.returncode, stdout, stderr, [])


def run_forks(command: list[str], starts: Sequence[Start]) -> list[Outcome]:
    """Run a program several times, each a fork of one process, which imports what it needs once.

    Args:
        command: The program without its arguments.
        starts: Its runs. Their environments differ in nothing that is read while it imports.
    """
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        runs = [
            asdict(start) | {name: str(place / f"{number}.{name}") for name in SAID}
            for number, start in enumerate(starts)
        ]
        (place / "runs.json").write_text(json.dumps(runs))
        asked = starts[0].environment | {"PROGRAM_RUNS": str(place / "runs.json")}
        whole = run_program([*command, *starts[0].arguments], asked, MAX_SECONDS_OF_ALL)
        assert whole.code == 0, whole.stderr
        return [
            Outcome(int(code) if code else None, stdout, stderr, [])
            for code, stdout, stderr in (
                (Path(run[name]).read_text() for name in SAID) for run in runs
            )
        ]


class Runner:
    """Runs the programs of one environment, under one daemon.

    Args:
        python: The Python that has the frameworks.
        directory: A directory of its own.
    """

    def __init__(self, python: str, directory: Path) -> None:
        self._python = python
        self._directory = directory
        self._place = Place(directory)
        for made in (self._place.runtime, self._place.rings):
            made.mkdir(mode=0o700, exist_ok=True)
        self._numbers = itertools.count()

    def daemon(self, **environment: str) -> AbstractContextManager[Daemon]:
        """Return the daemon that the programs report to."""
        environment.setdefault("AMPWATCH_MODULE_SERIES", "256")  # each module is to have its own
        return self._place.daemon("--no-gpu", **environment)

    def run(
        self, environment: Environment, way: Way, fault: Fault, daemon: Daemon | None = None
    ) -> Outcome:
        """Run a program to its end; again if PyTorch ended it by itself."""
        for _ in range(MAX_ABORTS + 1):
            start = self._start(environment, way, fault)
            command = [*self._command(environment, way), *start.arguments]
            outcome = run_program(command, start.environment, MAX_SECONDS)
            if not outcome.is_aborted:
                break
        return self._gather(outcome, start, environment, daemon if way is not Way.BARE else None)

    def run_all(
        self,
        environment: Environment,
        runs: Sequence[tuple[Way, Fault]],
        daemon: Daemon | None = None,
    ) -> list[Outcome]:
        """Run a program to its end in each way and with each fault, in less time than one by one."""
        starts = [self._start(environment, *run) for run in runs]
        outcomes = run_forks([self._python, str(PROGRAMS / environment.program[0])], starts)
        return [
            self.run(environment, way, fault, daemon)
            if outcome.is_aborted
            else self._gather(outcome, start, environment, daemon if way is not Way.BARE else None)
            for (way, fault), outcome, start in zip(runs, outcomes, starts, strict=True)
        ]

    def _start(self, environment: Environment, way: Way, fault: Fault) -> Start:
        number = next(self._numbers)
        out = self._directory / f"out-{number}"
        out.mkdir()
        given = self._place.environment | {
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "PROGRAM_OUT": str(out),
            "PROGRAM_FAULT": fault.value,
            "PROGRAM_MODE": environment.mode,
            "PROGRAM_WATCH": "edit" if way is Way.EDIT else "",
            "AMPWATCH_RUN": f"{environment.name}-{way.name.lower()}-{fault.value or 'healthy'}-{number}",
            # A program is over in less than a second: on a busy machine the usual budget would be
            # spent before each topic had its turn, and the cells be about the machine.
            "AMPWATCH_OVERHEAD_BUDGET": "1",
            "AMPWATCH_REPORT_DIR": str(out / "reports"),
        }
        return Start(
            environment.program[1:], given, environment.ranks if environment.by_torchrun else 1
        )

    def _gather(
        self, outcome: Outcome, start: Start, environment: Environment, daemon: Daemon | None
    ) -> Outcome:
        """Add what a program and ampwatch have left; nothing of one that hung."""
        if outcome.code is None:
            return outcome
        out = Path(start.environment["PROGRAM_OUT"])
        outcome.ranks = [json.loads(path.read_text()) for path in sorted(out.glob("rank*.json"))]
        if daemon is not None:
            outcome.samples = _seen(daemon, start.environment["AMPWATCH_RUN"], environment.ranks)
            for path in sorted((out / "reports").rglob("*.json")):
                outcome.reports += json.loads(path.read_text())["ranks"]
            outcome.reports.sort(key=lambda report: report["identity"]["rank"])
        return outcome

    def leftovers(self) -> list[str]:
        """Return the rings that are still there when a daemon has had the time to clear up."""
        with self.daemon(AMPWATCH_GRACE_SECONDS="0"):
            end = time.monotonic() + 10
            while (left := [path.name for path in self._place.rings.iterdir()]) and (
                time.monotonic() < end
            ):
                time.sleep(0.05)
        return left

    def _command(self, environment: Environment, way: Way) -> list[str]:
        words = [self._python]
        if environment.by_torchrun:
            words += ["-m", "torch.distributed.run", "--standalone"]
            words += ["--nproc-per-node", str(environment.ranks)]
        words.append(str(PROGRAMS / environment.program[0]))
        return [self._python, "-m", "ampwatch", "run", *words] if way is Way.ZERO else words


def _seen(daemon: Daemon, run: str, ranks: int) -> list[tuple[str, dict[str, str], float]]:
    """Return the samples of a run that has ended, once the daemon has read all of it."""
    end = time.monotonic() + 5
    while True:
        families = text_string_to_metric_families(daemon.ask("/metrics").text)
        samples = [
            (sample.name, dict(sample.labels), sample.value)
            for family in families
            for sample in family.samples
            if sample.labels.get("run") == run
        ]
        ended = sum(
            labels["state"] in ("finished", "failed")
            for name, labels, value in samples
            if name == "ampwatch_run_state" and value == 1
        )
        if ended == ranks or time.monotonic() > end:
            return samples
        time.sleep(0.1)


class Programs:
    """Runs the programs of one training, watched in different ways.

    Args:
        python: The Python that has what they need.
        directory: A directory of its own.
    """

    def __init__(self, python: str, directory: Path) -> None:
        self.place = Place(directory)
        self._python = python
        self._directory = directory
        for made in (self.place.runtime, self.place.rings):
            made.mkdir(mode=0o700, exist_ok=True)

    def train(self, *loggers: str) -> list[dict[str, Any]]:
        """Train with each of the loggers, and return what the program has written down of each."""
        for logger in loggers:
            self.store(logger).mkdir()
        starts = [
            self._start(logger, Fault.OVERFLOW, logger, str(self.store(logger)))
            for logger in loggers
        ]
        for outcome in run_forks([self._python, str(PROGRAMS / "log_to.py")], starts):
            _check(outcome)
        return [self._written(logger) for logger in loggers]

    def run(self, program: str, *arguments: str, fault: Fault, name: str) -> dict[str, Any]:
        """Run a program, and return what it has written down; ``name`` is that of the run."""
        self._run(program, self._start(name, fault, *arguments))
        return self._written(name)

    def kept(self, logger: str) -> dict[str, Any]:
        """Return what the logger has kept."""
        start = self._start(logger, Fault.NONE, logger, str(self.store(logger)))
        kept: dict[str, Any] = json.loads(self._run("reading.py", start).splitlines()[-1])
        return kept

    def store(self, logger: str) -> Path:
        """Where the logger writes."""
        return self._directory / logger

    def _start(self, name: str, fault: Fault, *arguments: str) -> Start:
        given = self.place.environment | {
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "PROGRAM_OUT": str(self._directory / f"{name}.json"),
            "PROGRAM_FAULT": fault.value,
            "AMPWATCH_RUN": name,
            "AMPWATCH_OVERHEAD_BUDGET": "1",
            "WANDB_ERROR_REPORTING": "false",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "TRACKIO_DIR": str(self.store(name)),
            "HF_HUB_OFFLINE": "1",
        }
        return Start(arguments, given)

    def _written(self, name: str) -> dict[str, Any]:
        written: dict[str, Any] = json.loads((self._directory / f"{name}.json").read_text())
        return written

    def _run(self, program: str, start: Start) -> str:
        command = [self._python, str(PROGRAMS / program), *start.arguments]
        outcome = run_program(command, start.environment, MAX_SECONDS)
        _check(outcome)
        return outcome.stdout


def _check(outcome: Outcome) -> None:
    """Fail where a program of a logger has."""
    assert outcome.code == 0, outcome.stderr
    assert "nothing more is handed to it" not in outcome.stderr


def has(python: str, modules: tuple[str, ...]) -> bool:
    """Return whether that Python can import them all."""
    asked = (
        "import importlib.util, sys; sys.exit(not all(map(importlib.util.find_spec, sys.argv[1:])))"
    )
    return subprocess.run([python, "-c", asked, *modules], check=False).returncode == 0
