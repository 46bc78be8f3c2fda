"""Profiler windows: when they open, what they find, and what they give way to."""

from __future__ import annotations

import math
import os
import threading
from itertools import pairwise
from threading import get_ident
from typing import TYPE_CHECKING, Any

import pytest
import torch
from msgspec import msgpack
from torch import nn

from ampwatch.training.hooks import taps
from ampwatch.training.iteration.governor import OPENING
from ampwatch.training.iteration.ledger import Clock
from ampwatch.training.sensors.window import recording as kineto
from ampwatch.training.sensors.window import sensor as window
from ampwatch.training.sensors.window.schedule import (
    MEMORY_LIMIT,
    STEPS,
    StepTimes,
    WindowSchedule,
)
from ampwatch.training.sensors.window.sensor import MAX_GIVEN_WAY, TOGETHER, WindowSensor
from ampwatch.wire.records import CensusSource, WindowSkip
from ampwatch.wire.ring.requests import (
    Request,
    answer_path,
    read_answer,
    request_path,
    withdraw,
    write_request,
)
from tests.training.bench import Bench
from tests.training.sensors.kineto_made_up import (
    TENSOR_KERNEL,
    Event,
    kernel,
    launch,
    op,
    steps_of_a_gpu,
)
from tests.trainings import build

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tests.workshop.nursery import Nursery

CPU = torch.device("cpu")
CUDA = torch.device("cuda", 0)
STEP_S = 0.125


class Time:
    """A clock that moves only when it is set."""

    def __init__(self) -> None:
        self.ns = 1_000_000_000

    def __call__(self) -> int:
        return self.ns


class MadeUp:
    """A recording that costs what the test says and has the events that the test says."""

    log: list[str]
    time: Time
    events: Sequence[Event]
    has_stopped_early = False
    costs_ns = 0

    def __init__(self, gpu: torch.device | None) -> None:
        self.log.append(f"made for {gpu}")
        self.profile = object()
        self.thread = get_ident()
        self.is_stolen = False

    def prepare(self) -> None:
        self._do("prepare")

    def wait(self) -> None:
        self.log.append("wait")

    def begin(self) -> None:
        self._do("begin")

    def close(self) -> None:
        self._do("close")

    def _do(self, what: str) -> None:
        self.log.append(what)
        self.time.ns += self.costs_ns

    def save(self, path: Path) -> None:
        path.write_text("{}")


class Windows(Bench):
    """A sensor, and iterations one after the other."""

    def __init__(self, device: torch.device = CPU, ring: Path | None = None, **more: Any) -> None:
        self.time = Time()
        clock = Clock(self.time, lambda: 7)
        super().__init__(device=device, parts={"clock": clock}, **({"window_seconds": 60.0} | more))
        self.out.ring_path = ring
        self.records: list[Any] = self.out.records
        self.sensor = WindowSensor(self.context)
        self.install(self.sensor)
        self.step = 0

    def run(
        self, steps: int = 1, work: Callable[[], object] = lambda: None, seconds: float = STEP_S
    ) -> None:
        for _ in range(steps):
            work()
            self.time.ns += int(seconds * 1e9)
            self.step += 1
            self.sensor.guard.run(lambda: self.sensor.boundary(self.step, seconds, sampled=False))

    def until_open(self, work: Callable[[], object] = lambda: None) -> None:
        for _ in range(2000):
            if self.sensor.is_open:
                return
            self.run(work=work)
        raise AssertionError("no window was opened")  # noqa: EM101, TRY003 - a test

    def until_closed(self, work: Callable[[], object] = lambda: None) -> None:
        while self.sensor.is_open:
            self.run(work=work)


def environment() -> dict[str, str]:
    """What the profiler listens to; torch.profiler itself sets variables of TorchInductor."""
    return {
        name: value for name, value in os.environ.items() if "KINETO" in name or "CUPTI" in name
    }


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Windows]]:
    """Make benches of windows of so many iterations; each leaves nothing behind."""
    made: list[Windows] = []
    before = dict(taps._taps), environment()

    def make(device: torch.device = CPU, *, iterations: int = 2, **more: Any) -> Windows:
        monkeypatch.setattr(window, "ITERATIONS", iterations)
        made.append(Windows(device, **more))
        return made[-1]

    yield make
    for one in made:
        one.remove()
    assert not torch.autograd._profiler_enabled()
    assert not torch.autograd.profiler._is_profiler_enabled
    assert (dict(taps._taps), environment()) == before


@pytest.fixture
def made_up(
    monkeypatch: pytest.MonkeyPatch, bench: Callable[..., Windows]
) -> Callable[..., Windows]:
    """Benches with a recording that is made up, on a machine that may use TF32."""
    monkeypatch.setattr(window, "allows_tf32", lambda _kind: True)

    def make(
        events: Sequence[Event], device: torch.device = CUDA, *, costs_ns: int = 0, **more: Any
    ) -> Windows:
        one = bench(device, **more)
        fields = {"log": [], "time": one.time, "events": events, "costs_ns": costs_ns}
        recording: Any = type("MadeUpHere", (MadeUp,), fields)
        one.recording = recording  # type: ignore[attr-defined]
        monkeypatch.setattr(window, "Recording", recording)
        return one

    return make


@pytest.fixture
def ring(own_places: Path) -> Path:
    return own_places / "rings" / "gpt-0-1-ab.ring"


def matmuls() -> None:
    a = torch.ones(64, 64, dtype=torch.bfloat16)
    a @ a


# When it opens


def test_the_first_window_comes_early_and_after_the_opening(bench: Any) -> None:
    """One iteration to warm up, then as many as asked for are recorded."""
    one = bench(iterations=3)
    one.until_open(matmuls)
    assert one.step == OPENING
    one.until_closed(matmuls)

    assert one.step == OPENING + 1 + 3
    (record,) = one.records
    assert (record.step, record.windows, record.invalid, record.iterations) == (33, 1, 0, 3)
    (row,) = [row for row in record.kernels if row.op == "mm"]
    assert (row.unit, row.dtype, row.calls) == ("cpu", "bfloat16", 3)
    (total,) = [t.nanoseconds for t in record.totals if t.dtype == "bfloat16"]
    assert total == sum(r.nanoseconds for r in record.kernels if r.dtype == "bfloat16")
    assert total >= row.nanoseconds > 0
    assert record.wall_ns == 3 * STEP_S * 1e9


@pytest.mark.parametrize(
    ("device", "seconds", "is_compiled", "opens"),
    [
        (CPU, -1.0, False, False),
        (CPU, -1.0, True, True),
        (CUDA, -1.0, False, True),
        (CPU, 60.0, False, True),
        (CUDA, 0.0, False, False),
        (CPU, 0.0, True, False),
    ],
)
def test_by_itself_it_opens_on_a_gpu_and_where_code_is_compiled(
    made_up: Any,
    device: torch.device,
    seconds: float,
    *,
    is_compiled: bool,
    opens: bool,
) -> None:
    """A setting above 0 has it open anywhere, 0 nowhere."""
    one = made_up([], device, window_seconds=seconds)
    one.bus.runs_compiled = is_compiled
    one.run(200)

    assert bool(one.recording.log) is opens


def test_windows_are_as_far_apart_as_the_setting_says(made_up: Any) -> None:
    """Windows begin at multiples, so that the ranks of a job are profiled together."""
    one = made_up(steps_of_a_gpu(), window_seconds=60.0)
    opened = []
    for _ in range(2000):
        was_open = one.sensor.is_open
        one.run()
        if one.sensor.is_open and not was_open:
            opened.append(one.step)

    assert opened[0] == OPENING
    assert all(step % TOGETHER == 0 for step in opened)
    gaps = [b - a for a, b in pairwise(opened)]
    assert min(gaps) * STEP_S >= 60.0
    assert max(gaps) * STEP_S < 60.0 + 2 * TOGETHER * STEP_S


def test_what_a_window_has_cost_is_paid_back_first(made_up: Any) -> None:
    """A second of cost is a quarter of one per cent of 400 seconds; the wait is counted."""
    one = made_up(steps_of_a_gpu(), window_seconds=1.0, costs_ns=500_000_000)
    one.until_open()
    one.until_closed()
    ended = one.step
    first = one.records[0]
    one.until_open()

    assert (first.first_ns, first.start_ns) == (1_000_000_000, 0)
    assert first.stop_ns == one.sensor._totals.cost_ns == 500_000_000
    assert 200.0 <= (one.step - ended) * STEP_S < 200.0 + TOGETHER * STEP_S + 1
    assert one.records[-1].skipped[WindowSkip.BUDGET] == 1
    one.until_closed()
    assert one.records[-1].start_ns == 1_000_000_000


def test_profiled_iterations_are_charged_with_what_they_take_longer(made_up: Any) -> None:
    """An iteration that took far longer had something else in it, an evaluation: not all of it."""
    one = made_up(steps_of_a_gpu(), iterations=2)
    one.until_open()
    one.run()
    one.run(2, seconds=1.5 * STEP_S)
    assert one.records[0].run_ns == STEP_S * 1e9

    one.until_open()
    one.run()
    one.run(2, seconds=100 * STEP_S)
    assert one.records[-1].run_ns == STEP_S * 1e9 + 3 * 2 * STEP_S * 1e9


def test_steps_that_stay_slower_make_windows_rarer(made_up: Any) -> None:
    """The gap grows the second time in a row; the ratio is reported each time."""
    one = made_up(steps_of_a_gpu(), window_seconds=20.0)
    for _ in range(2):
        one.run(STEPS + 1)
        one.until_open()
        one.until_closed()
        one.run(STEPS + 1, seconds=1.25 * STEP_S)
        assert one.records[-1].drag == 1.25
    assert one.records[-1].skipped[WindowSkip.DRAG] == 0
    closed = one.step
    one.until_open()

    assert one.records[-1].skipped[WindowSkip.DRAG] == 1
    assert (one.step - closed) * STEP_S >= 30.0
    assert "TEARDOWN_CUPTI=1" in " ".join(one.sensor.not_seen())


def test_a_step_that_somebody_worked_in_is_not_compared() -> None:
    """Sampled steps are passed over, but where each step is sampled."""
    for all_alike, expected in ((False, 1.0), (True, 2.0)):
        times = StepTimes(all_alike=all_alike)
        for _ in range(STEPS):
            times.add(1.0, sampled=False)
            times.add(math.nan, sampled=False)
        times.window_ended()
        for _ in range(STEPS):
            times.add(2.0, sampled=True)
        for _ in range(STEPS):
            times.add(1.0, sampled=False)
        drags = times.drag()
        assert drags == expected or (all_alike and drags == 1.0)


def test_a_process_that_has_grown_gets_fewer_windows() -> None:
    """Counted as such."""
    schedule = WindowSchedule(10.0, 0.01)

    assert schedule.is_due(1.0, MEMORY_LIMIT)
    assert not schedule.is_due(1.0, MEMORY_LIMIT + 1)
    assert schedule.skipped[WindowSkip.MEMORY] == 1
    assert not schedule.is_due(600.0, 0)
    assert schedule.is_due(700.0, 0)


# What it tells of a GPU


def test_kernels_of_a_window_are_recorded_and_handed_to_the_diagnosis(made_up: Any) -> None:
    """The record has the totals, the evidence the kernels, once."""
    one = made_up(steps_of_a_gpu(), iterations=1)
    one.until_open()
    assert one.sensor.take() == (None, None)
    one.until_closed()

    (record,) = one.records
    assert {(unit, dtype): ns for unit, dtype, ns in record.totals} == {
        ("tensor", "float16"): 50,
        ("cuda", "float32"): 60,
        ("other", ""): 20,
    }
    assert record.busy_ns == 100
    assert [row.nanoseconds for row in record.kernels] == [60, 50, 20]
    evidence, _ = one.sensor.take()
    assert (evidence.step, evidence.iterations, evidence.wall_s) == (33, 1, STEP_S)
    assert [k.op for k in evidence.kernels] == ["addmm", "mm", "addmm"]
    assert evidence.kernels[1].name == TENSOR_KERNEL
    assert evidence.busy_s == 100e-9
    assert one.sensor.take() == (None, None)
    assert one.recording.log == [
        "made for cuda:0",
        "prepare",
        "wait",
        "begin",
        "wait",
        "close",
    ]


def test_patterns_of_the_user_decide_before_the_rules(made_up: Any) -> None:
    """A kernel of one's own is what the setting says it is."""
    events = [op("mine", 1), *launch(1), kernel("my_gemm_7", 100, 50, link=1)]
    one = made_up(events, iterations=1, kernel_patterns="my_gemm_.*=tensor:bfloat16")
    one.until_open()
    one.until_closed()

    (record,) = one.records
    assert list(record.totals) == [("tensor", "bfloat16", 50)]


@pytest.mark.parametrize(
    ("events", "is_full"),
    [([], False), ([op("aten::mm", 1), *launch(4)], False), (steps_of_a_gpu(), True)],
    ids=["no device", "kernels lost", "buffers full"],
)
def test_a_window_that_lost_data_is_marked_and_not_counted(
    made_up: Any, events: list[Event], *, is_full: bool
) -> None:
    """No totals, no evidence; it has cost something anyway. Kineto says itself what was full."""
    one = made_up(events, costs_ns=1000)
    one.recording.has_stopped_early = is_full
    one.until_open()
    one.until_closed()

    (record,) = one.records
    assert (record.windows, record.invalid, record.iterations, record.totals) == (1, 1, 0, ())
    assert record.stop_ns == 1000
    assert one.sensor.take() == (None, None)
    assert one.sensor.not_seen() == ["1 of 1 profiler windows lost data and are not counted"]


def test_the_census_comes_from_the_window_where_it_is_wanted(bench: Any) -> None:
    """The census names the window as its source; without a wish there is none, compiled or not."""
    wanted = bench(op_census="window")
    plain = bench(compiled_census="force_eager")
    for one in (wanted, plain):
        one.bus.runs_compiled = True
        one.until_open()
        one.until_closed(matmuls)

    _, census = wanted.sensor.take()
    assert census.source is CensusSource.PROFILER
    assert [(key.op, tally.calls) for key, tally in census.tallies.items() if key.op == "mm"] == [
        ("mm", 1)
    ]
    assert wanted.sensor.take()[1] is None
    assert plain.sensor.take()[1] is None


# Whom it gives way to


def test_a_profiler_of_the_users_that_is_open_is_left_alone(bench: Any) -> None:
    """The window is counted as not opened, and tried again later."""
    one = bench(window_seconds=60.0)
    with torch.profiler.profile() as theirs:
        one.run(OPENING + 5, matmuls)
    assert not one.sensor.is_open
    assert one.records[-1].skipped[WindowSkip.PROFILER] == 1
    assert sum(e.name() == "aten::mm" for e in theirs.profiler.kineto_results.events()) == 37

    one.until_open()
    assert 30.0 <= (one.step - OPENING) * STEP_S < 30.0 + TOGETHER * STEP_S


@pytest.mark.parametrize("iterations_in", [0, 1, 2])
def test_a_profiler_that_the_user_starts_meanwhile_has_all_it_asked_for(
    bench: Any, iterations_in: int
) -> None:
    """Ours ends before theirs begins, in warm-up and later."""
    one = bench(iterations=3)
    one.until_open()
    one.run(iterations_in, matmuls)
    with torch.profiler.profile(record_shapes=True) as theirs:
        assert not one.sensor.is_open
        matmuls()
        one.run()

    names = [e.name() for e in theirs.profiler.kineto_results.events()]
    assert names.count("aten::mm") == 1
    record = one.records[-1]
    assert (record.windows, record.skipped[WindowSkip.PROFILER]) == (0, 1)
    assert "another profiler was active" in one.sensor.not_seen()[0]


def test_emit_nvtx_and_the_old_profiler_go_first_as_well(bench: Any) -> None:
    """Both would raise where a profiler is open."""
    one = bench()
    one.until_open()
    one.run(1)
    with torch.autograd.profiler.emit_itt(enabled=False):
        assert not one.sensor.is_open


def test_a_profiler_in_another_thread_is_not_broken(bench: Any) -> None:
    """Two at a time crash the process: ours waits until theirs has ended, then goes."""
    one = bench(iterations=1)
    one.until_open()
    one.run(1, matmuls)
    begun = threading.Event()
    go_on = threading.Event()
    counted = []

    def profile() -> None:
        with torch.autograd.profiler.profile(use_kineto=True) as theirs:
            begun.set()
            go_on.wait(60)
            matmuls()
        counted.append([e.name() for e in theirs.kineto_results.events()].count("aten::mm"))

    thread = threading.Thread(target=profile)
    thread.start()
    begun.wait(60)
    one.run(3, matmuls)
    assert one.sensor.is_open
    go_on.set()
    thread.join(60)
    one.run(1)

    assert counted == [1]
    assert not one.sensor.is_open
    assert not torch.autograd._profiler_enabled()
    assert one.records[-1].skipped[WindowSkip.PROFILER] == 1


def test_evaluation_is_not_profiled(bench: Any) -> None:
    """Unless it happens in every step."""
    one = bench()
    model = nn.Linear(2, 2)
    for _ in range(MAX_GIVEN_WAY):
        one.until_open()
        one.run(1)
        model.train()
        assert one.sensor.is_open
        model.eval()
        assert not one.sensor.is_open
    one.until_open()
    model.eval()
    one.until_closed(matmuls)

    assert one.records[-1].windows == 1
    assert one.records[-1].skipped == (0, 0, 0, 0, 0)


def is_profiled_in_a_child() -> bool:
    pid = os.fork()
    if not pid:
        os._exit(torch.autograd._profiler_enabled())
    return bool(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("iterations_in", [0, 1])
def test_a_child_that_is_forked_does_not_inherit_a_window(bench: Any, iterations_in: int) -> None:
    """The window is given up, reported, and tried again half a minute later."""
    one = bench(window_seconds=60.0)
    one.run(1)
    assert not is_profiled_in_a_child()  # before a window a fork is nobody's business
    one.until_open()
    one.run(iterations_in)
    gave_way = one.step

    assert not is_profiled_in_a_child()
    assert not one.sensor.is_open
    assert one.sensor.not_seen() == ["1 profiler windows were given up: the process was forked"]
    one.until_open()
    assert 30.0 <= (one.step - gave_way) * STEP_S < 30.0 + (TOGETHER + 1) * STEP_S
    assert not is_profiled_in_a_child()


def test_a_forked_child_opens_no_window(bench: Any) -> None:
    """A child's training is not the watched one; the profiler may hang in it."""
    one = bench()
    pid = os.fork()
    if not pid:
        one.run(OPENING + 1)
        os._exit(one.sensor.is_open)

    assert os.waitpid(pid, 0)[1] == 0


IN_A_CHILD = """
import os, threading
import torch
from ampwatch.training.sensors.window.recording import Recording

recording = Recording()
recording.prepare()
recording.begin()

def fork():
    pid = os.fork()
    if not pid:
        recording.close()
        os._exit(0)
    print(os.waitpid(pid, 0)[1])

thread = threading.Thread(target=fork)
thread.start()
thread.join()
torch.ones(2) + 1
recording.close()
print(len(recording.events) > 0)
"""


def test_a_child_ends_no_recording_of_its_parent(nursery: Nursery) -> None:
    """The child would hang or be aborted; the parent's recording goes on."""
    program = nursery.start(IN_A_CHILD)

    assert (program.wait(), program.stdout) == (0, "0\nTrue\n")


def test_a_graph_that_is_captured_puts_a_window_off(
    made_up: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it is counted; at its end the window waits for the next boundary."""
    capturing = [True]
    monkeypatch.setattr(window, "is_capturing", lambda: capturing[0])
    one = made_up(steps_of_a_gpu(), window_seconds=5.0, iterations=1)
    one.run(OPENING)
    assert one.recording.log == []
    assert one.records[-1].skipped[WindowSkip.CAPTURE] == 1

    capturing[0] = False
    one.until_open()
    one.run(1)
    capturing[0] = True
    one.run(2)
    assert one.sensor.is_open
    capturing[0] = False
    one.run(1)
    assert one.records[-1].iterations == 3


def test_the_capture_of_a_graph_ends_an_open_window(bench: Any) -> None:
    """Before it begins."""
    one = bench()
    one.until_open()
    one.run(1)
    # A build for the CPU has a stand-in, which refuses to be made; one for CUDA a class of C++.
    maker = object if torch.version.cuda is None else torch.cuda.CUDAGraph
    graph = maker.__new__(torch.cuda.CUDAGraph)
    with pytest.raises(Exception):  # noqa: B017, PT011 - there is no GPU here
        graph.capture_begin()

    assert not one.sensor.is_open
    assert one.records[-1].skipped[WindowSkip.CAPTURE] == 1


@pytest.mark.parametrize("asked", [False, True])
def test_windows_are_opened_in_the_main_thread_alone(
    bench: Any, ring: Path, tmp_path: Path, *, asked: bool
) -> None:
    """Another one may end meanwhile, which crashes the process; said once."""
    one = bench(ring=ring)
    if asked:
        ask(ring, tmp_path / "x.json")
    thread = threading.Thread(target=lambda: one.run(3 * TOGETHER))
    thread.start()
    thread.join()

    assert not one.sensor.is_open
    (sentence,) = one.sensor.not_seen()
    assert "thread" in sentence
    assert answer_path(ring).exists() is asked
    if asked:
        assert "thread" in read_answer(ring).why_not
    one.until_open()


# The promises


def test_training_is_bit_for_bit_the_same_with_a_window_in_it(one_thread: None) -> None:
    """Weights, losses, scales, random state."""
    bare = build("fp16-fused")
    bare.loop()

    watched = build("fp16-fused")
    one = Windows()
    one.until_open()
    watched.after_step = lambda _step: one.run()
    watched.loop()
    one.remove()

    assert one.records[-1].windows == 1
    assert watched.digest() == bare.digest()


@pytest.mark.parametrize("method", ["prepare", "begin", "close"])
def test_a_fault_of_the_profiler_switches_the_sensor_off_and_closes_it(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing reaches the step; nothing stays open."""
    one = Windows()
    fails = [True]
    original = getattr(window.Recording, method)

    def fail(recording: Any) -> None:
        if fails.pop() if fails else False:
            raise RuntimeError("planted")  # noqa: EM101 - a test
        original(recording)

    monkeypatch.setattr(window.Recording, method, fail)
    one.run(OPENING + 10, matmuls)
    with pytest.raises(AssertionError):  # a sensor has failed
        one.remove()

    assert one.sensor.guard.errors == 1
    assert not one.sensor.is_open
    if method == "close" and torch.autograd._profiler_enabled():
        torch.autograd._disable_profiler()  # closing is what failed
        torch.autograd.profiler._run_on_profiler_stop()
    assert not torch.autograd._profiler_enabled()


def removed_elsewhere(one: Windows) -> None:
    one.until_open()
    one.run(1)
    thread = threading.Thread(target=one.remove)
    thread.start()
    thread.join()
    assert torch.autograd._profiler_enabled()


def test_removed_by_another_thread_the_window_is_closed_at_the_next_call_of_a_module() -> None:
    """Of the thread that began it: no other can. The hook is gone then."""
    one = Windows()
    model = nn.Linear(2, 2)
    hooks = dict(torch.nn.modules.module._global_forward_pre_hooks)
    removed_elsewhere(one)
    thread = threading.Thread(target=model, args=(torch.ones(2),))
    thread.start()
    thread.join()
    assert torch.autograd._profiler_enabled()
    model(torch.ones(2))

    assert not torch.autograd._profiler_enabled()
    assert dict(torch.nn.modules.module._global_forward_pre_hooks) == hooks
    assert not one.sensor.guard.errors


def test_removed_by_another_thread_the_window_is_closed_at_exit_at_the_latest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where no module is called, and without hooks where code is compiled."""
    at_exit: list[Any] = []
    monkeypatch.setattr(kineto.atexit, "register", at_exit.append)
    monkeypatch.setattr(kineto, "may_compile", lambda: True)
    one = Windows()
    removed_elsewhere(one)
    assert not torch.nn.modules.module._global_forward_pre_hooks

    (close,) = at_exit
    close()
    assert not torch.autograd._profiler_enabled()
    assert not one.sensor.guard.errors


# On request


def ask(ring: Path, place: Path, **more: Any) -> Request:
    place.touch(mode=0o600)
    request = Request(**({"token": "t", "pid": 1, "path": place, "iterations": 1} | more))
    write_request(ring, request)
    return request


def test_a_request_that_meets_another_profiler_is_refused_with_the_reason(
    bench: Any, ring: Path, tmp_path: Path
) -> None:
    """Before it has begun and after."""
    one = bench(window_seconds=0.0, ring=ring)
    ask(ring, tmp_path / "x.json")
    with torch.profiler.profile():
        one.run(1)
    assert "another profiler is active" in read_answer(ring).why_not

    withdraw(ring)
    ask(ring, tmp_path / "x.json", token="u")
    one.until_open()
    with torch.profiler.profile():
        pass
    assert (read_answer(ring).token, "was started" in read_answer(ring).why_not) == ("u", True)


def test_a_request_is_refused_where_forks_never_let_a_window_end(
    bench: Any, ring: Path, tmp_path: Path
) -> None:
    """The window is tried a few times, at once each time."""
    one = bench(window_seconds=0.0, ring=ring)
    ask(ring, tmp_path / "x.json")
    for _ in range(MAX_GIVEN_WAY + 1):
        assert not answer_path(ring).exists()
        one.run(1)
        assert one.sensor.is_open
        assert not is_profiled_in_a_child()
    one.run(1)

    assert "forks" in read_answer(ring).why_not
    assert not one.sensor.is_open


def test_the_end_of_training_is_answered_and_leaves_no_file(
    bench: Any, ring: Path, tmp_path: Path
) -> None:
    """Who waits takes the files away; without anybody there are none."""
    one = bench(ring=ring)
    ask(ring, tmp_path / "x.json")
    one.remove()
    assert read_answer(ring).why_not == "the training has ended"

    request_path(ring).unlink()
    one.remove()
    assert list(ring.parent.iterdir()) == []


def change(file: Path, **fields: object) -> None:
    file.write_bytes(msgpack.encode(msgpack.decode(file.read_bytes()) | fields))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_text("no request"),
        lambda path: change(path, iterations=9),
        lambda path: change(path, path="relative"),
        lambda path: path.chmod(0o644),
        lambda path: path.write_bytes(path.read_bytes() + bytes(1 << 20)),
        lambda path: (path.unlink(), os.mkfifo(path, 0o600)),
        lambda path: (path.rename(path.with_suffix(".x")), path.symlink_to(path.with_suffix(".x"))),
    ],
)
def test_a_request_that_is_not_to_be_believed_is_passed_over(
    bench: Any, ring: Path, tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    """Whatever lies there: nothing raises, nothing waits, nothing is profiled."""
    one = bench(window_seconds=0.0, ring=ring)
    ask(ring, tmp_path / "x.json")
    spoil(request_path(ring))
    one.run(5)

    assert not one.sensor.is_open
    assert not answer_path(ring).exists()


@pytest.mark.parametrize("kind", ["link", "full", "missing"])
def test_only_an_empty_file_of_the_user_is_replaced(
    bench: Any, ring: Path, tmp_path: Path, kind: str
) -> None:
    """Files with content, and links to them, are refused."""
    target = tmp_path / "x.json"
    ask(ring, target)
    target.unlink()
    if kind == "link":
        (tmp_path / "y.json").touch()
        target.symlink_to(tmp_path / "y.json")
    elif kind == "full":
        target.write_text("precious")
    one = bench(ring=ring)
    one.run(1)

    assert not one.sensor.is_open
    assert "expected an empty file" in read_answer(ring).why_not


def test_a_file_that_vanished_meanwhile_is_reported(
    made_up: Any, ring: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, for instance."""

    def full(_self: object, _path: Path) -> None:
        raise OSError(28, "No space left on device")

    one = made_up(steps_of_a_gpu(), ring=ring)
    monkeypatch.setattr(one.recording, "save", full)
    ask(ring, tmp_path / "x.json")
    one.run(1)
    one.until_closed()

    assert "No space left on device" in read_answer(ring).why_not


@pytest.mark.rotating
def test_compiled_code_is_not_compiled_again(bench: Any) -> None:
    """Opening and closing a window changes nothing that compiled code depends on."""
    import torch._dynamo.utils  # noqa: PLC0415 - takes a second

    model = torch.compile(nn.Linear(8, 8), backend="aot_eager")

    def step() -> None:
        model(torch.ones(2, 8)).sum().backward()

    one = bench(op_census="window")
    step()
    frames = torch._dynamo.utils.counters["frames"]["total"]
    one.until_open(step)
    one.until_closed(step)
    one.run(2, step)

    assert torch._dynamo.utils.counters["frames"]["total"] == frames > 0
    _, census = one.sensor.take()
    calls = {key.op: tally.calls for key, tally in census.tallies.items()}
    assert calls["addmm"] == 1
    assert [row for row in one.records[-1].kernels if row.op == "Torch-Compiled Region"]
    torch._dynamo.reset()
