"""Clients that send what no browser and no Prometheus sends cost the others nothing."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from http import HTTPStatus

import pytest

from ampwatch.host.daemon.server import MAX_HEAD
from ampwatch.host.daemon.stream import CHUNK, Stream
from tests.host.daemon.test_http import Served, serving


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as served:
        yield served


def test_empty_lines_are_no_request(served: Served) -> None:
    """Nor are they waited for: a client could send them without end."""
    answer = served.say(b"\r\n" * MAX_HEAD)

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"Connection: close" in answer
    assert served.ask("/healthz").status == HTTPStatus.OK


def test_a_client_that_sends_all_the_time_does_not_have_the_loop_for_itself() -> None:
    """Others have a turn after each piece that it sends."""

    async def turns() -> bool:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * CHUNK)
            theirs.sendall(b"\n" * 2 * CHUNK)
            had: list[str] = []
            asyncio.get_running_loop().call_soon(had.append, "a turn")
            await Stream(ours, None).receive()
            return had == ["a turn"]

    assert asyncio.run(turns())


def test_a_client_that_came_earlier_is_not_passed_by_those_who_come_anew(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scrape on a connection that is kept has its turn before clients that connect later."""
    asked: list[float] = []
    put = served.server._turns.put_nowait
    monkeypatch.setattr(
        served.server._turns, "put_nowait", lambda turn: asked.append(turn[0]) or put(turn)
    )
    with served.raw(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n") as kept:
        assert kept.recv(65536)
        with served.raw(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n") as new:
            assert new.recv(65536)

    first, second = asked
    assert 0.0 < first < second


@pytest.mark.parametrize("leaving", [(), (1,)])
def test_whoever_was_answered_longest_ago_is_first_and_alone_in_its_pass(
    served: Served, leaving: tuple[int, ...]
) -> None:
    """A scrape comes every ten seconds; those that have just been answered can wait. One that leaves takes nobody's turn."""

    async def order() -> list[list[int]]:
        turns = asyncio.PriorityQueue[tuple[float, int, asyncio.Future[None]]]()
        passes: list[list[int]] = []
        for number, answered in enumerate((9.0, 9.5, 3.0, 0.0, 9.0)):
            turn = asyncio.get_running_loop().create_future()
            turn.add_done_callback(
                lambda turn, number=number: turn.cancelled() or passes[-1].append(number)
            )
            turns.put_nowait((answered, number, turn))
            if number in leaving:
                turn.cancel()
        served.server._turns = turns
        giving = asyncio.ensure_future(served.server._give_turns())
        for _ in range(9):
            passes.append([])
            await asyncio.sleep(0)
        giving.cancel()
        return [let_go for let_go in passes if let_go]

    expected = [[number] for number in (3, 2, 0, 4, 1) if number not in leaving]
    assert asyncio.run(order()) == expected


@pytest.mark.parametrize(
    "lines",
    [
        b"Content-Length : 30\r\n",
        b"no colon\r\n",
        b"A: b\0c\r\n",
        b"A: b\rContent-Length: 30\r\n",
        b"Host: localhost\r\n",
    ],
)
def test_a_head_that_can_be_read_in_two_ways_is_refused_and_ends_the_connection(
    served: Served, lines: bytes
) -> None:
    """A proxy before the daemon may take for a body what would be answered here as a second request."""
    second = b"GET /sd HTTP/1.1\r\nHost: localhost\r\n\r\n"

    answer = served.say(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + lines + b"\r\n" + second)

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert served.ask("/healthz").status == HTTPStatus.OK
