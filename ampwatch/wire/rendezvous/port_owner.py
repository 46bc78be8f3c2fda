"""Owner of a TCP port of this machine, as far as this user may see.

For error messages, as "address already in use" does not say by whom; and to know whose word an
answer is, as anybody may listen and say anything. Linux's ``/proc`` is read, nothing is sent
and no program is started.
"""

from __future__ import annotations

import ipaddress
import os
import shlex
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterator

PROC = Path("/proc")
LISTEN = "0A"  # the state TCP_LISTEN of include/net/tcp_states.h, as /proc/net/tcp prints it
MAX_COMMAND = 80
MAX_UID = (1 << 32) - 1
OVERFLOW_UID = 65534
"""Linux's own choice where ``/proc`` does not say (DEFAULT_OVERFLOWUID)."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class PortOwner(Struct, frozen=True):
    """The holder of a listening socket.

    Attributes:
        uid: User the socket belongs to; always visible.
        pid: Process id, ``None`` if this user may not see it.
        command: Its command line, shortened; empty if not visible.
    """

    uid: int
    pid: int | None = None
    command: str = ""

    def __str__(self) -> str:
        if self.pid is None:
            return f"a process of uid {self.uid} that uid {os.geteuid()} may not see"
        return f"pid {self.pid} ({self.command}) of uid {self.uid}"


def port_owner(port: int, proc: Path = PROC) -> PortOwner | None:
    """Return who listens on ``port``, on any local address of this network namespace.

    Args:
        port: TCP port.
        proc: Where procfs is mounted.

    Returns:
        The first listener whose process is visible, else the first listener, else ``None``.

    Cost:
        Reads the descriptors of every visible process, some ms: not for a loop.
    """
    listeners = _listeners(port, proc)
    holders = _holders(set(listeners), proc) if listeners else {}
    for inode, uid in listeners.items():
        if inode in holders:
            return PortOwner(uid, holders[inode], _command(proc / str(holders[inode])))
    return next((PortOwner(uid) for uid in listeners.values()), None)


def listening_uids(address: str, port: int, proc: Path = PROC) -> frozenset[int]:
    """Return the users whose socket may have answered at ``address``; empty if the kernel says nothing.

    Args:
        address: IP address of this machine that was connected to.
        port: TCP port.
        proc: Where procfs is mounted.

    Returns:
        The user of the socket that is bound to the address, else those of the sockets that take
        connections to any address. Empty in a user namespace for users that it does not know, as
        the kernel shows all of them under one number.
    """
    asked = _plain(ipaddress.ip_address(address))
    # Listening sockets alone: the uid of a connection is 0 until it is accepted, and once it is
    # closed (sock_i_uid() of the kernel), so that anybody's may look like root's.
    bound = [(place, uid) for _, uid, place in _sockets(port, proc)]
    # The kernel prefers the socket of the very address (inet_lookup_listener()).
    uids = {uid for place, uid in bound if place == asked}
    # Those that take any address of IPv6 take those of IPv4 as well, unless told otherwise.
    families = {6, asked.version}
    uids = uids or {u for place, u in bound if place.is_unspecified and place.version in families}
    return frozenset(uids) if uids.isdisjoint(_nobody(proc)) else frozenset()


def _nobody(proc: Path) -> set[int]:
    """Return the number under which this user namespace shows users that it does not know."""
    try:
        first, outside, length = map(int, (proc / "self" / "uid_map").read_text().split())
        if (first, outside) == (0, 0) and length >= MAX_UID:
            return set()
        return {int((proc / "sys" / "kernel" / "overflowuid").read_text())}
    except (OSError, ValueError):  # several ranges
        return {OVERFLOW_UID}


def _listeners(port: int, proc: Path) -> dict[str, int]:
    """Map the inode of every socket that listens on ``port`` to its uid."""
    return {inode: uid for inode, uid, _ in _sockets(port, proc)}


def _sockets(port: int, proc: Path) -> Iterator[tuple[str, int, Address]]:
    """Yield inode, uid and address of every socket that listens on ``port``."""
    for table in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / table).read_text().splitlines()[1:]
        except OSError:  # no IPv6, or not Linux
            continue
        # sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode ...
        for columns in map(str.split, lines):
            place, _, number = columns[1].rpartition(":")
            if columns[3] == LISTEN and int(number, 16) == port:
                yield columns[9], int(columns[7]), _address(place)


def _address(text: str) -> Address:
    """Read an address as the kernel prints it: words of 32 bits, each in the order of this machine."""
    words = (int(text[at : at + 8], 16) for at in range(0, len(text), 8))
    return _plain(ipaddress.ip_address(b"".join(struct.pack("=I", word) for word in words)))


def _plain(address: Address) -> Address:
    """Return an IPv4 address that is written as an IPv6 one as what it is."""
    return getattr(address, "ipv4_mapped", None) or address


def _holders(inodes: set[str], proc: Path) -> dict[str, int]:
    """Map those of ``inodes`` that a visible process has open to its pid."""
    links = {f"socket:[{inode}]": inode for inode in inodes}
    held: dict[str, int] = {}
    for process in proc.iterdir():
        if not process.name.isdecimal():
            continue
        try:
            descriptors = list((process / "fd").iterdir())
        except OSError:  # another user's, or gone by now
            continue
        for descriptor in descriptors:
            try:
                inode = links.get(str(descriptor.readlink()))
            except OSError:
                continue
            if inode is not None:
                held.setdefault(inode, int(process.name))
    return held


def _command(process: Path) -> str:
    try:
        words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
        # A title set by the program itself is one word with spaces: not quoted then.
        text = shlex.join(words[:-1]) if len(words) > 2 else words[0]
        text = text or (process / "comm").read_text().strip()
    except OSError:
        return "unknown program"
    # Another user's choice of words, which are to be part of a line of ours.
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= MAX_COMMAND else text[: MAX_COMMAND - 3] + "..."
