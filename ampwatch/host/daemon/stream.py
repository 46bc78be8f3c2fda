"""One connection as a coroutine sees it: reading, writing and TLS without a thread.

The socket is used directly, not through the transports of asyncio. They would copy what is to be
sent into a buffer for each client, and they end a TLS handshake that fails without the alert that
tells the client why.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

CHUNK = 1 << 16
"""What is read or written at once. Unit: bytes."""

MAX_LINGER = 1 << 18
"""What a client still sends is read up to here before its connection ends. Unit: bytes."""


class Stream:
    """A connection that was accepted.

    Args:
        plain: Its socket.
        address: Where it comes from.
    """

    def __init__(self, plain: socket.socket, address: Any) -> None:
        plain.settimeout(0.0)
        self.address = address
        self._socket = plain
        self._loop = asyncio.get_running_loop()
        self._deadline: asyncio.TimerHandle | None = None

    async def secure(self, context: ssl.SSLContext) -> None:
        """Agree on TLS.

        Raises:
            OSError: If that fails; the client was sent the reason.
        """
        secured = context.wrap_socket(self._socket, server_side=True, do_handshake_on_connect=False)
        self._socket = secured
        await self._when_ready(secured.do_handshake, is_read=True)

    async def receive(self) -> bytes:
        """Return the next bytes; none at the end.

        Raises:
            OSError: If the connection broke.
        """
        received: bytes = await self._when_ready(lambda: self._socket.recv(CHUNK), is_read=True)
        # A client that sends all the time must not have the loop for itself.
        await asyncio.sleep(0)
        return received

    async def send(self, data: bytes | memoryview) -> None:
        """Send ``data``, no faster than the client takes it.

        Raises:
            OSError: If the connection broke.
        """
        # A view: a body is shared by all who asked for it.
        rest = memoryview(data)
        while rest:
            chunk = rest[:CHUNK]
            sent = await self._when_ready(lambda: self._socket.send(chunk), is_read=False)  # noqa: B023 - awaited here
            rest = rest[sent:]
            # A client that takes all at once must not have the loop for itself.
            await asyncio.sleep(0)

    def give(self, seconds: float) -> None:
        """Cut the connection in ``seconds``, instead of when it was to be cut before.

        A time-out of the socket would not do: it starts anew with each byte that drips in.
        """
        self.give_any_time()
        self._deadline = self._loop.call_later(seconds, self.cut)

    def give_any_time(self) -> None:
        """Do not cut the connection."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def cut(self) -> None:
        """End the connection now: whoever reads or writes finds it ended."""
        with suppress(OSError):
            # The plain socket's method: the one of TLS would begin to talk to the client.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    async def end(self, linger_seconds: float) -> None:
        """End the connection so that the client still gets what was sent."""
        self.give(linger_seconds)
        with suppress(OSError, ValueError):
            if isinstance(self._socket, ssl.SSLSocket):
                # Says that this is the end; the client's word is not waited for.
                with suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    self._socket.unwrap()
            else:
                self._socket.shutdown(socket.SHUT_WR)
                # Bytes that nobody has read reset a connection that is closed, and the answer with
                # it.
                taken = 0
                while taken < MAX_LINGER and (data := await self.receive()):
                    taken += len(data)

    def close(self) -> None:
        """Let go of the socket."""
        self.give_any_time()
        self._socket.close()

    async def _when_ready(self, attempt: Callable[[], Any], *, is_read: bool) -> Any:
        while True:
            try:
                return attempt()
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
                # TLS says what it waits for: to send, it may have to receive first.
                if not isinstance(error, BlockingIOError):
                    is_read = isinstance(error, ssl.SSLWantReadError)
            if is_read:
                await self._readiness(self._loop.add_reader, self._loop.remove_reader)
            else:
                await self._readiness(self._loop.add_writer, self._loop.remove_writer)

    async def _readiness(self, add: Callable[..., None], remove: Callable[[int], bool]) -> None:
        ready = self._loop.create_future()
        descriptor = self._socket.fileno()
        add(descriptor, _set, ready)
        try:
            await ready
        finally:
            remove(descriptor)


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
