"""Several runs of one program, each a fork of a process that has imported what they need once.

To import a framework takes some ten times as long as to train what is trained here. A run is otherwise
what it is in a process of its own, or in those of its ranks: it has its arguments, environment and output,
and ends through the interpreter.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any


def part() -> None:
    """Return once for each rank of each run that ``PROGRAM_RUNS`` tells of, in a process of its own.

    The runs come one after the other. The process that asks ends here, once the last of them has. Without
    ``PROGRAM_RUNS`` it is the one run.
    """
    runs = os.environ.get("PROGRAM_RUNS")
    if runs is None:
        return
    import torch._dynamo  # noqa: F401, PLC0415 - which the first optimizer would import

    for run in json.loads(Path(runs).read_text()):
        forks = []
        for environment in _ranks(run["ranks"]):
            forks.append(os.fork())
            if forks[-1] == 0:
                _become(run, environment)
                return
        codes = [os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]) for fork in forks]
        Path(run["code"]).write_text(str(next(filter(None, codes), 0)))
    # What has been imported has nothing to end here: each of the runs has.
    os._exit(0)


def _ranks(number: int) -> list[dict[str, str]]:
    """Return what torchrun would tell each rank; nothing, if there is one."""
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
        }
        for rank in range(number)
    ]


def _become(run: dict[str, Any], environment: dict[str, str]) -> None:
    for number, stream in enumerate(("stdout", "stderr"), start=1):
        # All ranks write to one.
        opened = os.open(run[stream], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(run["environment"] | environment)
    sys.argv[1:] = run["arguments"]
