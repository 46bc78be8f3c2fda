"""Whose the name of a run is."""

from __future__ import annotations

import os
import pwd
from typing import TYPE_CHECKING

import pytest

from ampwatch.host.fleet import owners as module
from ampwatch.host.fleet.owners import KEPT_SECONDS, NAMES_FILE, NameOwners, user_name

if TYPE_CHECKING:
    from pathlib import Path

ALICE, MALLORY = 71001, 71002


def test_a_name_is_the_first_ones_for_as_long_as_series_are_kept() -> None:
    """Also while no run of his is there; then it is free again."""
    owners = NameOwners()
    owners.claim("prod", ALICE, 0.0)
    owners.claim("prod", MALLORY, 1.0)
    owners.claim("prod", ALICE, 100.0)
    owners.claim("prod", MALLORY, 100.0 + KEPT_SECONDS)
    kept = owners.label("prod", ALICE), owners.label("prod", MALLORY)
    owners.claim("prod", MALLORY, 101.0 + KEPT_SECONDS)

    assert kept == ("prod", f"prod~uid{MALLORY}")
    assert owners.label("prod", ALICE) == f"prod~uid{ALICE}"


def test_who_takes_many_names_loses_his_own_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many that are, the others keep theirs, and memory is bounded."""
    monkeypatch.setattr(module, "MAX_NAMES", 8)
    owners = NameOwners()
    owners.claim("prod", ALICE, 0.0)
    for n in range(100):
        owners.claim(f"run-{n}", MALLORY, float(n))

    assert owners.label("prod", MALLORY) != "prod"
    known = [n for n in range(100) if owners.label(f"run-{n}", ALICE) != f"run-{n}"]
    assert known == [*range(92, 100)]


def test_owners_are_the_same_after_they_were_written_and_read(tmp_path: Path) -> None:
    """What was claimed meanwhile is not given away."""
    before, after = NameOwners(), NameOwners()
    before.keep_in(tmp_path)
    before.claim("prod", ALICE, 5.0)
    before.claim("mine", ALICE, 5.0)
    before.save_if_due()
    after.claim("mine", MALLORY, 6.0)
    after.keep_in(tmp_path)

    assert after.label("prod", MALLORY) == f"prod~uid{MALLORY}"
    assert after.label("mine", MALLORY) == "mine"


@pytest.mark.parametrize(
    "odd",
    [b"", b"7", b"[]", b'{"prod": 1}', b'{"prod": ["x", 1]}', b'{"prod": [1]}', b"[" * 10**5],
)
def test_a_damaged_file_ends_no_daemon(odd: bytes, tmp_path: Path) -> None:
    """Nothing is known then."""
    (tmp_path / NAMES_FILE).write_bytes(odd)
    owners = NameOwners()
    owners.keep_in(tmp_path)

    assert owners.label("prod", MALLORY) == "prod"


def test_a_user_without_an_entry_is_a_number() -> None:
    """As in a container."""
    assert user_name(os.geteuid()) == pwd.getpwuid(os.geteuid()).pw_name
    assert user_name(71000) == "71000"
    assert user_name(2**40) == str(2**40)
