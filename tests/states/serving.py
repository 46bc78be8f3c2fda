"""The page of a scripted state: a daemon whose clock stands where somebody looks, and its address."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ampwatch.host.daemon.server import Server
from ampwatch.host.daemon.site import Site
from ampwatch.host.daemon.web_config import WebConfig
from ampwatch.host.page.broadcast import Broadcast
from ampwatch.host.page.page import Feed
from tests.host.daemon.parts import OPEN
from tests.states.played import Daemon
from tests.states.table import Row
from tests.workshop.servers import answering


@contextmanager
def served(daemon: Daemon) -> Iterator[str]:
    """Serve what a daemon has read; yield its address."""
    site = Site(daemon.fleet)
    # That of the site has the clock of the machine.
    site._broadcast = Broadcast(Feed(daemon.fleet, daemon.clock))
    server = Server("127.0.0.1", 0, site, WebConfig(), frozenset(), OPEN)
    with answering(server) as address:
        yield f"{address}/"


def address_of(site: str, row: Row) -> str:
    """Return the address of the run of ``row``, and of the rank that its state comes from."""
    rank = 0 if row.cause is None else row.cause[0]
    return f"{site}#run={row.run}&rank={rank}"
