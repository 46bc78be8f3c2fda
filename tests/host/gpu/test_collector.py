"""When the GPUs are looked at, when they are opened anew, and what a driver that hangs does."""

from __future__ import annotations

import logging
from itertools import pairwise

import pytest

from ampwatch.host.fleet import Fleet
from ampwatch.host.fleet.gpus import Feature, Gpu, Pass, Reason
from ampwatch.host.gpu.collector import GpuCollector, Source
from ampwatch.settings import Settings
from ampwatch.wire.records import FactsRecord
from tests.workshop.clocks import Clock
from tests.workshop.records import identity


def gpu(uuid: str = "GPU-a", **changes: object) -> Gpu:
    return Gpu(0, uuid, {}, {Feature.POWER: {"": 300.0}}, **changes)


class Script(list):
    """A source that tells one thing after another, and the last one for ever."""

    def __init__(self, *passes: Pass | Exception) -> None:
        super().__init__(passes)
        self.num_closed = 0
        self.can_close = True

    def read(self) -> Pass:
        told = self.pop(0) if len(self) > 1 else self[0]
        if isinstance(told, Exception):
            raise told
        return told

    def close(self) -> bool:
        self.num_closed += self.can_close
        return self.can_close


class Bench:
    """A collector that is looked with by hand, under a clock that is set by hand."""

    def __init__(self, *opened: Source | Pass) -> None:
        self.clock = Clock()
        self.fleet = Fleet(Settings(), self.clock)
        self.opened = list(opened)
        self.num_opened = 0
        self.collector = GpuCollector(self.fleet, self._open, 5.0, self.clock)

    def _open(self) -> Source | Pass:
        self.num_opened += 1
        return self.opened.pop(0) if len(self.opened) > 1 else self.opened[0]

    def look(self, after: float = 0.0) -> None:
        self.clock.now += after
        self.collector.update()

    @property
    def success(self) -> bool:
        return self.fleet.passes["gpu"].success


@pytest.mark.parametrize(
    ("reason", "success"),
    [
        (Reason.LIBRARY_NOT_FOUND, True),
        (Reason.DRIVER_NOT_LOADED, True),
        (Reason.NO_PERMISSION, False),
        (Reason.VERSION_MISMATCH, False),
        (Reason.LIBRARY_UNUSABLE, False),
        (Reason.BINDING_NOT_FOUND, False),
    ],
)
def test_a_machine_without_a_driver_is_no_failure(reason: Reason, *, success: bool) -> None:
    """One whose driver does not let itself be asked is."""
    bench = Bench(Pass(reason))

    bench.look()

    assert (bench.fleet.gpus.newest.host, bench.success) == (reason, success)


def test_synthetic_gpus_are_never_opened_anew() -> None:
    """Their counters would begin at 0 again; that NVML is off is no failure."""
    source = Script(Pass(Reason.SWITCHED_OFF, [gpu("SYNTHETIC-0")]))
    bench = Bench(source)

    for _ in range(200):
        bench.look(5)

    assert (bench.num_opened, source.num_closed, bench.success) == (1, 0, True)


def test_a_driver_that_is_loaded_later_is_found() -> None:
    """It is looked for once a minute, not at every look."""
    bench = Bench(Pass(Reason.LIBRARY_NOT_FOUND), Script(Pass(Reason.OK, [gpu()])))

    for _ in range(13):
        bench.look(4.9)
    before = bench.num_opened
    bench.look(4.9)

    assert (before, bench.num_opened) == (1, 2)
    assert [g.uuid for g in bench.fleet.gpus.all()] == ["GPU-a"]


def test_a_gpu_that_went_and_came_back_is_read_again() -> None:
    """NVML is opened anew for it, after 10 s, and the old one was closed before."""
    both = Pass(Reason.OK, [gpu("GPU-a"), gpu("GPU-b")])
    lost = Pass(Reason.OK, [gpu("GPU-a"), Gpu(1, "GPU-b", {}, gone=Reason.GPU_LOST)])
    first = Script(both, lost)
    bench = Bench(first, Script(both))

    bench.look()
    bench.look(5)
    down = [g.uuid for g in bench.fleet.gpus.all() if not g.is_up]
    failed = bench.success
    bench.look(5)
    closed_early = first.num_closed
    bench.look(5)

    assert (down, failed, closed_early, first.num_closed) == (["GPU-b"], False, 0, 1)
    assert (bench.success, bench.num_opened) == (True, 2)
    assert all(g.is_up for g in bench.fleet.gpus.all())


def test_a_gpu_that_stays_away_is_searched_for_ever_less_often() -> None:
    """After 10 s, 20 s, 40 s ... 10 min: the others lose a value of GPM each time."""
    gone = Script(Pass(Reason.OK, [Gpu(0, "GPU-a", {}, gone=Reason.GPU_LOST)]))
    bench = Bench(gone)
    opened_at = []

    for second in range(0, 4000, 5):
        before = bench.num_opened
        bench.look(5)
        if bench.num_opened > before:
            opened_at.append(second)

    waits = [b - a for a, b in pairwise(opened_at)]
    assert waits == [10, 20, 40, 80, 160, 320, 600, 600, 600, 600, 600][: len(waits)]
    assert len(waits) >= 10


def test_nvml_is_not_opened_again_while_it_cannot_be_closed() -> None:
    """A thread that hangs in it would be left in a library that was shut down."""
    source = Script(Pass(Reason.ERROR, [gpu()]))
    source.can_close = False
    bench = Bench(source)

    for _ in range(20):
        bench.look(5)

    assert bench.num_opened == 1


def test_an_exception_is_a_look_that_failed(caplog: pytest.LogCaptureFixture) -> None:
    """The thread goes on, and the next look may do better."""
    bench = Bench(Script(RuntimeError("impossible"), Pass(Reason.OK, [gpu()])))

    bench.look()
    failed = (bench.fleet.gpus.newest.host, bench.success)
    bench.look(5)

    assert failed == (Reason.ERROR, False)
    assert bench.success
    assert "impossible" in caplog.text


def test_values_are_taken_back_while_a_look_hangs() -> None:
    """After a minute nobody knows whether they still hold; the next look that ends brings them."""
    bench = Bench(Script(Pass(Reason.OK, [gpu()])))
    bench.look()

    bench.clock.now += 59
    bench.collector.check()
    before = bench.success
    bench.clock.now += 2
    bench.collector.check()
    (hung,) = bench.fleet.gpus.all()

    assert (before, bench.success) == (True, False)
    assert bench.fleet.gpus.newest == Pass(Reason.TIMEOUT)
    assert (hung.gone, hung.answers) == (Reason.TIMEOUT, {})
    assert bench.fleet.passes["gpu"].duration_seconds == 61
    bench.look()
    assert bench.success


def test_a_change_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """A GPU that goes is a warning; so is one that NVML itself says nothing about."""
    caplog.set_level(logging.INFO)
    lost = Pass(Reason.OK, [Gpu(0, "GPU-a", {}, gone=Reason.GPU_LOST)])
    fine = Pass(Reason.OK, [gpu()])
    bench = Bench(Script(fine, lost, lost, fine))

    for _ in range(5):
        bench.look(1)

    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert said == [
        ("INFO", "NVML: it is read"),
        ("WARNING", "GPU-a: the GPU has fallen off the bus or cannot be reached"),
        ("INFO", "GPU-a is back"),
    ]


def test_a_gpu_of_a_rank_that_nvml_does_not_show_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A daemon in a container of its own that was given other GPUs than the training."""
    bench = Bench(Script(Pass(Reason.OK, [gpu("GPU-a")])))
    facts = FactsRecord({"gpu_uuid": "GPU-b"})
    bench.fleet.apply("/a.ring", identity(), [facts], alive=True, lost=0, dropped=0)

    for _ in range(3):
        bench.look(5)

    assert [record.getMessage() for record in caplog.records] == [
        "GPU-b: a training computes on it, and NVML does not show it here"
    ]
    assert bench.success


def test_why_nvml_cannot_be_opened_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """With what is known of it, and again only when that is something else."""
    failing = [Pass(Reason.VERSION_MISMATCH, detail=detail) for detail in ("535", "535", "550")]
    bench = Bench(*failing)

    for _ in range(4):
        bench.look(60)

    said = [record.getMessage() for record in caplog.records]
    assert [line.rpartition(": ")[2] for line in said] == ["535", "550"]
