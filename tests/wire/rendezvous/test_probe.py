"""Who is believed on a port: the kernel's word and a proof count, what is answered does not."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from ampwatch import runtime
from ampwatch.runtime import service_uid
from ampwatch.wire.rendezvous import probe
from ampwatch.wire.rendezvous.port_owner import listening_uids
from ampwatch.wire.rendezvous.probe import Answer, prover
from ampwatch.wire.rendezvous.token import SECRET_FILE, ensure_token, proof
from tests.wire.rendezvous.impostors import (
    NOBODY,
    ROOT,
    another_users,
    answering,
    health,
    needs_root,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

AS_ANOTHER_USER = """
import encodings.idna, os, sys
from ampwatch.wire.rendezvous.probe import ask
os.setgroups([]); os.setgid(65534); os.setuid(65534)
answer = ask("127.0.0.1", int(sys.argv[1]))
print(answer.is_daemon, answer.scope, answer.uid)
"""


def ask(port: int, *places: Path) -> Answer:
    return probe.ask("127.0.0.1", port, places)


def knows(monkeypatch: pytest.MonkeyPatch, *uids: int) -> None:
    """Have the kernel say that these users listen."""
    monkeypatch.setattr(probe, "listening_uids", lambda *_: frozenset(uids))


@needs_root
@pytest.mark.parametrize("scope", ["user", "machine"])
def test_another_users_process_is_not_believed_whatever_it_says(scope: str) -> None:
    """Also where it says that it is root, or this user; it is not even asked."""
    with another_users(health(scope=scope, uid=0)) as port:
        answer = ask(port)

    assert (answer.taken, answer.is_daemon, answer.uid) == (True, False, NOBODY)
    assert f"of uid {NOBODY}" in str(answer)


@needs_root
@pytest.mark.parametrize(("scope", "said"), [("machine", "True machine 0"), ("user", "False  0")])
def test_root_serves_the_machine_and_none_else_for_other_users(scope: str, said: str) -> None:
    """A user who is not root believes a daemon of the machine that the kernel says is root's."""
    with answering(health(scope=scope)) as port:
        told = subprocess.check_output(
            [sys.executable, "-c", AS_ANOTHER_USER, str(port)], cwd=ROOT, text=True
        )

    assert told.strip() == said


@needs_root
def test_the_user_of_the_service_serves_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not root: root has made its runtime directory, and nobody else could."""
    monkeypatch.setattr(probe, "service_uid", lambda: NOBODY)
    with another_users(health(scope="machine")) as port:
        machine = ask(port)
    with another_users(health(scope="user")) as port:
        user = ask(port)

    assert (machine.is_daemon, machine.uid) == (True, NOBODY)
    assert not user.is_daemon


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


def test_a_process_of_this_user_has_to_know_the_secret_where_there_is_one(tmp_path: Path) -> None:
    """It may be a tunnel to another machine, whose daemon answers just the same."""
    secret = ensure_token(tmp_path, SECRET_FILE)
    with answering(health()) as port:
        before, without = ask(port), ask(port, tmp_path)
    with answering(health(), secret) as port:
        proved = ask(port, tmp_path / "nowhere", tmp_path)

    assert (before.is_daemon, without.is_daemon, proved.is_daemon) == (True, False, True)
    assert "does not know the secret" in str(without)


def test_the_proof_of_the_daemon_on_another_port_is_none(tmp_path: Path) -> None:
    """An impostor can pass the question on, and the answer back."""
    secret = ensure_token(tmp_path, SECRET_FILE)
    with answering(health(), secret, proof_port=10917) as port:
        answer = ask(port, tmp_path)

    assert not answer.is_daemon


@pytest.mark.parametrize("scope", ["user", "machine"])
def test_where_the_kernel_says_nothing_only_the_proof_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scope: str
) -> None:
    """As in a user namespace, which does not know the users outside."""
    knows(monkeypatch)
    secret = ensure_token(tmp_path, SECRET_FILE)
    with answering(health(scope=scope)) as port:
        without = ask(port, tmp_path)
    with answering(health(scope=scope), secret) as port:
        proved = ask(port, tmp_path)

    assert (without.is_daemon, proved.is_daemon) == (False, True)
    assert "the kernel does not say whose it is" in str(without)


def test_sockets_of_two_users_are_those_of_a_stranger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows which of them answers."""
    knows(monkeypatch, os.geteuid(), os.geteuid() + 7)
    with answering(health(), ensure_token(tmp_path, SECRET_FILE)) as port:
        assert not ask(port, tmp_path).is_daemon


def test_what_a_stranger_says_of_itself_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would write lines of its own into the log of a training."""
    knows(monkeypatch)
    with answering(health(version="9\n9 CRITICAL all is lost")) as port:
        assert "CRITICAL" not in str(ask(port))


@pytest.mark.parametrize(
    ("said", "taken"),
    [("https://h/a/", "https://h/a/"), ("https://h/\x1b", ""), ("h" * 15000, "h" * 15000), (7, "")],
)
def test_the_address_of_a_page_is_taken_whole_or_not_at_all(said: object, taken: str) -> None:
    """A part of one leads elsewhere, and what cannot be printed moves a cursor."""
    with answering(health(external_url=said)) as port:
        assert ask(port).external_url == taken


@pytest.mark.parametrize(
    "odd",
    [{"layout": None}, {"service": "other"}, {"scope": "galaxy"}, {"version": 7}, None],
)
def test_an_answer_without_sense_is_of_another_program(odd: dict[str, object] | None) -> None:
    """Nothing raises."""
    with answering(None if odd is None else health(**odd)) as port:
        answer = ask(port)

    assert (answer.taken, answer.is_daemon, answer.why_not) == (True, False, "")


@pytest.mark.parametrize(
    "drip",
    [
        lambda c: c.sendall(b"x"),
        lambda c: c.sendall(b"HTTP/1.0 200 OK\r\n" + b"A: b\r\n" * 100_000),
    ],
)
def test_who_sends_without_end_ends_no_training(drip: Callable[[socket.socket], None]) -> None:
    """A time-out that starts anew with each byte would never be over."""
    ending = threading.Event()

    def serve(server: socket.socket) -> None:
        while not ending.is_set():
            with suppress(OSError), server.accept()[0] as connection:
                while not ending.wait(0.01):
                    drip(connection)

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        threads = [threading.Thread(target=serve, args=(server,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        answer = ask(server.getsockname()[1])
        ending.set()
        for thread in threads:
            thread.join()

    assert (answer.taken, answer.is_daemon) == (True, False)


def test_a_challenge_is_answered_with_the_proof_for_the_own_port() -> None:
    """Whoever asks without one, or with a book, gets none."""
    headers = prover(lambda: "secret", 10917)

    assert headers("abc") == {"Ampwatch-Proof": proof("secret", "abc", 10917)}
    assert headers("") == headers("x" * 65) == {}


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1", {7}),  # bound to the very address, before who takes any
        ("127.0.0.2", {8, 9}),  # two that take any: one of them may be for IPv6 alone
        ("::1", {10}),
        ("fe80::1", {9}),
    ],
)
def test_the_socket_that_answers_is_the_one_of_the_address(
    tmp_path: Path, address: str, expected: set[int]
) -> None:
    """Somebody may listen on another address of the same port."""
    rows = {
        "tcp": [("0100007F", "0A", 7), ("00000000", "0A", 8), ("0100007F", "01", 11)],
        "tcp6": [("0" * 32, "0A", 9), ("0" * 24 + "01000000", "0A", 10)],
    }
    (tmp_path / "net").mkdir()
    for table, sockets in rows.items():
        lines = [
            f"0: {place}:2AA5 0:0000 {state} 0:0 0:0 0 {uid} 0 {uid}"
            for place, state, uid in sockets
        ]
        (tmp_path / "net" / table).write_text("\n".join(["header", *lines]))

    assert listening_uids(address, 0x2AA5, proc=tmp_path) == expected


@pytest.mark.parametrize(
    ("uid_map", "expected"),
    [("0 0 4294967295", {65534}), ("0 1000 1", set()), ("1000 1000 1", set())],
)
def test_users_that_a_namespace_does_not_know_are_nobody(
    tmp_path: Path, uid_map: str, expected: set[int]
) -> None:
    """The kernel shows all of them under one number, which may be this user's as well."""
    for directory in ("net", "self", "sys/kernel"):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "self" / "uid_map").write_text(uid_map)
    (tmp_path / "sys" / "kernel" / "overflowuid").write_text("65534\n")
    (tmp_path / "net" / "tcp").write_text("header\n0: 0100007F:2AA5 0:0000 0A 0:0 0:0 0 65534 0 1")

    assert listening_uids("127.0.0.1", 0x2AA5, proc=tmp_path) == expected


def test_this_process_is_who_listens_here() -> None:
    """The real /proc of this machine, over both families."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert listening_uids("127.0.0.1", server.getsockname()[1]) == {os.geteuid()}
