"""The listening socket: binding, TLS, and bounds on how many clients for how long.

One thread waits for all connections, so that an idle one costs its descriptor and some kB. A whole
request is answered in the thread of its kind (`Lane`): no client, and no kind of answer, keeps
a scrape waiting.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import os
import queue
import resource
import socket
import ssl
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import h11

from ampwatch.errors import DaemonError
from ampwatch.host.daemon.handler import Handler, head, refused
from ampwatch.host.daemon.protection import Protection
from ampwatch.host.daemon.site import LANES, sentence
from ampwatch.host.daemon.stream import CHUNK, Stream
from ampwatch.wire.rendezvous.port_owner import port_owner

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable

    from ampwatch.host.daemon.access import Access
    from ampwatch.host.daemon.site import Response, Site
    from ampwatch.host.daemon.web_config import WebConfig

    Client = asyncio.Task[None]
    """The task that serves one."""

    _Job = tuple[Hashable, Callable[[], Any], Future[Any]]

_T = TypeVar("_T")

MAX_CONNECTIONS = 2048
"""Connections at a time, where the process may have as many descriptors. Beyond that the one that has
waited longest makes room: a new client is served for as long as there is one that only waits."""

RESERVED_DESCRIPTORS = 256
"""Descriptors that are left to the rest of the daemon: rings, reports, GPUs."""

CONNECTION_SECONDS = 30.0
"""Time for a whole request to come, and again for its answer to be taken; then the connection is cut."""

LINGER_SECONDS = 1.0
"""Time for a client to take the end of an answer before its connection is closed. Unit: s."""

ERROR_SECONDS = 60.0
"""Time between two failed requests that are logged as errors: a client must not fill the log.
Unit: s."""

MAX_HEAD = 1 << 15
"""Request line and headers of a request. Unit: bytes."""

BACKLOG = 1024
"""Connections that the kernel keeps until they are accepted."""

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})

RESOLV_CONF = Path("/etc/resolv.conf")

PRIVATE_DOMAINS = (".localhost", ".local", ".internal", ".home.arpa", ".svc")
"""Ends of names that nobody can register (RFC 6761, 6762, 8375; ICANN's .internal; services of
Kubernetes): no page elsewhere can have one of these."""

logger = logging.getLogger(__name__)


class Lane:
    """Does one job after another in a thread of its own. It is asked from one thread.

    There is one for each kind of answer, so that none waits for another kind. What many ask for
    at the same time is made once for all of them.

    Args:
        max_waiting: Jobs that may wait; the next one is refused.
    """

    def __init__(self, name: str, max_waiting: int) -> None:
        self._name = name
        self._max_waiting = max_waiting
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._waiting: dict[Hashable, Future[Any]] = {}

    def start(self) -> None:
        """Start the thread: once, and after the process has forked."""
        # A daemon thread: a job that hangs must not keep a process alive that has to end.
        threading.Thread(target=self._run, name=f"ampwatch-{self._name}", daemon=True).start()

    def ask(self, job: Callable[[], Any], key: Hashable = None) -> Future[Any]:
        """Return the future result of ``job``.

        Jobs of one key have the same result. Those that wait are done once; one that has begun is
        not joined, as it may miss what has happened since.

        Raises:
            queue.Full: If too many wait already.
        """
        if key is not None and (shared := self._waiting.get(key)) is not None:
            return shared
        if self._jobs.qsize() >= self._max_waiting:
            raise queue.Full
        future: Future[Any] = Future()
        if key is not None:
            self._waiting[key] = future
        self._jobs.put((key, job, future))
        return future

    def close(self) -> None:
        """End the thread after the jobs that wait."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (taken := self._jobs.get()) is not None:
            key, job, future = taken
            self._waiting.pop(key, None)
            # From here on it cannot be cancelled: others may have joined it.
            future.set_running_or_notify_cancel()
            try:
                result = job()
            except BaseException as error:  # noqa: BLE001 - it is raised where the result is waited for
                future.set_exception(error)
            else:
                future.set_result(result)


class Server:
    """Serves a site.

    Args:
        host: Name or address to listen on.
        port: Port to listen on, 0 for any free one.
        more_hosts: Names to be known by besides its own, where names are checked.

    Raises:
        DaemonError: If it cannot listen there.

    Attributes:
        protection: How it is protected; it follows its file.
        is_loopback: Only this machine can connect.
        allowed_hosts: The names that clients may come by, where names are checked.
    """

    def __init__(
        self,
        host: str,
        port: int,
        site: Site,
        web: WebConfig,
        more_hosts: frozenset[str],
        access: Access,
    ) -> None:
        self.site = site
        self.access = access
        self.protection = Protection(web)
        self.is_tls = web.tls is not None
        self.standard_port = 443 if web.tls else 80
        try:
            self._socket = _listen(host, port)
        except OSError as error:
            raise DaemonError(_why_not_bound(host, port, error)) from error
        address = self._socket.getsockname()
        self.server_port: int = address[1]
        self.is_loopback = ipaddress.ip_address(str(address[0])).is_loopback
        self.allowed_hosts = LOOPBACK_NAMES | {host.lower()} | more_hosts
        if not self.is_loopback:
            self.allowed_hosts |= _names_of_machine()
        self._lanes = {name: Lane(name, waiting) for name, waiting in LANES.items()}
        self._turns = asyncio.PriorityQueue[tuple[float, int, asyncio.Future[None]]]()
        self._numbers = count()
        self._max_connections = _room()
        self._clients: set[Client] = set()
        # In the order in which they make room: whoever waits longest, or is sent to longest, first.
        self._waiting: dict[Client, None] = {}
        self._sending: dict[Client, None] = {}
        self._loud_from = 0.0
        self._stop: Future[None] = Future()
        self._ended = threading.Event()
        self._ended.set()

    @property
    def asks_who(self) -> bool:
        """Clients need a password or a certificate."""
        web = self.protection.web
        return bool(web.users) or (web.tls is not None and web.tls.verify_mode is ssl.CERT_REQUIRED)

    def is_known_as(self, host: str) -> bool:
        """Return whether a client may come by the name or address ``host``.

        Against DNS rebinding: a page elsewhere can point its own name here, and its scripts could
        then read what the daemon answers. Beyond loopback that needs no check where the browser
        makes one, of the certificate, or has to send a password or the token.
        """
        if host in self.allowed_hosts:
            return True
        if self.is_loopback:
            return False
        if self.is_tls or self.protection.web.users:
            return True
        # A browser has no cookie of this daemon for the name that another page came by.
        if self.access.wants_token(asks_who=self.asks_who):
            return True
        # Nobody can point an address, or a name without a domain, to somewhere else.
        return _is_address(host) or "." not in host or host.endswith(PRIVATE_DOMAINS)

    def serve_forever(self) -> None:
        """Serve until ``shutdown`` is called, from another thread."""
        self._ended.clear()
        try:
            if not self._stop.done():
                asyncio.run(self._serve())
        finally:
            self._ended.set()

    def shutdown(self) -> None:
        """End ``serve_forever`` and wait for its end; the port stays taken."""
        if not self._stop.done():
            self._stop.set_result(None)
        self._ended.wait()

    def server_close(self) -> None:
        """Let go of the port."""
        self._socket.close()

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self._report("", context.get("exception")))
        for lane in self._lanes.values():
            lane.start()
        giving, accepting = map(loop.create_task, (self._give_turns(), self._accept()))
        try:
            stop = asyncio.wrap_future(self._stop)
            await asyncio.wait({accepting, stop}, return_when=asyncio.FIRST_COMPLETED)
            if accepting.done():
                accepting.result()
        finally:
            tasks = [giving, accepting, *self._clients]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for lane in self._lanes.values():
                lane.close()

    async def _give_turns(self) -> None:
        """Let one request go on in each pass of the loop, that of the client first who was answered longest ago.

        A thousand clients that always have a next request would otherwise all have their turn in each
        pass, and whoever comes for one scrape needs several passes.
        """
        while True:
            _, _, turn = await self._turns.get()
            if not turn.done():  # a client that has left does not take anybody's
                turn.set_result(None)
                await asyncio.sleep(0)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(self._socket)
            except OSError as error:
                if error.errno in (errno.EBADF, errno.EINVAL, errno.ENOTSOCK):
                    raise
                # No descriptor or no memory: whoever only waits makes room. Not for a client that
                # has left before it was accepted.
                if error.errno != errno.ECONNABORTED:
                    self._make_room()
                await asyncio.sleep(0.01)
                continue
            if len(self._clients) >= self._max_connections and not self._make_room():
                logger.debug("%s was refused: too many connections", address[0])
                accepted.close()
            else:
                client = loop.create_task(self._serve_client(accepted, address))
                self._clients.add(client)
                client.add_done_callback(self._clients.discard)
            # An accept that does not wait does not give the others their turn either.
            await asyncio.sleep(0)

    def _make_room(self) -> bool:
        """End the client that has waited longest, else the one that has been sent to longest."""
        for clients in (self._waiting, self._sending):
            if clients:
                client = next(iter(clients))
                del clients[client]
                client.cancel()
                return True
        return False

    async def _serve_client(self, accepted: socket.socket, address: Any) -> None:
        stream = None
        try:
            self.protection.refresh()
            stream = Stream(accepted, address, self.protection.web.tls)
            http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
            # A new client's turn is by when it came: whoever came before it, or waits longer, is not passed.
            answered = asyncio.get_running_loop().time()
            while True:
                asking = self._request(stream, http, answered)
                if (request := await self._within(self._waiting, asking)) is None:
                    break
                answered = asyncio.get_running_loop().time()
                await self._answer(stream, http, request)
                if not http.our_state is http.their_state is h11.DONE:
                    await self._within(self._sending, stream.end(), LINGER_SECONDS)
                    break
                http.start_next_cycle()
        except Exception as error:  # noqa: BLE001 - whatever a client causes ends that client only
            self._report(address[0], error)
        finally:
            accepted.close()

    async def _within(
        self,
        clients: dict[Client, None],
        part: Coroutine[Any, Any, _T],
        seconds: float | None = None,
    ) -> _T:
        """Await what this client has to do in its time, as one of ``clients``, who make room meanwhile.

        A time-out of the socket would not do: it starts anew with each byte that drips in. Nor would ``wait_for``, which
        before Python 3.12 forgets that it was cancelled where the part has just ended.
        """
        client = cast("Client", asyncio.current_task())
        clients[client] = None
        seconds = CONNECTION_SECONDS if seconds is None else seconds
        end = asyncio.get_running_loop().call_later(seconds, client.cancel)
        try:
            return await part
        finally:
            end.cancel()
            clients.pop(client, None)

    async def _request(
        self, stream: Stream, http: h11.Connection, answered: float
    ) -> h11.Request | h11.RemoteProtocolError | None:
        """Return the next request when its turn has come, or why it is none; ``None`` if the client has left."""
        request: h11.Request | h11.RemoteProtocolError
        try:
            while (event := http.next_event()) is h11.NEED_DATA:
                http.receive_data(await stream.receive())
            if not isinstance(event, h11.Request):
                return None
            request = event
            # Its end, unless a body follows. That has no meaning here, and ends the connection.
            http.next_event()
        except h11.RemoteProtocolError as error:
            request = error
        turn = asyncio.get_running_loop().create_future()
        # By number where two have waited equally long: futures cannot be compared.
        self._turns.put_nowait((answered, next(self._numbers), turn))
        await turn
        return request

    async def _answer(
        self,
        stream: Stream,
        http: h11.Connection,
        request: h11.Request | h11.RemoteProtocolError,
    ) -> None:
        """Answer a request, or what is none."""
        # While its answer is made a client waits for us: it is neither ended nor makes room.
        self.protection.refresh()
        if isinstance(request, h11.RemoteProtocolError):
            is_head, response = False, refused(request)
        else:
            handler = Handler(request, self)
            is_head, response = handler.is_head, await self._response(handler)
            logger.debug("%s %s %d", stream.address[0], handler, response.status)
        chunks, body = response.stream, b"" if is_head else response.body
        try:
            begin = http.send(head(response, self.protection.web.headers)) or b""
            if body:
                http.send_with_data_passthrough(h11.Data(data=body))
            # What is small goes out in one packet. The rest is not copied: who asks for the same shares it.
            await self._send(stream, begin + body[:CHUNK], memoryview(body)[CHUNK:])
            if chunks is not None and not is_head:
                # A page stays open for days: its time starts anew with each chunk.
                following = partial(next, chunks, None)
                while (chunk := await self._in_lane("page", following)) is not None:
                    await self._send(stream, http.send(h11.Data(data=chunk)))
                    await asyncio.sleep(response.pause_seconds)
            await self._send(stream, http.send(h11.EndOfMessage()))
        finally:
            # A generator that is left to the garbage collector holds its place among the streams.
            if chunks is not None:
                with suppress(ValueError):  # it runs in its lane just now, where the daemon ends
                    chunks.close()

    async def _send(self, stream: Stream, *parts: bytes | memoryview | None) -> None:
        if written := [part for part in parts if part]:
            await self._within(self._sending, stream.send(*written))

    async def _response(self, handler: Handler) -> Response:
        """Return the answer to a request, its body as it is sent."""
        try:
            if handler.takes_long_to_know:
                refusal = await self._in_lane("login", handler.refusal)
            else:
                refusal = handler.refusal()
            if refusal is not None:
                return handler.packed(refusal)
            request = handler.request()
            lane, shared = self.site.lane(request)
            key = None if shared is None else (shared, handler.takes_gzip)
            made: Response = await self._in_lane(
                lane, lambda: handler.packed(self.site.answer(request)), key
            )
        except queue.Full:
            text = "Too many such requests wait already."
            return sentence(HTTPStatus.SERVICE_UNAVAILABLE, text, Retry_After="5")
        return made

    async def _in_lane(self, lane: str, job: Any, key: Any = None) -> Any:
        # Shielded: a connection that ends must not take the answer from others who wait for it.
        return await asyncio.shield(asyncio.wrap_future(self._lanes[lane].ask(job, key)))

    def _report(self, client: str, error: BaseException | None) -> None:
        """Log what ended a connection: loudly now and then, unless it was the client."""
        if error is None or isinstance(error, OSError):
            logger.debug("%s: %s", client, error)
            return
        level = logging.DEBUG
        now = time.monotonic()
        if now >= self._loud_from:
            level = logging.ERROR
            self._loud_from = now + ERROR_SECONDS
        logger.log(level, "a request of %s failed", client, exc_info=error)


def _listen(host: str, port: int) -> socket.socket:
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Not SO_REUSEPORT: with that another program could listen on our port beside us.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.settimeout(0.0)
    except OSError:
        listener.close()
        raise
    return listener


def _room() -> int:
    """Return how many connections there may be; take more descriptors for them if that is allowed."""
    try:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    except OSError:  # a filter of system calls may know no limits
        return RESERVED_DESCRIPTORS
    wanted = MAX_CONNECTIONS + RESERVED_DESCRIPTORS
    infinite = resource.RLIM_INFINITY
    if soft != infinite and soft < wanted:
        more = wanted if hard == infinite else min(wanted, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
            soft = more
    if soft == infinite:
        return MAX_CONNECTIONS
    return max(soft // 4, min(MAX_CONNECTIONS, soft - RESERVED_DESCRIPTORS))


def _names_of_machine() -> frozenset[str]:
    """Return the names of this machine that it knows without asking anybody."""
    name = socket.gethostname().lower()
    names = {name, name.partition(".")[0]}
    try:
        lines = RESOLV_CONF.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        lines = []
    for words in map(str.split, lines):
        # The domains in which this machine looks for others: it is mostly in one of them itself.
        if words[:1] in (["search"], ["domain"]):
            names |= {
                f"{name.partition('.')[0]}.{domain.strip('.').lower()}" for domain in words[1:]
            }
    return frozenset(names)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def _why_not_bound(host: str, port: int, error: OSError) -> str:
    expected = f"cannot listen on {host}:{port}: "
    if error.errno == errno.EADDRINUSE:
        return f"{expected}the port is held by {port_owner(port) or 'another program'}; end that, or choose another port with --port or AMPWATCH_PORT"
    if error.errno == errno.EACCES:
        return f"{expected}uid {os.geteuid()} may not; ports below 1024 are for root, choose another with --port or AMPWATCH_PORT"
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return f"{expected}{error.strerror}; give an address of this machine with --host or AMPWATCH_HOST"
    return f"{expected}{error.strerror}"
