"""Runs one program one way, and gathers everything that can be known of it from outside."""

from __future__ import annotations

import itertools
import json
import subprocess
import time
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prometheus_client.parser import text_string_to_metric_families

from tests.host.daemon.parts import ROOT, Daemon, Place

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from tests.frameworks.environments import Environment

PROGRAMS = Path(__file__).with_name("programs")
MAX_SECONDS = 240
"""A program that takes longer hangs."""

ABORTED = "terminate called without an active exception"
"""Last words of a process of several ranks in which a thread of gloo lets go of a Python object while the
interpreter goes away: once in some fifty runs on a busy machine, with and without ampwatch, after the training
has ended. The thread goes on after ``destroy_process_group``: what wraps a model keeps the group."""

MAX_ABORTS = 3
"""Of one program in a row, before it counts as a failure."""


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
    def is_watched(self) -> bool:
        """Whether ampwatch saw anything of it."""
        return bool(self.samples)


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
        return self._place.daemon("--no-gpu", **environment)

    def run(
        self, environment: Environment, way: Way, fault: Fault, daemon: Daemon | None = None
    ) -> Outcome:
        """Run a program to its end; again if PyTorch ended it by itself."""
        run = f"{environment.name}-{way.name.lower()}-{fault.value or 'healthy'}"
        outcome = self._run(environment, way, fault, daemon, run)
        for number in range(MAX_ABORTS):
            if not outcome.code or ABORTED not in outcome.stderr:
                break
            outcome = self._run(environment, way, fault, daemon, f"{run}-again-{number}")
        return outcome

    def _run(
        self, environment: Environment, way: Way, fault: Fault, daemon: Daemon | None, run: str
    ) -> Outcome:
        out = self._directory / f"out-{next(self._numbers)}"
        out.mkdir()
        given = self._place.environment | {
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "PROGRAM_OUT": str(out),
            "PROGRAM_FAULT": fault.value,
            "PROGRAM_MODE": environment.mode,
            "PROGRAM_WATCH": "edit" if way is Way.EDIT else "",
            "AMPWATCH_RUN": run,
            # A program is over in less than a second: on a busy machine the usual budget would be
            # spent before each topic had its turn, and the cells be about the machine.
            "AMPWATCH_OVERHEAD_BUDGET": "1",
            "AMPWATCH_REPORT_DIR": str(out / "reports"),
        }
        with subprocess.Popen(
            self._command(environment, way),
            env=given,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                stdout, stderr = process.communicate(timeout=MAX_SECONDS)
            except subprocess.TimeoutExpired:
                process.terminate()
                stdout, stderr = process.communicate(timeout=30)
                return Outcome(None, stdout, stderr, [])
        ranks = [json.loads(path.read_text()) for path in sorted(out.glob("rank*.json"))]
        outcome = Outcome(process.returncode, stdout, stderr, ranks)
        if daemon is not None:
            outcome.samples = _seen(daemon, run, environment.ranks)
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
        program, *arguments = environment.program
        words = [self._python]
        if environment.by_torchrun:
            words += ["-m", "torch.distributed.run", "--standalone"]
            words += ["--nproc-per-node", str(environment.ranks)]
        words += [str(PROGRAMS / program), *arguments]
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

    def train(self, logger: str, fault: Fault = Fault.OVERFLOW, *more: str) -> dict[str, Any]:
        """Train, and return what the program has written down."""
        self.store(logger).mkdir()
        return self.run(
            "log_to.py", logger, str(self.store(logger)), *more, fault=fault, name=logger
        )

    def run(self, program: str, *arguments: str, fault: Fault, name: str) -> dict[str, Any]:
        """Run a program, and return what it has written down; ``name`` is that of the run."""
        out = self._directory / f"{name}.json"
        self._run(program, *arguments, PROGRAM_OUT=str(out), PROGRAM_FAULT=fault.value, AMPWATCH_RUN=name)  # fmt: skip
        written: dict[str, Any] = json.loads(out.read_text())
        return written

    def kept(self, logger: str) -> dict[str, Any]:
        """Return what the logger has kept."""
        kept: dict[str, Any] = json.loads(
            self._run("reading.py", logger, str(self.store(logger))).splitlines()[-1]
        )
        return kept

    def store(self, logger: str) -> Path:
        """Where the logger writes."""
        return self._directory / logger

    def _run(self, program: str, *arguments: str, **environment: str) -> str:
        given = self.place.environment | {
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "AMPWATCH_OVERHEAD_BUDGET": "1",
            "WANDB_ERROR_REPORTING": "false",
            "MLFLOW_DISABLE_TELEMETRY": "true",
        }
        done = subprocess.run(
            [self._python, str(PROGRAMS / program), *arguments],
            env=given | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=MAX_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "nothing more is handed to it" not in done.stderr
        return done.stdout


def has(python: str, modules: tuple[str, ...]) -> bool:
    """Return whether that Python can import them all."""
    asked = (
        "import importlib.util, sys; sys.exit(not all(map(importlib.util.find_spec, sys.argv[1:])))"
    )
    return subprocess.run([python, "-c", asked, *modules], check=False).returncode == 0
