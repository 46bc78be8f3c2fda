"""Results of the doctor about the daemon."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from ampwatch import __version__
from ampwatch.doctor.check import Check, State
from ampwatch.doctor.daemon import daemon
from ampwatch.settings import Settings
from ampwatch.wire.rendezvous.lock import DaemonInfo, DaemonLock
from ampwatch.wire.rendezvous.probe import Answer
from ampwatch.wire.ring.layout import LAYOUT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PORT = 10917
URL = f"http://127.0.0.1:{PORT}/"
NOBODY = Answer(URL, taken=False)


def ours(**changed: Any) -> Answer:
    told: dict[str, Any] = {
        "scope": "user",
        "uid": os.geteuid(),
        "version": __version__,
        "layout": LAYOUT,
    }
    return Answer(URL, taken=True, service="ampwatch", **(told | changed))


def examined(answer: Answer, **settings: Any) -> dict[str, Check]:
    """The checks by name, where everybody who is asked gives this answer."""
    settings = {"port": PORT} | settings
    checks = daemon(Settings.resolve(settings), _answering(answer))
    return {check.name: check for check in checks}


def _answering(answer: Answer) -> Callable[[str, int], Answer]:
    return lambda _host, _port: answer


def test_no_daemon_is_nothing_wrong(tmp_path: Path) -> None:
    """The first run starts one; looking for it creates nothing."""
    found = examined(NOBODY, runtime_dir=tmp_path / "new")

    assert found["daemon"].state is State.ABSENT
    assert "starts one" in found["daemon"].why
    assert found["port"].why == f"127.0.0.1:{PORT} is free"
    assert found["lock"].why.endswith("is free")
    assert found["runtime directory"].state is State.OK
    assert not (tmp_path / "new").exists()


def test_a_running_daemon_is_reported_with_its_address_and_version() -> None:
    """The port is the daemon's own."""
    found = examined(ours())

    assert found["daemon"].state is State.OK
    assert f"ampwatch {__version__}" in found["daemon"].why
    assert URL in found["daemon"].why
    assert "is the daemon's" in found["port"].why


def test_the_daemon_of_another_port_is_found_by_its_lock(tmp_path: Path) -> None:
    """A run with port 0 has one somewhere."""
    asked = []

    def ask(host: str, port: int) -> Answer:
        asked.append(port)
        return ours()

    lock = DaemonLock.take(tmp_path)
    assert lock is not None
    lock.publish(DaemonInfo(os.getpid(), "http", "127.0.0.1", 4321, __version__, LAYOUT))

    checks = daemon(Settings.resolve({"port": 0, "runtime_dir": tmp_path}), ask)

    lock.release()
    assert asked == [4321]
    assert [check.state for check in checks] == [State.OK] * 4
    assert checks[3].why.endswith("is held by the daemon")


def test_a_held_lock_without_a_daemon_is_a_problem(tmp_path: Path) -> None:
    """It is starting, or it hangs; the log says which."""
    lock = DaemonLock.take(tmp_path)
    assert lock is not None

    held = examined(NOBODY, runtime_dir=tmp_path)["lock"]
    lock.release()
    free = examined(NOBODY, runtime_dir=tmp_path)["lock"]

    assert (held.state, free.state) == (State.PROBLEM, State.OK)
    assert "daemon.log" in held.remedy


def test_looking_at_the_lock_does_not_take_it(tmp_path: Path) -> None:
    """A daemon can start right after."""
    first = DaemonLock.take(tmp_path)
    assert first is not None
    first.release()

    examined(NOBODY, runtime_dir=tmp_path)

    second = DaemonLock.take(tmp_path)
    assert second is not None
    second.release()


@pytest.mark.parametrize(
    "answer",
    [
        Answer(URL, taken=True, holder="pid 7 (nginx) of uid 33"),
        Answer(URL, taken=True, uid=os.geteuid() + 1, why_not="it does not know the token"),
    ],
)
def test_a_port_that_is_taken_is_a_problem(answer: Answer) -> None:
    """By another program, or by one that says it is the daemon and is not believed."""
    found = examined(answer)

    assert found["daemon"].state is State.ABSENT
    assert found["port"].state is State.PROBLEM
    assert str(answer) in found["port"].why
    assert "AMPWATCH_PORT" in found["port"].remedy


def test_a_daemon_for_the_whole_machine_serves_every_user() -> None:
    """Whoever it runs as."""
    assert examined(ours(scope="machine", uid=os.geteuid() + 1))["daemon"].state is State.OK


def test_a_daemon_that_cannot_read_our_rings_is_a_problem() -> None:
    """Of another layout; another version alone is only told."""
    unreadable = examined(ours(version="9.0", layout=LAYOUT + 1))["daemon"]
    readable = examined(ours(version="9.0"))["daemon"]
    secretive = examined(ours(version="", layout=-1))["daemon"]

    assert unreadable.state is State.PROBLEM
    reads = f"but reads ring layout {LAYOUT + 1} where this version writes {LAYOUT}"
    assert reads in unreadable.why
    assert unreadable.remedy == "end it, the next run starts one that can"
    assert (readable.state, secretive.state) == (State.OK, State.OK)
    assert readable.why.endswith(f"this is ampwatch {__version__}")


def test_a_runtime_directory_that_cannot_be_used_is_a_problem(tmp_path: Path) -> None:
    """No lock, no daemon."""
    (tmp_path / "file").write_text("")

    check = examined(NOBODY, runtime_dir=tmp_path / "file")["runtime directory"]

    assert check.state is State.PROBLEM
    assert "AMPWATCH_RUNTIME_DIR" in check.remedy
