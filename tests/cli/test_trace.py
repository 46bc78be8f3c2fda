"""`ampwatch trace`, as a user runs it, on a real training in a process of its own."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from ampwatch.cli import main
from ampwatch.wire.records import KernelTotal
from ampwatch.wire.ring.requests import (
    ANSWER_SUFFIX,
    REQUEST_SUFFIX,
    Answer,
    Request,
    read_request,
    request_path,
    write_answer,
    write_request,
)
from tests.host.daemon.parts import ROOT, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.workshop.nursery import Nursery, Program

TRAINING = """
import os, sys, time
from functools import partial
from pathlib import Path
import torch
from ampwatch.wire.ring import RingWriter
from ampwatch.training.sensors.window.sensor import WindowSensor
from tests.training.bench import Bench
from tests.workshop.records import end, identity
from tests.trainings import build

rings, run, rank, mode = sys.argv[1:]
who = identity(run=run, rank=int(rank), started_ns=time.time_ns())
ring = RingWriter.create([Path(rings)], who, slots=64)
device = torch.device("cpu")
bench = Bench(device=device)
bench.out.ring_path = ring.path
sensor = WindowSensor(bench.context)
bench.install(sensor)
training = build("bf16-without-scaler")
training.steps = 1
if mode == "profiling":
    # Kept: a profiler that nobody holds ends with it.
    theirs = torch.profiler.profile(schedule=torch.profiler.schedule(wait=0, warmup=10**6, active=1))
    theirs.start()
print(ring.path, flush=True)
step = 0
while step < 10**7 and not Path(rings, "stop").exists():
    if mode != "stuck":
        training.loop()
        step += 1
        sensor.guard.run(partial(sensor.boundary, step, 1e-3, sampled=False))
    time.sleep(1e-3)
bench.remove()
ring.close(end(time_ns=time.time_ns()), keep=False)
"""


class Training:
    """A training in a process of its own."""

    def __init__(self, program: Program, rings: Path) -> None:
        self.program = program
        self.rings = rings

    def wait_until_it_runs(self) -> None:
        eventually(lambda: self.program.stdout or not self.program.runs, "the training", 120)
        assert self.program.runs, self.program.stderr

    def stop(self) -> tuple[int, str]:
        """End it politely; return its exit status and what it wrote on stderr."""
        (self.rings / "stop").touch()
        return self.program.wait(), self.program.stderr


@pytest.fixture
def rings(own_places: Path) -> Path:
    return own_places / "rings"


@pytest.fixture
def start(nursery: Nursery, rings: Path) -> Iterator[Any]:
    """Start trainings; all of them have ended after the test."""
    trainings: list[Training] = []

    def start(run: str = "gpt", rank: int = 0, mode: str = "") -> Training:
        program = nursery.start(TRAINING, str(rings), run, str(rank), mode)
        trainings.append(Training(program, rings))
        trainings[-1].wait_until_it_runs()
        return trainings[-1]

    yield start
    for training in trainings:
        training.program.kill()
        training.program.wait()


def leftovers(place: Path) -> list[str]:
    return sorted(p.name for p in place.iterdir() if p.suffix != ".ring")


@contextmanager
def command(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The command line in a process of its own."""
    with subprocess.Popen(
        [sys.executable, "-m", "ampwatch", "trace", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_trace_of_a_running_training(
    start: Any, rings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The Chrome trace has the ops of the training; the table says what they cost by dtype.

    It is compressed where the name says so.
    """
    training = start()
    output = tmp_path / "out" / "trace.json.gz"
    output.parent.mkdir()

    assert main(["trace", "--iterations", "2", str(output)]) == 0

    said = capsys.readouterr().out.splitlines()
    trace = json.loads(gzip.decompress(output.read_bytes()))
    names = [event["name"] for event in trace["traceEvents"]]
    assert names.count("Optimizer.step#AdamW.step") == 2
    assert names.count("aten::addmm") == 2 * 2  # two linear layers
    assert said[0] == str(output)
    assert said[1].startswith("2 iterations from ")
    assert said[2].split() == ["unit", "dtype", "time", "share"]
    assert {tuple(line.split()[:2]) for line in said[3:]} >= {
        ("cpu", "bfloat16"),
        ("cpu", "float32"),
    }
    assert leftovers(rings) == []
    assert leftovers(output.parent) == ["trace.json.gz"]
    assert output.stat().st_mode & 0o777 == 0o666 & ~_umask()
    assert training.stop() == (0, "")


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run the command, expect one explained error, return it."""
    assert main(["trace", *arguments]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("ampwatch: ")
    return said.err.removeprefix("ampwatch: ")


def test_an_existing_file_is_only_replaced_by_force(
    start: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that the user has is not overwritten by accident."""
    start()
    output = tmp_path / "mine.json"
    output.write_text("precious")

    assert "--force replaces it" in refused(capsys, str(output))
    assert output.read_text() == "precious"
    assert main(["trace", "--force", str(output)]) == 0
    assert json.loads(output.read_text())["traceEvents"]


def test_without_a_training_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing runs: one sentence, status 1, no file."""
    output = tmp_path / "x.json"

    assert "no training of this user runs" in refused(capsys, str(output))
    assert not output.exists()


def test_of_several_trainings_one_has_to_be_chosen(
    start: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are listed as one would name them; a name that is not there is told, too."""
    start("gpt", 0)
    start("gpt", 1)
    output = str(tmp_path / "x.json")

    several = refused(capsys, output)
    assert "2 trainings match; choose one by --run and --rank:" in several
    assert "--run gpt --rank 0 " in several
    assert "--run gpt --rank 1 " in several
    assert "for --rank 7, only:" in refused(capsys, "--rank", "7", output)
    assert main(["trace", "--rank", "1", output]) == 0


def test_a_training_that_dies_meanwhile_is_reported(
    start: Any, rings: Path, tmp_path: Path
) -> None:
    """It is killed while the command waits: status 1, nothing is left."""
    training = start(mode="stuck")
    with command(str(tmp_path / "x.json")) as asking:
        eventually(lambda: list(rings.glob(f"*{REQUEST_SUFFIX}")), "the request")
        training.program.kill()
        training.program.wait()
        said, complained = asking.communicate(timeout=200)

    assert (asking.returncode, said) == (1, "")
    assert "has ended" in complained
    assert leftovers(rings) == []
    assert not list(tmp_path.glob("*x.json*"))


def test_ctrl_c_takes_the_request_back(start: Any, rings: Path, tmp_path: Path) -> None:
    """The user has changed their mind: no request, no file, and the training writes none later."""
    start(mode="stuck")
    with command(str(tmp_path / "x.json")) as asking:
        eventually(lambda: list(rings.glob(f"*{REQUEST_SUFFIX}")), "the request")
        asking.send_signal(signal.SIGINT)
        said, _ = asking.communicate(timeout=200)

    assert (asking.returncode, said) == (130, "")
    assert leftovers(rings) == []
    assert not list(tmp_path.glob("*x.json*"))


def test_a_training_whose_user_profiles_it_refuses(
    start: Any, rings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The user's own profiler goes first."""
    start(mode="profiling")

    assert "another profiler is active" in refused(capsys, str(tmp_path / "x.json"))
    assert leftovers(rings) == []


def test_somebody_who_waits_already_is_not_pushed_aside(
    start: Any, rings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unless that process is no more."""
    start(mode="stuck")
    ring = next(rings.glob("*.ring"))
    theirs = Request("theirs", os.getpid(), tmp_path / "theirs.json", 1)
    write_request(ring, theirs)

    assert "another command is waiting" in refused(capsys, str(tmp_path / "x.json"))
    assert read_request(ring) == theirs

    request_path(ring).unlink()
    write_request(ring, Request("dead", _ended_process(), tmp_path / "dead.json", 1))
    assert "no trace within" in refused(capsys, "--timeout", "0.2", str(tmp_path / "x.json"))


def _ended_process() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def test_a_directory_that_is_not_there_is_reported(
    start: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the training is asked."""
    start(mode="stuck")

    assert "No such file or directory" in refused(capsys, str(tmp_path / "no" / "x.json"))


def test_the_summary_of_a_gpu_says_how_busy_it_was() -> None:
    """Units and dtypes with their share, the longest first as they come."""
    from ampwatch.cli.trace import summary  # noqa: PLC0415 - next to its only use

    totals = KernelTotal("tensor", "bfloat16", 3_000_000), KernelTotal("other", "", 1_000_000)
    answer = Answer("t", "", 40, 1, 5_000_000, 3_900_000, totals)

    assert summary(answer).splitlines() == [
        "1 iteration from 40: 5.00 ms, profiled",
        "the GPU was busy for 3.90 ms",
        "unit     dtype               time   share",
        "tensor   bfloat16         3.00 ms   75.0%",
        "other    -                1.00 ms   25.0%",
    ]
    assert "lost data" in summary(Answer("t", "", 40, 1, 5_000_000, 0, ()))


def test_an_old_answer_is_not_taken_for_the_new_one(
    start: Any, rings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An answer to somebody else, who did not fetch it, is passed over; nothing is left of the request."""
    start(mode="stuck")
    write_answer(next(rings.glob("*.ring")), Answer("old", "planted"))
    assert list(rings.glob(f"*{ANSWER_SUFFIX}"))

    assert "no trace within 0.2 s" in refused(capsys, "--timeout", "0.2", str(tmp_path / "x.json"))
    assert leftovers(rings) == []
    assert not list(tmp_path.glob("*x.json*"))
