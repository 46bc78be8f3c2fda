"""Recordings of the real profiler, what is read from their events, and what loses data."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from ampwatch.numerics.units.ops import OpKind, Phase
from ampwatch.training.hooks.profilers import OtherProfilers
from ampwatch.training.sensors.window.census import census_of
from ampwatch.training.sensors.window.events import (
    KernelLaunch,
    call_tree,
    cpu_work,
    device_work,
    op_name,
)
from ampwatch.training.sensors.window.recording import LOG_LEVEL, Recording
from ampwatch.wire.records import CensusSource, WindowSkip
from tests.host.daemon.parts import ROOT
from tests.training.sensors.kineto_made_up import (
    FP32_KERNEL,
    TENSOR_KERNEL,
    Event,
    EventOfAKind,
    call,
    kernel,
    launch,
    op,
    steps_of_a_gpu,
)
from tests.workshop.alone import python

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def record(work: Callable[[], Any]) -> Recording:
    recording = Recording()
    recording.prepare()
    recording.begin()
    work()
    recording.close()
    return recording


def test_a_recording_has_the_ops_and_their_dtypes() -> None:
    """Ops between begin and close are found, by name and dtypes of inputs."""
    a = torch.ones(4, 4, dtype=torch.bfloat16)
    b = torch.ones(4, 4)

    work = cpu_work(call_tree(record(lambda: (a @ a, b + b)).events))

    assert work["mm", ("c10::BFloat16", "c10::BFloat16")].calls == 1
    assert work["add", ("float", "float", "Scalar")].calls == 1
    assert not torch.autograd._profiler_enabled()


def test_a_trace_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """Kineto itself only writes a line about it."""
    recording = record(lambda: torch.ones(2) + 1)

    with pytest.raises(OSError, match="No such file"):
        recording.save(tmp_path / "no" / "trace.json")


SILENT = f"""
import os
from ampwatch.training.sensors.window.recording import Recording
for begins in (False, True, True):
    recording = Recording()
    recording.prepare()
    if begins:
        recording.begin()
    recording.close()
print({LOG_LEVEL!r} in os.environ)
"""


@pytest.mark.rotating
@pytest.mark.parametrize("level", [None, pytest.param("0", marks=pytest.mark.nightly)])
def test_nothing_is_written_on_stderr_unless_the_user_asks(
    level: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kineto writes when it begins, is given up and ends; the environment is as before.

    In a process of its own: Kineto asks for its level when it is loaded.
    """
    monkeypatch.delenv(LOG_LEVEL, raising=False)
    done = python("-c", SILENT, **({} if level is None else {LOG_LEVEL: level}))

    assert done.stdout == f"{level is not None}\n"
    assert bool(done.stderr) is (level is not None)


class Observed:
    """Hears what other profilers are about to do."""

    def __init__(self) -> None:
        self.reasons: list[WindowSkip | None] = []
        self.others = OtherProfilers(self.reasons.append)
        self.others.install()


@pytest.fixture
def observed() -> Iterator[Observed]:
    observed = Observed()
    yield observed
    observed.others.remove()


def test_a_profiler_of_the_users_is_seen_from_prepare_to_exit(observed: Observed) -> None:
    """The profiler is seen while it only warms up, when PyTorch itself shows none."""
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=1)
    with torch.profiler.profile(schedule=schedule) as theirs:
        assert not torch.autograd._profiler_enabled()
        assert observed.others.are_active
        theirs.step()
        assert observed.others.are_active
    assert observed.reasons == [WindowSkip.PROFILER]
    assert not observed.others.are_active


@pytest.mark.parametrize("variable", ["KINETO_USE_DAEMON", "NSYS_PROFILING_SESSION_ID"])
def test_a_profiler_outside_of_the_process_is_seen(
    observed: Observed, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variables of dynolog and Nsight Systems show it."""
    assert not observed.others.are_active
    monkeypatch.setenv(variable, "1")
    assert observed.others.are_active


def test_a_forgotten_profiler_of_the_users_is_not_waited_for_for_ever(observed: Observed) -> None:
    """Prepared, never started, and gone."""
    theirs = torch.autograd.profiler.profile(use_kineto=True)
    theirs._prepare_trace()
    assert observed.others.are_active
    del theirs
    assert not observed.others.are_active


def test_kernels_are_linked_to_the_ops_that_launched_them() -> None:
    """Name, op and dtypes of its inputs; the time in which any of them ran counts once."""
    work = device_work(steps_of_a_gpu(), 0)

    halves, singles = ("c10::Half",) * 2, ("float",) * 3
    assert {key: spent.nanoseconds for key, spent in work.kernels.items()} == {
        KernelLaunch(TENSOR_KERNEL, "aten::mm", halves): 50,
        KernelLaunch(FP32_KERNEL, "aten::addmm", singles): 60,
        KernelLaunch("Memcpy HtoD (Pinned -> Device)", "aten::addmm", singles): 20,
    }
    assert work.busy_ns == (180 - 100) + 20
    assert work.is_whole


def test_annotations_and_other_devices_are_not_busy_time() -> None:
    """Kineto repeats the user's annotations on the device, for as long as their kernels ran."""
    events = [
        *steps_of_a_gpu(),
        kernel("Optimizer.step#SGD.step", 0, 1000, annotation=True),
        kernel(TENSOR_KERNEL, 0, 500, link=1, index=1),
    ]

    assert device_work(events, 0).busy_ns == 100
    assert device_work(events, 1).busy_ns == 500


def test_the_time_in_which_the_host_waits_is_that_of_the_calls_that_wait() -> None:
    """Of CUDA's and HIP's, and of no op that is called alike."""
    events = [
        *steps_of_a_gpu(),
        Event("cudaStreamSynchronize", 200, 30),
        Event("hipDeviceSynchronize", 240, 7),
        Event("cudaEventSynchronize", 250, 2),
        Event("cudaMemcpyAsync", 260, 100),
        Event("mine::StreamSynchronize", 400, 100),
    ]

    assert device_work(events, 0).waited_ns == 39
    assert device_work(steps_of_a_gpu(), 0).waited_ns == 0


@pytest.mark.parametrize(
    ("events", "is_whole"),
    [
        ([], False),  # the profiler could not be attached to the device
        (launch(2), False),  # launched, and none recorded
        ([*launch(10), *(kernel("k", i, 1, link=1) for i in range(9)), op("aten::mm", 1)], True),
        ([*launch(10), *(kernel("k", i, 1, link=1) for i in range(8)), op("aten::mm", 1)], False),
        ([*launch(2), kernel("k", 0, 1), kernel("k", 1, 1)], False),  # no op is known
        ([*launch(1, "cudaGraphLaunch"), kernel("k", 0, 1), kernel("k", 1, 1)], True),
        ([*launch(2, "cuLaunchKernelEx"), kernel("k", 0, 1, link=1), op("triton_poi", 1)], False),
    ],
)
def test_a_recording_that_has_lost_data_is_noticed(events: list[Event], *, is_whole: bool) -> None:
    """Kernels that were launched and are not there; ops that are not known, but for graphs."""
    assert device_work(events, 0).is_whole is is_whole


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("link", [3, 0], ids=["made in another op", "made outside of ops"])
def test_a_call_of_the_runtime_with_the_number_of_an_op_is_not_taken_for_it(
    link: int, *, reverse: bool
) -> None:
    """CUPTI and PyTorch count each for itself; whichever event comes first."""
    events = [
        op("aten::mm", 5, "c10::Half", "c10::Half", _start=10, _duration=30),
        call("cudaStreamIsCapturing", 5, link, _start=1),
        call("cudaLaunchKernel", 6, 5, _start=20),
        kernel("some_kernel", 30, 100, link=5, correlation=6),
    ]

    work = device_work(reversed(events) if reverse else events, 0)

    assert list(work.kernels) == [
        KernelLaunch("some_kernel", "aten::mm", ("c10::Half", "c10::Half"))
    ]
    assert work.is_whole


def test_where_pytorch_says_kinds_a_call_outside_of_ops_is_told_by_them() -> None:
    """Even where nothing says when the kernel was launched."""
    events = [
        EventOfAKind("cudaMemcpyAsync", correlation=5, kind="cuda_runtime"),
        EventOfAKind("aten::mm", correlation=5, kind="cpu_op"),
        kernel("some_kernel", 30, 100, link=5, correlation=6),
    ]

    assert [launch.op for launch in device_work(events, 0).kernels] == ["aten::mm"]


def test_of_two_that_may_be_the_op_neither_is_named() -> None:
    """Unknown is better than wrong, and counts as not linked."""
    events = [
        op("aten::mm", 5, "c10::Half"),
        call("cudaMemcpyAsync", 5),
        kernel("some_kernel", 30, 100, link=5, correlation=6),
    ]

    work = device_work(events, 0)

    assert list(work.kernels) == [KernelLaunch("some_kernel", "", ())]
    assert work.linked == 0


@pytest.mark.parametrize(
    "name",
    [
        "cudaLaunchKernelExC",
        "hipModuleLaunchKernel",
        "cudaLaunchCooperativeKernel",
    ],
)
def test_every_call_that_launches_a_kernel_counts(name: str) -> None:
    """A kernel that is missing is noticed by the call that launched it."""
    assert device_work(launch(3, name), 0).launches == 3


TRACES = ROOT.parent / "shared" / "traces"


def events_of_a_trace(name: str, *, says_kinds: bool) -> tuple[list[Event], Counter[str]]:
    """Return a Chrome trace as raw events, and how often its ops launched something."""
    with gzip.open(TRACES / f"{name}.json.gz", "rt", encoding="utf-8") as file:
        trace = json.load(file)["traceEvents"]
    found: list[Event] = []
    ops: dict[int, str] = {}
    links: list[int] = []
    for entry in trace:
        kind = entry.get("cat", "").lower().replace("operator", "cpu_op")
        arguments = {key.lower(): value for key, value in entry.get("args", {}).items()}
        number, link = arguments.get("correlation", 0), arguments.get("external id", 0)
        more: dict[str, Any] = {}
        if kind in ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"):
            links.append(link)
            more = {"device": "CUDA"}
        elif kind == "cpu_op":
            ops[link] = entry["name"]
            number, link = link, 0
        elif kind.removeprefix("cuda_") not in ("runtime", "driver"):
            continue
        # The thread of a call is that of its op in raw events; here all are of one.
        more |= {"kind": f"cuda_{kind}".replace("cuda_cuda", "cuda")} if says_kinds else {}
        event = (EventOfAKind if says_kinds else Event)(
            entry["name"],
            round(1000 * entry["ts"]),
            round(1000 * entry["dur"]),
            correlation=number,
            link=link,
            **more,
        )
        found.append(event)
    return found, Counter(ops.get(link, "") for link in links)


@pytest.mark.skipif(
    not TRACES.is_dir(), reason="the traces of real GPUs are not beside this repository"
)
@pytest.mark.parametrize("says_kinds", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        "a100-alexnet-tf32",
        "compile-triton",
        pytest.param("h100-bert-small-bf16", marks=pytest.mark.nightly),
        pytest.param("h100-vit-bf16", marks=pytest.mark.nightly),
        "mi300-bert-small-bf16",
        pytest.param("v100-resnet50-fp32", marks=pytest.mark.nightly),
    ],
)
def test_kernels_of_real_gpus_have_the_ops_that_their_traces_name(
    name: str, *, says_kinds: bool
) -> None:
    """In the trace a number of an op and one of a call have different names."""
    events, expected = events_of_a_trace(name, says_kinds=says_kinds)

    work = device_work(events, 0)

    found: Counter[str] = Counter()
    for launched, spent in work.kernels.items():
        found[launched.op] += spent.calls
    assert found == expected
    assert set(expected) - {""}
    assert work.runs >= work.launches > 0


def test_the_time_of_an_op_is_without_that_of_the_ops_it_calls() -> None:
    """On each thread by itself, whatever the order of the events."""
    events = [
        Event("aten::mm", 20, 50, inputs=("float",)),
        Event("aten::linear", 10, 100, inputs=("float",)),
        Event("aten::mm", 20, 60, inputs=("c10::Half",), thread=2),
        Event("aten::mm", 80, 10, inputs=("float",)),
        Event("aten::view", 80, 0),
        kernel("k", 0, 1000),
    ]

    work = cpu_work(call_tree(events))

    assert {key: (s.calls, s.nanoseconds) for key, s in work.items()} == {
        ("linear", ("float",)): (1, 100 - 50 - 10),
        ("mm", ("float",)): (2, 60),
        ("mm", ("c10::Half",)): (1, 60),
        ("view", ()): (1, 0),
    }


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("aten::mm", "mm"),
        ("fbgemm::f8f8bf16", "f8f8bf16"),
        ("Torch-Compiled Region: 0/0", "Torch-Compiled Region"),
        ("autograd::engine::evaluate_function: MmBackward0", ""),
        ("torch::autograd::AccumulateGrad", ""),
        ("Optimizer.step#SGD.step", ""),
        ("my annotation", ""),
        ("cudaLaunchKernel", ""),
    ],
)
def test_what_counts_as_an_op(name: str, expected: str) -> None:
    """Ops have a namespace; autograd's own events have, too."""
    assert op_name(name) == expected


def test_a_census_of_a_real_iteration_agrees_with_arithmetic() -> None:
    """Matmuls, casts and FLOPs of forward, backward and optimizer, the mean of two iterations."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def iterations() -> None:
        for _ in range(2):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = model(torch.ones(4, 8)).float().sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    nodes = call_tree(record(iterations).events)
    census = census_of(nodes, step=5, iterations=2, duration_s=0.5, device_type="cpu")

    matmuls = {
        (key.op, key.phase): (tally.calls, tally.flops, tally.tensor_flops)
        for key, tally in census.tallies.items()
        if key.kind is OpKind.MATMUL
    }
    first, second = 2 * 4 * 8 * 16, 2 * 4 * 16 * 3
    assert (census.step, census.source, census.duration_s) == (5, CensusSource.PROFILER, 0.25)
    # Three features are no multiple of eight. The first layer's input needs no gradient.
    assert matmuls == {
        ("addmm", Phase.FORWARD): (2, first + second, first),
        ("mm", Phase.BACKWARD): (3, first + 2 * second, first),
    }
    casts = {
        (key.dtype, key.out_dtype, key.phase): (tally.calls, tally.bytes)
        for key, tally in census.tallies.items()
        if key.kind is OpKind.CAST
    }
    weights = 8 * 16 + 16 + 16 * 3 + 3
    assert casts["float32", "bfloat16", Phase.FORWARD] == (5, (weights + 4 * 8) * 6)
    assert casts["bfloat16", "float32", Phase.BACKWARD] == (4, weights * 6)
    assert not [key for key in census.tallies if key.op in ("linear", "to", "t", "empty")]
