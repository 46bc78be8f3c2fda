"""Basic authentication."""

from __future__ import annotations

import base64

import bcrypt
import pytest

from ampwatch.host.daemon.protection import REMEMBER_SECONDS, BasicAuth
from tests.workshop.clocks import Clock

PASSWORD = "correct horse: é"
HASH = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4))


def header(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


class CountingBcrypt:
    """The real check, counted, with the hashes it was given."""

    def __init__(self) -> None:
        self.hashes: list[bytes] = []

    def checkpw(self, password: bytes, hashed: bytes) -> bool:
        self.hashes.append(hashed)
        return bool(bcrypt.checkpw(password, hashed))


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> CountingBcrypt:
    counting = CountingBcrypt()
    monkeypatch.setattr("ampwatch.host.daemon.protection.import_module", lambda _: counting)
    return counting


def test_a_user_with_the_right_password_is_allowed() -> None:
    """Names and passwords are UTF-8, a password may have colons."""
    assert BasicAuth({"alice": HASH}).allows(header("alice", PASSWORD))


@pytest.mark.parametrize(
    "given",
    [
        "",
        "Basic",
        "Basic !!!",
        "Basic " + base64.b64encode(b"alice").decode(),
        "Basic " + base64.b64encode(b"\xff:x").decode(),
        "Bearer " + base64.b64encode(f"alice:{PASSWORD}".encode()).decode(),
        header("alice", "wrong"),
        header("alice", ""),
        header("alice", "x" * 100),
        header("alice", "nul\0"),
        header("Alice", PASSWORD),
        header("bob", PASSWORD),
        header("", ""),
    ],
)
def test_anything_else_is_not_and_raises_nothing(given: str) -> None:
    """Whatever a client sends."""
    assert not BasicAuth({"alice": HASH}).allows(given)


def test_an_unknown_name_takes_a_check_as_costly_as_a_known_one(counted: CountingBcrypt) -> None:
    """The time of a refusal does not tell who exists; the costliest hash stands in."""
    costly = bcrypt.hashpw(b"other", bcrypt.gensalt(5))
    auth = BasicAuth({"alice": HASH, "root": costly})

    assert not auth.allows(header("bob", "other"))

    assert counted.hashes == [costly]


def test_what_was_right_is_remembered_for_as_long_as_it_is_used(counted: CountingBcrypt) -> None:
    """A scrape every 15 s costs no bcrypt check, and waits behind none of those who guess."""
    clock = Clock()
    auth = BasicAuth({"alice": HASH}, clock)
    assert auth.allows(header("alice", PASSWORD))

    for _ in range(3):
        clock.now += REMEMBER_SECONDS - 1
        assert auth.remembers(header("alice", PASSWORD))
        assert auth.allows(header("alice", PASSWORD))
    assert len(counted.hashes) == 1

    clock.now += REMEMBER_SECONDS + 1
    assert not auth.remembers(header("alice", PASSWORD))
    assert auth.allows(header("alice", PASSWORD))
    assert len(counted.hashes) == 2


@pytest.mark.parametrize("name", ["bob", "cheap", "middle", "costly", ""])
def test_every_refusal_costs_the_same_whatever_the_cost_of_a_hash(
    counted: CountingBcrypt, name: str
) -> None:
    """By the work that bcrypt does, 2 to the power of each hash's cost."""
    users = {
        who: bcrypt.hashpw(who.encode(), bcrypt.gensalt(cost))
        for who, cost in (("cheap", 4), ("middle", 6), ("costly", 7))
    }

    assert not BasicAuth(users).allows(header(name, "wrong"))

    assert sum(2 ** int(hashed[4:6]) for hashed in counted.hashes) == 2**7


def test_a_password_right_for_another_name_is_refused_at_full_cost(
    counted: CountingBcrypt,
) -> None:
    """An unknown name is compared with the costliest hash, whose password may be the one given."""
    assert not BasicAuth({"alice": HASH}).allows(header("bob", PASSWORD))
    assert len(counted.hashes) == 1


def test_a_remembered_user_with_a_wrong_password_is_still_refused(counted: CountingBcrypt) -> None:
    """Name and password are remembered together, not the name alone."""
    auth = BasicAuth({"alice": HASH})
    assert auth.allows(header("alice", PASSWORD))

    assert not auth.allows(header("alice", "wrong"))
    assert len(counted.hashes) == 2
