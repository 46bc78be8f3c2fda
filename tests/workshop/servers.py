"""Servers that answer in this process while a test asks them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import BaseServer
from typing import Any


class Quiet:
    """Part of a handler of requests: it logs none."""

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def answering(server: Any) -> Iterator[str]:
    """Have a server answer in a thread of its own until the block ends; yield its address."""
    # Those of the standard library would be asked to end twice a second only.
    often = {"poll_interval": 0.02} if isinstance(server, BaseServer) else {}
    thread = threading.Thread(target=server.serve_forever, kwargs=often)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
