"""Programs that start with PyTorch imported: each is a fork of one process that has imported it once.

To start Python and import PyTorch takes most of the time of a short training. A program that runs here
is otherwise what it is in a process of its own: it is ``__main__``, has its arguments, environment and
output, ends through the interpreter, and can be killed. Its classes cannot be pickled, and what ampwatch reads
of the environment when it is imported was read before.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


class Program:
    """A program that was started.

    Attributes:
        pid: Its process.
    """

    def __init__(self, nursery: Nursery, pid: int, said: tuple[Path, Path]) -> None:
        self.pid = pid
        self._nursery = nursery
        self._said = said
        self._status: int | None = None

    @property
    def stdout(self) -> str:
        """What it has written by now."""
        return self._said[0].read_text(encoding="utf-8")

    @property
    def stderr(self) -> str:
        """What it has complained of by now."""
        return self._said[1].read_text(encoding="utf-8")

    @property
    def runs(self) -> bool:
        """Whether it has not ended yet."""
        if self._status is None:
            self._status = self._nursery._ask(status=self.pid)
        return self._status is None

    def kill(self) -> None:
        """End it at once, unless it has ended."""
        if self.runs:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, seconds: float = 240.0) -> int:
        """Return its exit status once it has ended, negative for a signal, as ``subprocess`` does.

        A program that has not ended by then is killed.
        """
        end = time.monotonic() + seconds
        while self.runs and time.monotonic() < end:
            time.sleep(0.01)
        self.kill()
        while self.runs:
            time.sleep(0.01)
        assert self._status is not None
        return self._status


class Nursery:
    """The process that all programs are forks of."""

    def __init__(self, process: subprocess.Popen[str], place: Path) -> None:
        self._process = process
        self._place = place
        self._started = 0

    def start(
        self, code: str, *words: str, cwd: Path = ROOT, environment: Mapping[str, str] | None = None
    ) -> Program:
        """Start a program, with the environment that this process has now and what is given beside it."""
        self._started += 1
        said = self._place / f"{self._started}.out", self._place / f"{self._started}.err"
        for file in said:
            file.touch()
        pid = self._ask(
            code=code,
            words=words,
            cwd=str(cwd),
            environment=dict(os.environ) | dict(environment or {}),
            said=[str(file) for file in said],
        )
        return Program(self, pid, said)

    def _ask(self, **what: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Run one for all tests of a worker; it has imported nothing before the first of them asks."""
    command = [sys.executable, "-m", "tests.workshop.nursery"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with (
        tempfile.TemporaryDirectory() as place,
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        yield Nursery(process, Path(place))


def _serve() -> dict[str, Any]:
    """Fork as often as is asked; return in each fork what it is to run."""
    # What a first optimizer, a group of ranks and a first monitor would import.
    import torch._dynamo  # noqa: PLC0415
    import torch.distributed  # noqa: F401, PLC0415

    import ampwatch.training.monitor  # noqa: F401, PLC0415

    running: set[int] = set()
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        if "status" in asked:
            ended, status = os.waitpid(asked["status"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if ended else None
            running -= {ended}
        else:
            answer = os.fork()
            if answer == 0:
                return asked
            running.add(answer)
        print(json.dumps(answer), flush=True)  # noqa: T201 - the answer
    for pid in running:  # of tests that failed
        os.kill(pid, signal.SIGKILL)
    # Nothing of its own is to be ended in order, and threads of modules are not waited for.
    os._exit(0)


def _become(asked: dict[str, Any]) -> str:
    """Make a fork what a program is in a process of its own; return its text."""
    for number, mode, file in (
        (0, os.O_RDONLY, os.devnull),
        (1, os.O_WRONLY, asked["said"][0]),
        (2, os.O_WRONLY, asked["said"][1]),
    ):
        opened = os.open(file, mode)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["cwd"])
    sys.argv[:] = ["-c", *asked["words"]]
    return str(asked["code"])


if __name__ == "__main__":
    _asked = _serve()
    # At the level of the module, so that it ends as a program does: by the interpreter itself.
    exec(compile(_become(_asked), "<string>", "exec"), {"__name__": "__main__"})
