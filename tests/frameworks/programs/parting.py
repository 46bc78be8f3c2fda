"""Several runs of one program, each a fork of a process that has imported what they need once.

To import a framework takes some ten times as long as to train what is trained here. A run is otherwise
what it is in a process of its own, or in those of its ranks: it has its arguments, environment and output,
and ends through the interpreter.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

MAX_SECONDS = 240
"""A run that takes longer hangs."""


def part() -> None:
    """Return once for each rank of each run that ``PROGRAM_RUNS`` tells of, in a process of its own.

    The runs come one after the other. The process that asks ends here, once the last of them has. Without
    ``PROGRAM_RUNS`` it is the one run.
    """
    file = os.environ.pop("PROGRAM_RUNS", None)
    if file is None:
        return
    import torch._dynamo  # noqa: F401, PLC0415 - which the first optimizer would import

    runs = json.loads(Path(file).read_text())
    # The first run's own, which the process that asks was started with. What the program has set itself stays.
    for name in runs[0]["environment"]:
        os.environ.pop(name, None)
    for run in runs:
        forks = []
        for told in _ranks(run["ranks"]):
            forks.append(os.fork())
            if forks[-1] == 0:
                _become(run, told)
                return
        code = _wait(forks)
        Path(run["code"]).write_text("" if code is None else str(code))
    # What has been imported has nothing to end here: each of the runs has.
    os._exit(0)


def _wait(forks: list[int]) -> int | None:
    """Return the exit status of a run once all its ranks have ended: the first that is not 0; ``None`` if it hung.

    Where a rank fails the others are asked to end, which wait for it else.
    """
    code, end = 0, time.monotonic() + MAX_SECONDS
    left = set(forks)
    while left:
        fork, status = os.waitpid(-1, os.WNOHANG)
        if fork:
            left.discard(fork)
            failed = os.waitstatus_to_exitcode(status)
            if failed and not code:
                code = failed
                for other in left:
                    os.kill(other, signal.SIGTERM)
        elif time.monotonic() > end:
            for other in left:
                os.kill(other, signal.SIGKILL)
                os.waitpid(other, 0)
            return None
        else:
            time.sleep(0.02)
    return code


def _ranks(number: int) -> list[dict[str, str]]:
    """Return what torchrun tells each rank that a program or ampwatch asks for; nothing, if there is one."""
    if number == 1:
        return [{}]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    return [
        {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(number),
            "LOCAL_WORLD_SIZE": str(number),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "TORCHELASTIC_RUN_ID": f"forked-{port}",
            "TORCHELASTIC_RESTART_COUNT": "0",
        }
        for rank in range(number)
    ]


def _become(run: dict[str, Any], told: dict[str, str]) -> None:
    for number, stream in enumerate(("stdout", "stderr"), start=1):
        # All ranks write to one.
        opened = os.open(run[stream], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.update(run["environment"] | told)
    sys.argv[1:] = run["arguments"]
