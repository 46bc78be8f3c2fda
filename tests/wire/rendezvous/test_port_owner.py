"""Holders of a port."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

from ampwatch.wire.rendezvous.port_owner import PortOwner, port_owner

if TYPE_CHECKING:
    from pathlib import Path

LISTENER = """
import socket, sys
s = socket.create_server(("127.0.0.1", 0))
print(s.getsockname()[1], flush=True)
sys.stdin.read()
"""


def test_a_listening_child_process_is_named_by_pid_uid_and_program() -> None:
    """The owner of a port is the very process that listens on it."""
    with subprocess.Popen(
        [sys.executable, "-c", LISTENER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        port = int(child.stdout.readline())

        owner = port_owner(port)
        child.stdin.close()

    assert owner is not None
    assert (owner.pid, owner.uid) == (child.pid, os.geteuid())
    assert owner.command.startswith(sys.executable)
    assert f"pid {child.pid}" in str(owner)


def test_an_ipv6_listener_is_found_as_well() -> None:
    """Sockets of /proc/net/tcp6 count."""
    if not socket.has_ipv6:
        return
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        assert port_owner(server.getsockname()[1]).pid == os.getpid()


def test_a_bound_port_that_nobody_listens_on_has_no_owner() -> None:
    """Only listeners count: a port that was let go is free."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    assert port_owner(port) is None


def test_an_invisible_process_is_reported_by_its_user_alone(tmp_path: Path) -> None:
    """Without permission to look into a process its uid is still told."""
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "tcp").write_text(
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 0100007F:2AA5 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1234        0 777 1 0 100 0 0 10 0\n"
        "   1: 0100007F:2AA5 0100007F:0001 01 00000000:00000000 00:00000000 00000000  9999        0 778 1 0 100 0 0 10 0\n"
    )

    owner = port_owner(0x2AA5, proc=tmp_path)

    assert owner == PortOwner(uid=1234)
    assert "uid 1234" in str(owner)
