"""Questions about devices, on a machine that has none."""

from __future__ import annotations

import mmap
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import ampwatch
from ampwatch.training import devices
from ampwatch.training.hooks.compiling import is_traced
from ampwatch.training.hooks.events import DevicesKnown
from ampwatch.training.hooks.places import graphs
from ampwatch.training.model.home import Home


class Graph:
    """A graph of an accelerator, which is captured by two calls."""

    is_broken = False

    def capture_begin(self) -> None:
        if self.is_broken:
            msg = "operation not permitted when stream is capturing"
            raise RuntimeError(msg)

    def capture_end(self) -> None:
        self.capture_begin()


@pytest.fixture
def graph(monkeypatch: pytest.MonkeyPatch) -> Graph:
    """A graph of a class that is listened to."""
    monkeypatch.setattr(graphs, "graph_classes", lambda: (Graph,))
    return Graph()


def watched(**settings: Any) -> ampwatch.Monitor:
    return ampwatch.monitor(nn.Linear(1, 1), serve=False, **settings)


@pytest.mark.rotating
@pytest.mark.parametrize("level", ["light", "standard", "deep"])
def test_a_capture_lasts_from_its_beginning_to_its_end(graph: Graph, level: str) -> None:
    """In whichever thread: a question to an event, of any, would end it. Nobody listens after."""
    own = vars(Graph)["capture_begin"], vars(Graph)["capture_end"]
    seen = [devices.is_capturing()]
    with watched(level=level):
        for call in (graph.capture_begin, graph.capture_end):
            thread = threading.Thread(target=call)
            thread.start()
            thread.join()
            seen.append(devices.is_capturing())

    assert seen == [False, True, False]
    assert (vars(Graph)["capture_begin"], vars(Graph)["capture_end"]) == own


def test_a_capture_that_fails_is_over(graph: Graph) -> None:
    """At its beginning and at its end, and when its graph is freed."""
    with watched():
        graph.is_broken = True
        with pytest.raises(RuntimeError, match="not permitted"):
            graph.capture_begin()
        begun = devices.is_capturing()
        graph.is_broken = False
        graph.capture_begin()
        graph.is_broken = True
        with pytest.raises(RuntimeError, match="not permitted"):
            graph.capture_end()
        ended = devices.is_capturing()
        another = Graph()
        another.capture_begin()
        del another

        assert (begun, ended, devices.is_capturing()) == (False, False, False)


def test_a_capture_whose_end_nobody_hears_makes_no_later_monitor_deaf(graph: Graph) -> None:
    """As long as another monitor listens it goes on."""
    first, second = watched(), watched()
    graph.capture_begin()
    first.close()
    meanwhile = devices.is_capturing()
    second.close()

    assert meanwhile
    with watched():
        assert not devices.is_capturing()


def test_what_is_captured_counts_as_written_down(graph: Graph) -> None:
    """As what is traced or compiled does."""
    with watched():
        before = is_traced()
        graph.capture_begin()

        assert (before, is_traced()) == (False, True)
        assert not devices.Link().may_ask((torch.device("cuda", 0),))
        assert devices.Link().may_ask(())


@pytest.mark.rotating
@pytest.mark.parametrize("level", ["light", "deep"])
def test_steps_that_are_captured_are_no_iterations(graph: Graph, level: str) -> None:
    """Nothing is done in a capture; what follows it counts again."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    def step() -> None:
        scaler.scale(model(torch.ones(2, 4)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    with ampwatch.monitor(model, scaler, level=level, serve=False) as watch:
        step()
        graph.capture_begin()
        step()
        step()
        graph.capture_end()
        step()
        last = watch.last_step

    assert last.step == 1
    assert "switched off" not in watch.report()


@pytest.mark.parametrize(
    ("device_type", "words"),
    [
        ("cpu", ""),
        ("cuda", ""),
        ("xpu", "kernels on xpu are not recorded"),
        ("mps", "values on mps are not read"),
        ("hpu", "values on hpu are not read"),
    ],
)
def test_what_a_backend_lacks_is_said(device_type: str, words: str) -> None:
    """By its type alone."""
    said = devices.limitation(device_type)

    assert said.startswith(words)
    assert bool(said) is bool(words)


def test_a_model_on_a_backend_without_events_is_watched_for_its_steps_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Steps are counted, nothing is measured or pinned, and the report says why."""
    model = nn.Linear(2, 2)
    # Its values are on the host, so that it can be trained here.
    monkeypatch.setattr(Home, "update", _on_mps)
    with ampwatch.monitor(model, serve=False) as watch:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    report = " ".join(watch.report().split())

    assert watch.last_step.step == 2
    assert "values on mps are not read" in report
    assert "switched off" not in report


def _on_mps(home: Home) -> bool:
    home.device = torch.device("mps")
    home.devices = (home.device,)
    return False


def test_memory_that_cannot_be_pinned_costs_values_and_not_the_count_of_steps(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """There is no accelerator here, for which PyTorch would pin any."""
    monkeypatch.setattr(devices.Link, "reads_in_place", False)
    model = nn.Linear(2, 2)
    with ampwatch.monitor(model, serve=False, level="deep") as watch:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        watch._session.bus.emit(DevicesKnown(has_accelerator=True))
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    report = " ".join(watch.report().split())

    assert watch.last_step.step == 2
    assert "switched off" not in report
    assert "values of devices are not read: no memory could be pinned" in report
    said = [r.getMessage() for r in caplog.records if "values of devices" in r.getMessage()]
    assert len(said) == 1


def test_on_a_cpu_the_kernel_is_there_before_the_first_step() -> None:
    """Compiling it takes a fifth of a second."""
    with watched() as watch:
        assert list(watch._session._context.measuring._kernels) == [torch.device("cpu")]


def test_autocast_keys_are_those_of_the_dispatcher() -> None:
    """A backend from outside has that of PrivateUse1, whatever its name."""
    keys = [str(devices.autocast_key(name)) for name in ("cpu", "cuda", "xpu", "mine")]

    assert [key.rpartition(".")[2] for key in keys] == [
        "AutocastCPU",
        "AutocastCUDA",
        "AutocastXPU",
        "AutocastPrivateUse1",
    ]


def test_the_classes_of_graphs_are_found_by_what_they_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's own, and those of a backend from outside; what only has the name is left alone."""

    class OtherGraph:
        pass

    backend = SimpleNamespace(MineGraph=Graph, OtherGraph=OtherGraph, Stream=Graph)
    monkeypatch.setattr(torch, "mine", backend, raising=False)
    monkeypatch.setattr(devices, "accelerators", lambda: ("cuda", "mine"))
    kinds = devices.graph_classes()

    assert torch.cuda.CUDAGraph in kinds
    assert Graph in kinds
    assert OtherGraph not in kinds


def test_what_the_host_says_of_the_process_is_what_it_takes() -> None:
    """256 MiB that are written to are in the resident set, and in the peak."""
    size = 2**28
    before = devices.host_memory()
    # Pages that this process has not had before, whatever it lets go of meanwhile.
    with mmap.mmap(-1, size) as held:
        held[:: mmap.PAGESIZE] = bytes(size // mmap.PAGESIZE)
        after = devices.host_memory()

    assert before is not None
    assert after is not None
    assert size / 2 < after.allocated - before.allocated < 2 * size
    assert after.peak >= after.allocated
    assert after.reserved == after.allocations == -1
    assert size < devices.host_memory_limit()


def test_a_host_that_says_its_peak_alone_is_read_by_that(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As macOS does; and one that says nothing is not read."""
    monkeypatch.setattr(devices, "STATM", tmp_path / "none")
    known = devices.host_memory()
    monkeypatch.setattr(devices, "resource", None)

    assert known is not None
    assert known.allocated == known.peak > 2**20
    assert devices.host_memory() is None


@pytest.mark.parametrize(("said", "limit"), [("1073741824\n", 2**30), ("max\n", None), ("", None)])
def test_the_limit_of_a_container_is_that_of_its_process(
    said: str, limit: int | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where it has none, that of the machine."""
    path = tmp_path / "memory.max"
    path.write_text(said)
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    monkeypatch.setattr(devices, "CGROUP_LIMITS", (path,))

    assert devices.host_memory_limit() == (limit or machine)


class Backend:
    """The module of a backend that counts, as ``torch.cuda`` has it."""

    @staticmethod
    def memory_allocated(_device: Any) -> int:
        return 7

    @staticmethod
    def max_memory_allocated(_device: Any) -> int:
        return 9

    @staticmethod
    def memory_reserved(_device: Any) -> int:
        return 12

    @staticmethod
    def get_device_properties(_device: Any) -> Any:
        return SimpleNamespace(total_memory=80)


class NestedBackend(Backend):
    """One that has all counters in one call."""

    @staticmethod
    def memory_stats_as_nested_dict(_device: Any) -> Any:
        allocated = {"current": 70, "peak": 90, "allocated": 500, "freed": 430}
        return {
            "allocated_bytes": {"all": allocated},
            "reserved_bytes": {"all": {"current": 120, "peak": 120}},
            "allocation": {"all": {"current": 3, "peak": 5}},
        }


@pytest.mark.parametrize(
    ("backend", "expected"),
    [
        (Backend, devices.MemoryUse(7, 9, 12)),
        (NestedBackend, devices.MemoryUse(70, 90, 120, 3)),
        (SimpleNamespace(), None),
    ],
)
def test_memory_of_a_backend_is_what_it_counts(
    backend: Any, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_device_module", lambda _device: backend)

    assert devices.memory_of(torch.device("cuda")) == expected
