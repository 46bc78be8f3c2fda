"""Requests beside a ring: whatever lies there is read, or refused by an error that its readers expect."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from ampwatch.wire.records import MAX_PLANNED
from ampwatch.wire.ring.requests import (
    FOLLOW,
    LAYERS,
    Request,
    answer_path,
    read_answer,
    read_request,
    request_path,
    withdraw,
    write_request,
)
from tests.workshop.records import planned

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "content",
    [b"", b"[" * 65536, b'{"token":' * 7000, b"\xff", b"null", b'{"token": "a", "pid": true}'],
)
def test_what_is_no_request_is_refused_and_ends_no_sensor(content: bytes, tmp_path: Path) -> None:
    """The training looks at it in the middle of a run, and takes ValueError and OSError alone."""
    ring = tmp_path / "a.ring"
    for path in (request_path(ring), answer_path(ring)):
        path.write_bytes(content)
        path.chmod(0o600)

    with pytest.raises(ValueError, match=r"."):
        read_request(ring)
    with pytest.raises(ValueError, match=r"."):
        read_answer(ring)

    withdraw(ring)
    assert not list(tmp_path.glob("a.*"))


def test_a_plan_of_many_layers_arrives_as_it_was_made(tmp_path: Path) -> None:
    """As many as a training knows, each with its names and reasons."""
    ring = tmp_path / "a.ring"
    plan = tuple(planned(f"blocks.{n}.mlp.up", n, limit_db=21.0) for n in range(MAX_PLANNED))
    request = Request("t", 1, tmp_path / "plan.json", 1, FOLLOW, plan=plan)
    write_request(ring, request)

    assert read_request(ring) == request


def test_a_plan_of_more_layers_than_a_training_knows_is_refused(tmp_path: Path) -> None:
    """Each would be taken, and all of them be followed."""
    ring = tmp_path / "a.ring"
    plan = tuple(planned("b", n) for n in range(MAX_PLANNED + 1))
    write_request(ring, Request("t", 1, tmp_path / "plan.json", 1, FOLLOW, plan=plan))

    with pytest.raises(ValueError, match=r"1 to 512 rows .* got 513 rows"):
        read_request(ring)


@pytest.mark.parametrize("plan", [[], [7], ["!"], ["kQ=="], {}, None, "kQ=="])
def test_what_is_no_plan_is_refused(plan: object, tmp_path: Path) -> None:
    """By an error that the training expects."""
    ring = tmp_path / "a.ring"
    write_request(ring, Request("t", 1, tmp_path / "plan.json", 1, FOLLOW))
    content = json.loads(request_path(ring).read_bytes())
    request_path(ring).write_text(json.dumps(content | {"plan": plan}))

    with pytest.raises(ValueError, match=r"layer of a plan|base64|MessagePack|Expected"):
        read_request(ring)


def test_a_plan_beside_another_request_is_passed_over(tmp_path: Path) -> None:
    """It is read where it is meant."""
    ring = tmp_path / "a.ring"
    write_request(ring, Request("t", 1, tmp_path / "x", 1, LAYERS, plan=(planned(),)))

    assert read_request(ring).plan == ()
