"""The daemon of a training: noticed when it dies, brought back, left alone where it was to end."""

from __future__ import annotations

import os
import signal
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

import ampwatch
from ampwatch.errors import DaemonError
from ampwatch.settings import Settings
from ampwatch.training import daemon_link
from ampwatch.training.daemon_link import CHECK_SECONDS, MAX_RETRY_SECONDS, DaemonLink
from ampwatch.training.launcher import START_SECONDS, DaemonStatus
from ampwatch.wire.rendezvous.lock import DaemonInfo, DaemonLock
from ampwatch.wire.rendezvous.token import ensure_token
from tests.host.daemon.parts import Place, ask, eventually
from tests.workshop.clocks import Clock

INFO = DaemonInfo(7, "http", "127.0.0.1", 10917, "0.1.0", 1, ("/rings",), auto=True)
NEXT = replace(INFO, pid=8, port=10918)


def children() -> set[str]:
    """Return the processes that this one has begun and not let go of, zombies too."""
    threads = Path("/proc/self/task").iterdir()
    return {pid for thread in threads for pid in (thread / "children").read_text().split()}


class Helper:
    """A process that begins to start a daemon, as far as a link sees it."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.is_reaped = False
        self.was_killed = False
        self.lock: DaemonLock | None = None
        self.is_in_a_system_call = False

    def poll(self) -> int | None:
        self.is_reaped = self.status is not None
        return self.status

    def wait(self, timeout: float | None = None) -> int:
        if self.status is None:
            raise subprocess.TimeoutExpired([], timeout or 0.0)
        self.is_reaped = True
        return self.status

    def kill(self) -> None:
        self.was_killed = True
        if self.is_in_a_system_call:
            return
        self.status = -9
        if self.lock is not None:
            self.lock.let_go()
            self.lock = None


class Scene:
    """A link to a daemon whose lock this test holds."""

    def __init__(self, place: Path, info: DaemonInfo = INFO) -> None:
        self.runtime = place / "runtime"
        self.clock = Clock(0.0)
        self.helpers: list[Helper] = []
        self.said: list[str] = []
        self.refusal: Exception | None = None
        self.lock = DaemonLock.take(self.runtime)
        self.lock.publish(info)
        self.link = DaemonLink(
            Settings.resolve(),
            DaemonStatus(info.url, "running", info=info),
            lambda _url, sentence: self.said.append(sentence),
            clock=self.clock,
            start=self._start,  # type: ignore[arg-type] # a stand-in
        )

    def _start(self, _: Settings) -> Helper:
        if self.refusal is not None:
            raise self.refusal
        self.helpers.append(Helper())
        return self.helpers[-1]

    def serve(self, info: DaemonInfo) -> None:
        """Another daemon takes the lock."""
        self.lock = DaemonLock.take(self.runtime)
        self.lock.publish(info)

    def due(self, seconds: float = 3600.0) -> None:
        """Look each time it is due, as the training does, for a while."""
        end = self.clock.now + seconds
        while self.link.due_s <= end:
            self.clock.now = self.link.due_s
            self.link.check()
        self.clock.now = end


@pytest.fixture
def scene(own_places: Path) -> Scene:
    return Scene(own_places)


def test_a_daemon_that_lives_is_looked_at_now_and_then_and_nothing_is_said(
    scene: Scene,
) -> None:
    """Each look is some time after the one before."""
    scene.due(10 * CHECK_SECONDS)

    assert scene.link.url == INFO.url
    assert (scene.helpers, scene.said) == ([], [])
    assert scene.link.due_s == 11 * CHECK_SECONDS


def test_a_daemon_that_died_is_replaced_and_its_address_is_true(scene: Scene) -> None:
    """One process is begun, and reaped; it is said once, with the new address."""
    scene.lock.let_go()
    scene.due(CHECK_SECONDS)
    between = scene.link.url
    scene.due(2.0)
    scene.serve(NEXT)
    (helper,) = scene.helpers
    helper.status = 0
    scene.due(60.0)

    assert (between, scene.link.url) == ("", NEXT.url)
    assert helper.is_reaped
    assert scene.said == [f"the daemon had ended; another one runs, and this run is at {NEXT.url}"]


def test_a_daemon_that_somebody_else_brings_back_is_found(scene: Scene) -> None:
    """Another rank holds the lock already, so that there is nothing to do."""
    scene.lock.let_go()
    scene.lock = DaemonLock.take(scene.runtime)
    scene.due(CHECK_SECONDS)
    between = scene.link.url
    scene.lock.publish(NEXT)
    scene.due(2.0)

    assert (between, scene.link.url) == ("", NEXT.url)
    assert scene.helpers == []


@pytest.mark.parametrize(
    "ends",
    [
        pytest.param(lambda s: s.lock.resign(), id="was to end"),
        pytest.param(lambda s: s.lock.let_go(), id="by hand"),
    ],
)
def test_a_daemon_that_was_to_end_or_is_somebody_elses_is_not_brought_back(
    own_places: Path, ends: object, request: pytest.FixtureRequest
) -> None:
    """It is said once; one that is started later is found."""
    by_hand = "by hand" in request.node.name
    scene = Scene(own_places, replace(INFO, auto=not by_hand))
    ends(scene)  # type: ignore[operator]
    scene.due()
    without = scene.link.url
    said = list(scene.said)
    scene.serve(NEXT)
    scene.due(CHECK_SECONDS)

    assert (without, scene.link.url, scene.helpers) == ("", NEXT.url, [])
    assert len(said) == 1
    assert "`ampwatch daemon` starts one" in said[0]


def test_a_daemon_that_cannot_start_is_tried_less_and_less_and_said_once(scene: Scene) -> None:
    """Each process is reaped; when it can at last, all is well."""
    scene.lock.let_go()
    tries = []
    for _ in range(1000):
        scene.due(CHECK_SECONDS)
        for helper in scene.helpers[len(tries) :]:
            helper.status = 1
            tries.append(scene.clock.now)
    waits = [later - sooner for sooner, later in pairwise(tries)]
    last = scene.helpers[-1]

    assert waits[0] <= 60.0
    assert sorted(waits) == waits
    assert waits[-1] <= MAX_RETRY_SECONDS + 2 * CHECK_SECONDS
    assert len(tries) < 20
    assert all(helper.is_reaped for helper in scene.helpers[:-1])
    assert last.status == 1
    assert len(scene.said) == 1
    assert "could not be started: see " in scene.said[0]


@pytest.mark.parametrize("error", [DaemonError("no room"), OSError(24, "Too many open files")])
def test_a_process_that_cannot_be_begun_is_one_that_has_failed(
    scene: Scene, error: Exception
) -> None:
    """It is said with the reason, and tried again when it is time."""
    scene.lock.let_go()
    scene.refusal = error
    scene.due(2 * CHECK_SECONDS)
    scene.refusal = None
    scene.due(60.0)

    assert str(error) in scene.said[0]
    assert len(scene.said) == len(scene.helpers) == 1


def test_a_process_that_hangs_with_the_lock_is_one_that_has_failed(scene: Scene) -> None:
    """It was handed the lock, which is free once it has ended; it is said, and tried again later."""
    scene.lock.let_go()
    scene.due(CHECK_SECONDS)
    (helper,) = scene.helpers
    helper.lock = DaemonLock.take(scene.runtime)
    scene.due(START_SECONDS + CHECK_SECONDS)

    assert helper.was_killed
    assert helper.is_reaped
    assert len(scene.helpers) == len(scene.said) == 1


def test_a_process_that_no_signal_ends_is_not_waited_for(scene: Scene) -> None:
    """Neither by a step nor by the end of the training: its file system may be gone."""
    scene.lock.let_go()
    scene.due(CHECK_SECONDS)
    (helper,) = scene.helpers
    helper.is_in_a_system_call = True
    scene.due()
    scene.link.close()

    assert helper.was_killed
    assert len(scene.helpers) == 1


def test_a_lock_file_that_is_gone_says_nothing_of_the_daemon(scene: Scene) -> None:
    """Who tidies a directory for temporary files has not ended it."""
    (scene.runtime / "daemon.lock").unlink()
    scene.due()

    assert (scene.link.url, scene.helpers, scene.said) == (INFO.url, [], [])


@pytest.mark.parametrize("status", [0, None])
def test_the_end_of_the_training_leaves_no_process(scene: Scene, status: int | None) -> None:
    """One that is starting a daemon is waited for, or ended."""
    scene.lock.let_go()
    scene.due(CHECK_SECONDS)
    (helper,) = scene.helpers
    helper.status = status
    scene.link.close()
    scene.due()

    assert helper.is_reaped
    assert helper.was_killed == (status is None)
    assert len(scene.helpers) == 1


def test_the_daemon_of_the_machine_is_its_services_to_look_after(own_places: Path) -> None:
    """It has no lock of this user's."""
    status = DaemonStatus("http://127.0.0.1:10917/", "running")
    link = DaemonLink(Settings.resolve(), status, lambda *_: None)
    link.check()

    assert (link.url, link.due_s) == (status.url, float("inf"))


@pytest.mark.nightly
def test_a_daemon_that_is_killed_under_a_training_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A real one, by SIGKILL: the run is shown from its first step on, at the address it says."""
    place = Place(tmp_path)
    monkeypatch.setenv("AMPWATCH_POLL_SECONDS", "0.05")
    monkeypatch.setattr(daemon_link, "CHECK_SECONDS", 0.2)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    steps = 0

    def step() -> None:
        nonlocal steps
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        steps += 1

    def is_complete() -> bool:
        bearer = f"Bearer {ensure_token(place.runtime)}"
        text = ask((info.host, info.port), "/metrics", Authorization=bearer).text
        return f'ampwatch_steps_total{{rank="0",run="again"}} {steps}.0' in text

    had = children()
    with ampwatch.monitor(model, optimizer=optimizer, run="again", level="light") as watch:
        before = place.info()
        for _ in range(20):
            step()
        os.kill(before.pid, signal.SIGKILL)
        eventually(lambda: step() or ((i := place.info()) and i.pid != before.pid), "a daemon")
        info = place.info()
        eventually(lambda: step() or len(caplog.messages) > 0, "a word about it")
        eventually(is_complete, "all steps")

        assert watch.url == info.url
        assert caplog.messages == [
            f"the daemon had ended; another one runs, and this run is at {info.url}"
        ]
    assert children() == had
    os.kill(info.pid, signal.SIGTERM)
    eventually(lambda: place.info() is None, "the end of the daemon")
