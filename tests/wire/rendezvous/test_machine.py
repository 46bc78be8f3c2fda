"""Which daemon is found: by a lock that only its user, root or the service can hold; and who holds a port."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from ampwatch import runtime
from ampwatch.errors import DaemonError
from ampwatch.runtime import announcement_path, service_uid
from ampwatch.settings import Settings
from ampwatch.wire.rendezvous import machine
from ampwatch.wire.rendezvous.lock import DaemonInfo, DaemonLock, encoded
from ampwatch.wire.rendezvous.machine import Announcement, Found, find_daemon
from ampwatch.wire.rendezvous.port_owner import PortOwner, port_owner

NOBODY = 65534
ROOT = Path(__file__).parents[3]
USERS = DaemonInfo(7, "http", "127.0.0.1", 10917, "0.1", 1)
MACHINES = replace(USERS, scope="machine")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has a second user to be")

AS_ANOTHER_USER = """
import encodings.idna, os, sys  # all that its user may not read later
from ampwatch.settings import Settings
from ampwatch.wire.rendezvous.lock import DaemonInfo
from ampwatch.wire.rendezvous.machine import Announcement, announcement_path, find_daemon
os.setgroups([]); os.setgid(65534); os.setuid(65534)
rings = sys.argv[1]
if sys.argv[2] == "announce":
    Announcement(announcement_path(rings), DaemonInfo(1, "http", "h", 1, "9", 9, scope="machine"))
else:
    print(find_daemon(Settings(ring_dir=rings, runtime_dir=rings + "/none")).info.scope)
print("done", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    """Of a place where rings are, as open to everybody as ``/dev/shm``."""
    with tempfile.TemporaryDirectory() as place:
        rings = Path(place) / "shared"
        rings.mkdir()
        rings.chmod(0o1777)
        rings.parent.chmod(0o755)
        yield Settings(ring_dir=str(rings), runtime_dir=str(tmp_path / "mine"))


@pytest.fixture
def announced(settings: Settings) -> Iterator[Path]:
    """The announcement of a daemon of the machine."""
    path = announcement_path(settings.ring_dir)
    announcement = Announcement(path, MACHINES)
    yield path
    announcement.retract()


def another_user(rings: str, act: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", AS_ANOTHER_USER, rings, act],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def beside(settings: Settings) -> Found | None:
    """What another process of this user finds: locks of one process do not stop itself."""
    program = "import sys; from ampwatch.settings import Settings; from ampwatch.wire.rendezvous.machine import find_daemon; found = find_daemon(Settings(ring_dir=sys.argv[1], runtime_dir=sys.argv[2])); print('' if found is None else found.info.scope, end='')"
    said = subprocess.check_output(
        [sys.executable, "-c", program, settings.ring_dir, settings.runtime_dir],
        cwd=ROOT,
        text=True,
    )
    return Found(MACHINES, None) if said == "machine" else None


def test_the_daemon_of_this_user_is_found_before_that_of_the_machine(
    settings: Settings, announced: Path
) -> None:
    """By the lock in the directory that nobody else can enter."""
    directory = Path(settings.runtime_dir)
    directory.mkdir(mode=0o700)
    lock = DaemonLock.take(directory)
    lock.publish(USERS)
    found = find_daemon(settings)
    lock.release()

    assert announced.exists()
    assert found == (USERS, directory)


@needs_root
def test_every_user_finds_the_daemon_of_the_machine(settings: Settings, announced: Path) -> None:
    """Root's, in a file that everybody can read and nobody else can write to."""
    with another_user(settings.ring_dir, "find") as process:
        said = process.communicate("")[0]

    assert said.split() == ["machine", "done"]
    assert announced.stat().st_mode & 0o777 == 0o644


@needs_root
def test_another_users_announcement_is_not_believed_whatever_it_says(settings: Settings) -> None:
    """Nor does it keep root's daemon from being found."""
    with another_user(settings.ring_dir, "announce") as process:
        assert process.stdout.readline() == "done\n"
        path = announcement_path(settings.ring_dir)
        assert path.stat().st_uid == NOBODY
        assert find_daemon(settings) is None
        announcement = Announcement(path, MACHINES)
        assert path.stat().st_uid == 0
        assert beside(settings) == (MACHINES, None)
        announcement.retract()
        process.kill()


@needs_root
def test_the_user_of_the_service_serves_the_machine(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not root: root has made its runtime directory, and nobody else could."""
    monkeypatch.setattr(machine, "service_uid", lambda: NOBODY)
    with another_user(settings.ring_dir, "announce") as process:
        assert process.stdout.readline() == "done\n"
        found = find_daemon(settings)
        process.kill()

    assert found is not None
    assert (found.info.version, found.directory) == ("9", None)


@needs_root
@pytest.mark.parametrize(
    ("parent", "child", "expected"),
    [(0o755, 0o700, NOBODY), (0o1777, 0o700, None), (0o755, 0o755, None)],
)
def test_the_user_of_the_service_is_who_owns_its_directory_if_only_root_could_make_that(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    parent: int,
    child: int,
    expected: int | None,
) -> None:
    """In a directory that all may write to, anybody makes one of that name."""
    place = tmp_path / "run" / "ampwatch"
    monkeypatch.setattr(runtime, "SERVICE_RUNTIME", place)
    assert service_uid() is None

    place.mkdir(parents=True)
    place.chmod(child)
    os.chown(place, NOBODY, NOBODY)
    place.parent.chmod(parent)

    assert service_uid() == expected


@pytest.mark.parametrize("left", ["killed", "open to all", "link", "pipe", "nothing"])
def test_what_no_daemon_holds_is_no_announcement(settings: Settings, left: str) -> None:
    """Neither what a daemon that was killed has left, nor what anybody could have written."""
    path = announcement_path(settings.ring_dir)
    if left == "link":
        path.symlink_to(path.with_name("elsewhere"))
        path.with_name("elsewhere").write_bytes(encoded(MACHINES))
    elif left == "pipe":
        os.mkfifo(path)
    elif left != "nothing":
        path.write_bytes(encoded(MACHINES))
        path.chmod(0o666 if left == "open to all" else 0o644)
    # Whoever wrote what all can write to, or what a link leads to, may hold its lock as well.
    with ExitStack() as held:
        if left in {"open to all", "link"}:
            file = held.enter_context(path.open("r+"))
            fcntl.lockf(file, fcntl.LOCK_EX)

        assert beside(settings) is None


def test_of_two_daemons_the_newer_one_is_announced_and_the_older_one_takes_nothing_away(
    settings: Settings,
) -> None:
    """As where a service is started beside one that somebody has started by hand."""
    path = announcement_path(settings.ring_dir)
    first = Announcement(path, USERS)
    second = Announcement(path, MACHINES)
    first.retract()

    assert path.read_bytes() == encoded(MACHINES)
    second.retract()
    assert not path.exists()


def test_a_place_that_cannot_be_written_to_is_named(settings: Settings) -> None:
    with pytest.raises(DaemonError, match=r"expected to write .*nowhere/ampwatch-machine.lock"):
        Announcement(announcement_path(settings.ring_dir + "/nowhere"), MACHINES)


LISTENER = """
import socket, sys
s = socket.create_server(("127.0.0.1", 0))
print(s.getsockname()[1], flush=True)
sys.stdin.read()
"""


def test_a_listening_child_process_is_named_by_pid_uid_and_program() -> None:
    """The owner of a port is the very process that listens on it."""
    with subprocess.Popen(
        [sys.executable, "-c", LISTENER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        port = int(child.stdout.readline())

        owner = port_owner(port)
        child.stdin.close()

    assert owner is not None
    assert (owner.pid, owner.uid) == (child.pid, os.geteuid())
    assert owner.command.startswith(sys.executable)
    assert f"pid {child.pid}" in str(owner)


def test_an_ipv6_listener_is_found_as_well() -> None:
    """Sockets of /proc/net/tcp6 count."""
    if not socket.has_ipv6:
        return
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        assert port_owner(server.getsockname()[1]).pid == os.getpid()


def test_a_bound_port_that_nobody_listens_on_has_no_owner() -> None:
    """Only listeners count: a port that was let go is free."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    assert port_owner(port) is None


def test_an_invisible_process_is_reported_by_its_user_alone(tmp_path: Path) -> None:
    """Without permission to look into a process its uid is still told."""
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "tcp").write_text(
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 0100007F:2AA5 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1234        0 777 1 0 100 0 0 10 0\n"
        "   1: 0100007F:2AA5 0100007F:0001 01 00000000:00000000 00:00000000 00000000  9999        0 778 1 0 100 0 0 10 0\n"
    )

    owner = port_owner(0x2AA5, proc=tmp_path)

    assert owner == PortOwner(uid=1234)
    assert "uid 1234" in str(owner)
