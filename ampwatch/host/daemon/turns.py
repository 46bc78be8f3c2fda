"""The order in which requests that are there at the same time are looked at."""

from __future__ import annotations

import asyncio
import heapq
from itertools import count


class Turns:
    """Lets one request go on in each pass of the loop, that of the client first who was answered longest ago.

    A thousand clients that always have a next request would otherwise all have their turn in each
    pass, and whoever comes for one scrape needs several passes.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = count()
        self._is_due = False

    async def wait(self, answered: float) -> None:
        """Wait for a turn.

        Args:
            answered: Time of the loop at which this client was answered last, 0 if it never was. Unit: s.
        """
        turn = asyncio.get_running_loop().create_future()
        # By number where two have waited equally long: futures cannot be compared.
        heapq.heappush(self._waiting, (answered, next(self._numbers), turn))
        if not self._is_due:
            self._begin()
        await turn

    def _begin(self) -> None:
        self._is_due = True
        asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._is_due = False
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():  # a client that has left does not take anybody's
                turn.set_result(None)
                break
        if self._waiting:
            self._begin()
