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
    """A connection that was accepted; TLS, if any, is agreed on while the first bytes are received."""

    def __init__(
        self, accepted: socket.socket, address: Any, context: ssl.SSLContext | None = None
    ) -> None:
        accepted.settimeout(0.0)
        self.address = address
        self._socket = accepted
        self._loop = asyncio.get_running_loop()
        self._tls: ssl.SSLObject | None = None
        if context is not None:
            self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
            self._tls = context.wrap_bio(self._received, self._to_send, server_side=True)

    async def receive(self) -> bytes:
        """Return the next bytes; none at the end.

        Raises:
            OSError: If the connection broke, or TLS failed; the client was sent the reason.
        """
        if self._tls is None:
            received: bytes = await self._loop.sock_recv(self._socket, CHUNK)
        else:
            received = await self._by_tls(self._tls.read, CHUNK)
        # A client that sends all the time must not have the loop for itself.
        await asyncio.sleep(0)
        return received

    async def send(self, *parts: bytes | memoryview) -> None:
        """Send ``parts`` one after the other, no faster than the client takes them.

        Raises:
            OSError: If the connection broke.
        """
        for part in parts:
            # A view: a body is shared by all who asked for it.
            rest = memoryview(part)
            while rest:
                if self._tls is None:
                    await self._loop.sock_sendall(self._socket, rest[:CHUNK])
                else:
                    await self._by_tls(self._tls.write, rest[:CHUNK])
                rest = rest[CHUNK:]
                # A client that takes all at once must not have the loop for itself.
                await asyncio.sleep(0)

    async def end(self) -> None:
        """End the connection so that the client still gets what was sent."""
        with suppress(OSError):
            if self._tls is not None:
                # Says that this is the end; the client's word is not waited for.
                with suppress(ssl.SSLError):
                    self._tls.unwrap()
                await self._loop.sock_sendall(self._socket, self._to_send.read())
                return
            self._socket.shutdown(socket.SHUT_WR)
            # Bytes that nobody has read reset a connection that is closed, and the answer with it.
            taken = 0
            while taken < MAX_LINGER and (data := await self.receive()):
                taken += len(data)

    async def _by_tls(self, operation: Callable[[Any], Any], argument: Any) -> Any:
        """Do what TLS may have to receive and send something else for first."""
        while True:
            try:
                return operation(argument)
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLEOFError:
                return b""
            finally:
                # Of a handshake that failed the alert.
                await self._loop.sock_sendall(self._socket, self._to_send.read())
            if data := await self._loop.sock_recv(self._socket, CHUNK):
                self._received.write(data)
            else:
                self._received.write_eof()
