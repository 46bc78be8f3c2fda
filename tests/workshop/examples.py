"""Examples of the repository, each run once for all tests that ask for the same."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tools.site import tutorial

OF_THE_MACHINE = {"cpu_isa_missing"}
"""Kinds that depend on the CPU that the tests run on."""


class ExampleRun(NamedTuple):
    """What an example has said.

    Attributes:
        output: What it has printed.
        log: What it has written to stderr.
        findings: What it has found, apart from what depends on the machine.
    """

    output: str
    log: str
    findings: list[dict[str, Any]]


@pytest.fixture(scope="session")
def run_example(directory_of_all: Path) -> Callable[[str], ExampleRun]:
    """Return what runs an example on the CPU, each step sampled, however slow this machine is.

    Once, in whichever worker of pytest-xdist it is asked for. A warning of Python's is an error.
    """

    def run(command: str) -> ExampleRun:
        kept = directory_of_all / f"example {command}.json"
        with (directory_of_all / f"example {command}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists():
                kept.write_text(json.dumps(_run(command, directory_of_all)))
        return ExampleRun(*json.loads(kept.read_text()))

    return run


def _run(command: str, directory: Path) -> ExampleRun:
    file = directory / f"findings of {command}.json"
    done = tutorial.run(command, "--json", str(file), PYTHONWARNINGS="error")
    assert done.returncode == 0, done.stderr
    findings = json.loads(file.read_text())
    return ExampleRun(
        done.stdout, done.stderr, [f for f in findings if f["kind"] not in OF_THE_MACHINE]
    )
