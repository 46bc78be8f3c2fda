"""Where the time of a run of the tests goes: its last lines say so, by directory and by test.

The controller of pytest-xdist adds up what its workers report. Processor time counts children that have
been waited for; on a busy machine it says more than the seconds of the clock.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

import pytest

SLOWEST = 40
"""Tests that are listed one by one."""

MIN_TESTS = 200
"""Tests of a run from which on it is worth a table."""

CPU = "cpu"
"""Name of the property that carries a phase's processor time from a worker to the controller."""


def processor_time() -> float:
    """Return the processor time of this process and of its children that have ended. Unit: s."""
    return sum(os.times()[:4])


class Times:
    """Adds up what each test took, set-up and end included; what fixtures take is its first user's."""

    def __init__(self, chosen: str, kept: Path | None) -> None:
        self._chosen = chosen
        self._kept = kept
        self._began = time.time()
        self._at = 0.0
        self._seconds: dict[str, float] = defaultdict(float)
        self._cpu: dict[str, float] = defaultdict(float)
        self._outcomes: dict[str, int] = defaultdict(int)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Begin to count."""
        self._at = processor_time()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Count up to the end of this phase."""
        report = yield
        before, self._at = self._at, processor_time()
        report.user_properties.append((CPU, self._at - before))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a phase of a test."""
        self._seconds[report.nodeid] += report.duration
        # Of a worker that has died there is a report of the controller's own.
        self._cpu[report.nodeid] += dict(report.user_properties).get(CPU, 0.0)
        if report.when == "call" or report.outcome != "passed":
            self._outcomes[report.outcome] += 1

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write the table, and keep it where a file was named."""
        if len(self._seconds) >= MIN_TESTS:
            terminalreporter.section("where the time went")
            for line in self._table():
                terminalreporter.write_line(line)
        if self._kept is not None:
            with self._kept.open("a", encoding="utf-8") as kept:
                kept.write(json.dumps(self._row()) + "\n")

    def _table(self) -> Iterable[str]:
        row = self._row()
        yield f"{row['seconds']:.0f} s, of processors {row['cpu']:.0f} s; {row['tests']}"
        yield f"{'s':>8} {'cpu s':>8} {'tests':>6}"
        for place, (seconds, cpu, count) in row["directories"].items():
            yield f"{seconds:8.1f} {cpu:8.1f} {count:6} {place}"
        yield f"the {SLOWEST} slowest tests"
        for test in sorted(self._seconds, key=self._seconds.__getitem__, reverse=True)[:SLOWEST]:
            yield f"{self._seconds[test]:8.1f} {self._cpu[test]:8.1f}        {test}"

    def _row(self) -> dict[str, Any]:
        places: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0])
        for test, seconds in self._seconds.items():
            place = places["/".join(Path(test.partition("::")[0]).parts[:-1][:2])]
            for i, amount in enumerate((seconds, self._cpu[test], 1)):
                place[i] += amount
        by_time = sorted(places.items(), key=lambda item: item[1], reverse=True)
        return {
            "date": time.strftime("%Y-%m-%d"),
            "chosen": self._chosen or "all",
            "processors": os.cpu_count(),
            "seconds": round(time.time() - self._began, 1),
            "cpu": round(sum(self._cpu.values()), 1),
            "tests": dict(self._outcomes),
            "directories": {
                place: [round(s, 1), round(cpu, 1), n] for place, (s, cpu, n) in by_time
            },
        }
