"""One daemon per user, by a lock that says where it serves."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

import pytest
from msgspec.structs import asdict

from ampwatch.errors import DaemonError
from ampwatch.runtime import DAEMON_LOCK
from ampwatch.wire.rendezvous.lock import (
    DaemonInfo,
    DaemonLock,
    reachable,
    read_info,
    read_lock,
)

INFO = DaemonInfo(
    pid=7,
    scheme="http",
    host="127.0.0.1",
    port=10917,
    version="0.1",
    layout=1,
    ring_directories=("/dev/shm/ampwatch-7", "/" + "long/" * 800),
)

ODD = json.dumps(asdict(INFO) | {"ring_directories": 7})


def test_the_second_taker_gets_nothing_until_the_first_has_released(tmp_path: Path) -> None:
    """The lock is exclusive, and free again after release."""
    first = DaemonLock.take(tmp_path)
    assert first is not None
    assert DaemonLock.take(tmp_path) is None

    first.release()

    second = DaemonLock.take(tmp_path)
    assert second is not None
    second.release()


def test_what_is_published_is_read_back_until_it_is_retracted(tmp_path: Path) -> None:
    """The content says where the daemon serves, and only while it does; nobody else reads it."""
    lock = DaemonLock.take(tmp_path)

    lock.publish(INFO)
    assert (tmp_path / DAEMON_LOCK).stat().st_mode & 0o777 == 0o600
    assert read_info(tmp_path) == INFO
    assert json.loads((tmp_path / DAEMON_LOCK).read_text())["port"] == 10917

    lock.retract()
    assert read_info(tmp_path) is None
    lock.release()


@pytest.mark.parametrize("unsaid", ["wants_token", "auto"])
def test_a_daemon_that_does_not_say_all_is_understood(tmp_path: Path, unsaid: str) -> None:
    """It wants no token, and does not say whether a training has started it."""
    said = asdict(INFO)
    del said[unsaid]
    (tmp_path / DAEMON_LOCK).write_text(json.dumps(said))

    assert read_info(tmp_path) == INFO
    assert not INFO.wants_token


def test_who_serves_is_asked_of_the_one_that_holds_the_lock(tmp_path: Path) -> None:
    """What one that was killed has left there leads to a stranger by now."""
    lock = DaemonLock.take(tmp_path)
    lock.publish(INFO)
    assert read_lock(tmp_path).info == INFO
    lock.let_go()
    (tmp_path / DAEMON_LOCK).write_text(json.dumps(asdict(INFO)))

    assert read_lock(tmp_path).info is None


def test_a_shorter_publication_leaves_nothing_of_the_longer_one(tmp_path: Path) -> None:
    """A daemon that publishes again is understood again."""
    lock = DaemonLock.take(tmp_path)
    lock.publish(DaemonInfo(1234567, "https", "a" * 9000, 10917, "0.1.0", 1))

    lock.publish(INFO)

    assert read_info(tmp_path) == INFO
    lock.release()


def test_what_a_killed_daemon_had_published_is_gone_with_the_next_taker(tmp_path: Path) -> None:
    """Nobody is sent to a daemon that is not there any more."""
    (tmp_path / DAEMON_LOCK).write_text(json.dumps({"pid": 1}))

    lock = DaemonLock.take(tmp_path)

    assert (tmp_path / DAEMON_LOCK).read_text() == ""
    lock.release()


@pytest.mark.parametrize("content", ["", "[]", '{"pid": 1}', "\x00" * 100, '{"pid": "x"', ODD])
def test_a_lock_file_without_sense_says_nothing(tmp_path: Path, content: str) -> None:
    """Whatever is in the file, reading it does not raise."""
    (tmp_path / DAEMON_LOCK).write_text(content)

    assert read_info(tmp_path) is None


def test_a_look_at_the_lock_says_whether_it_is_held_and_changes_nothing(tmp_path: Path) -> None:
    """A daemon that was killed has left what it said; a reader beside it is no holder."""
    with pytest.raises(FileNotFoundError):
        read_lock(tmp_path)
    lock = DaemonLock.take(tmp_path)
    starting = read_lock(tmp_path)
    lock.publish(INFO)
    serving = read_lock(tmp_path)
    lock.let_go()
    left = (tmp_path / DAEMON_LOCK).read_text()
    with (tmp_path / DAEMON_LOCK).open() as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        killed = read_lock(tmp_path)

    assert starting == (True, None, False)
    assert serving == (True, INFO, False)
    assert killed == (False, None, False)
    assert (tmp_path / DAEMON_LOCK).read_text() == left


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_lock_file_of_somebody_else_is_not_believed(tmp_path: Path) -> None:
    """Where temporary files are tidied, another user can make the directory anew."""
    lock = DaemonLock.take(tmp_path)
    lock.publish(INFO)
    os.chown(tmp_path / DAEMON_LOCK, 4242, 4242)

    with pytest.raises(PermissionError, match="belongs to another user"):
        read_lock(tmp_path)
    assert read_info(tmp_path) is None
    lock.let_go()


def test_a_daemon_that_was_to_end_says_so_until_the_next_taker(tmp_path: Path) -> None:
    """To whoever reads where it serves, that is nowhere."""
    lock = DaemonLock.take(tmp_path)
    lock.publish(INFO)
    lock.resign()
    resigned = read_lock(tmp_path)
    says = read_info(tmp_path)
    lock = DaemonLock.take(tmp_path)
    lock.release()

    assert resigned == (False, None, True)
    assert says is None
    assert read_lock(tmp_path) == (False, None, False)


def test_a_lock_that_was_handed_over_outlives_its_taker(tmp_path: Path) -> None:
    """The lock is never free between the launcher and the daemon."""
    taken = DaemonLock.take(tmp_path)
    handed = DaemonLock.adopt(os.dup(taken.fd), tmp_path)

    taken.let_go()

    assert DaemonLock.take(tmp_path) is None
    handed.release()


def test_a_descriptor_of_another_file_is_not_adopted(tmp_path: Path) -> None:
    """--lock-fd cannot be used to run without the lock."""
    with (tmp_path / "other").open("w") as other, pytest.raises(DaemonError, match="--lock-fd"):
        DaemonLock.adopt(other.fileno(), tmp_path)


def test_a_link_in_place_of_the_lock_file_is_refused(tmp_path: Path) -> None:
    """Nobody makes the daemon empty a file elsewhere."""
    precious = tmp_path / "precious"
    precious.write_text("content")
    (tmp_path / DAEMON_LOCK).symlink_to(precious)

    with pytest.raises(DaemonError, match="AMPWATCH_RUNTIME_DIR"):
        DaemonLock.take(tmp_path)
    assert precious.read_text() == "content"


@pytest.mark.parametrize(
    ("host", "written"),
    [
        ("0.0.0.0", "127.0.0.1"),
        ("", "127.0.0.1"),
        ("::", "[::1]"),
        ("fe80::1", "[fe80::1]"),
        ("node7", "node7"),
    ],
)
def test_a_listening_address_becomes_one_to_go_to(host: str, written: str) -> None:
    """A wildcard is no destination, and IPv6 needs brackets."""
    assert reachable(host) == written
