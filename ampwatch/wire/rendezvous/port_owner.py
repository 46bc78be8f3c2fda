"""Owner of a TCP port of this machine, as far as this user may see.

For error messages, as "address already in use" does not say by whom. Linux's ``/proc`` is read,
nothing is sent and no program is started.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from msgspec import Struct

PROC = Path("/proc")
LISTEN = "0A"  # the state TCP_LISTEN of include/net/tcp_states.h, as /proc/net/tcp prints it
MAX_COMMAND = 80


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


def _listeners(port: int, proc: Path) -> dict[str, int]:
    """Map the inode of every socket that listens on ``port`` to its uid."""
    found: dict[str, int] = {}
    for table in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / table).read_text().splitlines()[1:]
        except OSError:  # no IPv6, or not Linux
            continue
        # sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode ...
        for columns in map(str.split, lines):
            if columns[3] == LISTEN and int(columns[1].rpartition(":")[2], 16) == port:
                found[columns[9]] = int(columns[7])
    return found


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
