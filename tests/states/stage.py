"""The process in which all scripts are played: PyTorch is imported once, each rank is a fork of it.

Run as ``python -m tests.states.stage DIRECTORY HOOK NAME...``. What each script leaves lies under
``DIRECTORY/<name>``: its rings, its reports, what it logged, found and computed. ``HOOK`` is the
address that findings are posted to.
"""

from __future__ import annotations

import contextlib
import io
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.states.clock import START, ScriptedClock

CLOCK = ScriptedClock()

if TYPE_CHECKING:
    from tests.states.acts import Act

PLAYERS = 2
"""Scripts that are played at a time, as many as the smallest machine has cores. Each has a clock of its own."""

REPORTS = {"text": [], "json": ["--json"], "html": ["--html", "report.html"], "all": ["--all"]}


def main(directory: Path, hook: str, names: list[str]) -> None:
    """Play the scripts, some at a time; exit with 1 where one fails."""
    # What every rank would import by itself is imported once. PyTorch keeps the real clock.
    import torch._dynamo  # noqa: PLC0415
    import torch.distributed.fsdp  # noqa: PLC0415

    CLOCK.rule()
    import ampwatch.cli.report  # noqa: PLC0415 - it takes the scripted one, and so do the next
    import ampwatch.host.daemon.leftovers  # noqa: PLC0415
    import ampwatch.report.html_report  # noqa: PLC0415
    import ampwatch.report.report  # noqa: F401, PLC0415
    import tests.states.training  # noqa: F401, PLC0415
    from ampwatch.numerics.units.ops import HALF_DTYPES  # noqa: PLC0415
    from ampwatch.training import launcher, monitor, outlet  # noqa: F401, PLC0415
    from ampwatch.training.model import machine  # noqa: PLC0415

    torch.set_num_threads(1)
    # What is found must not depend on this machine: it has instructions for every dtype.
    machine.cpu_dtypes = lambda _=None: HALF_DTYPES
    # A daemon that is there and reads, but takes no file away: the test is that daemon.
    status = launcher.DaemonStatus("http://127.0.0.1:10917/", "running")
    for name, answer in (("ensure_daemon", status), ("daemon_is_running", True)):
        setattr(outlet, name, lambda _settings, answer=answer: answer)
    players = []
    for turn in range(PLAYERS):
        pid = os.fork()
        if pid == 0:
            _be(lambda turn=turn: _play_all(names[turn::PLAYERS], directory, hook))
        players.append(pid)
    statuses = [os.waitpid(pid, 0)[1] for pid in players]
    sys.exit(any(statuses))


def _play_all(names: list[str], directory: Path, hook: str) -> None:
    from tests.states.acts import ACTS  # noqa: PLC0415 - after the clock

    for name in names:
        play(ACTS[name], directory / name, hook)


def play(act: Act, place: Path, hook: str) -> None:
    """Play one script to its end, and look at it when its time has come."""
    for part in ("rings", "runtime", "state"):
        (place / part).mkdir(parents=True, mode=0o700)
    CLOCK.put(START)
    ranks: list[tuple[int, socket.socket]] = []
    for each in act.trainings:
        for rank in range(each.world_size):
            mine, its = socket.socketpair()
            pid = os.fork()
            if pid == 0:
                for other in (mine, *(line for _, line in ranks)):
                    other.close()
                _be(lambda each=each, rank=rank, its=its: _train(each, rank, place, hook, its))
            its.close()
            ranks.append((pid, mine))
    # A rank says when somebody should look, and waits; one that has ended closes its line.
    said = [line.recv(64) for _, line in ranks]
    if act.look != "ended":
        _look(place, max(map(float, filter(None, said))))
        for line in (line for asked, (_, line) in zip(said, ranks, strict=True) if asked):
            line.send(b"go on")
    for pid, _ in ranks:
        os.waitpid(pid, 0)
    if act.look == "ended":
        _look(place, act.time_of(act.last_step) + act.later)


def _look(place: Path, now: float) -> None:
    """Have ``ampwatch report`` say what it says at ``now``, in a process of its own."""
    pid = os.fork()
    if pid == 0:
        _be(lambda: _report(place, now))
    os.waitpid(pid, 0)


def _report(place: Path, now: float) -> None:
    from ampwatch.cli import main as cli  # noqa: PLC0415 - after the clock

    CLOCK.put(now)
    _settle_in(place)
    os.environ["COLUMNS"] = "100"
    os.chdir(place)
    for name, arguments in REPORTS.items():
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            cli(["report", *arguments])
        (place / f"report.{name}.out").write_text(said.getvalue(), encoding="utf-8")
    (place / "looked_at").write_text(repr(now))


def _train(act: Act, rank: int, place: Path, hook: str, line: socket.socket) -> None:
    from tests.states.training import train  # noqa: PLC0415 - after the clock

    _settle_in(place)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(act.world_size)}
    own = place / f"{act.name}-{rank}"
    own.mkdir()
    # What an exception writes goes into a file, so that the test's own output stays readable.
    errors = os.open(own / "stderr", os.O_WRONLY | os.O_CREAT)
    os.dup2(errors, 2)
    train(act, rank, own, f"{hook}/{act.name}/{rank}", line, CLOCK)


def _settle_in(place: Path) -> None:
    os.environ |= {
        "AMPWATCH_RUNTIME_DIR": str(place / "runtime"),
        "AMPWATCH_RING_DIR": str(place / "rings"),
        "XDG_STATE_HOME": str(place / "state"),
    }


def _be(work: Any) -> None:
    """Do ``work`` as a program of its own would, end included; never returns."""
    import atexit  # noqa: PLC0415

    status = 0
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - as the interpreter does
        sys.last_value = error
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
    # A fork must not return into the program of its parent.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
