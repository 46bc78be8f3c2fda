"""Who is looked at first where many ask at once."""

import asyncio

from ampwatch.host.daemon.lanes import Turns


async def order_of(*answered: float, leaving: tuple[int, ...] = ()) -> list[list[int]]:
    """Clients, by number, that were let go on in each pass of the loop."""
    turns = Turns()
    passes: list[list[int]] = []

    async def client(number: int) -> None:
        await turns.wait(answered[number])
        passes[-1].append(number)

    giving = asyncio.ensure_future(turns.run())
    clients = [asyncio.ensure_future(client(number)) for number in range(len(answered))]
    for _ in range(len(answered) + 3):
        passes.append([])
        await asyncio.sleep(0)
        for number in leaving:
            clients[number].cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    giving.cancel()
    return [let_go for let_go in passes if let_go]


def test_whoever_was_answered_longest_ago_is_first_and_alone_in_its_pass() -> None:
    """A scrape comes every ten seconds; those that have just been answered can wait."""
    assert asyncio.run(order_of(9.0, 9.5, 3.0, 0.0, 9.0)) == [[3], [2], [0], [4], [1]]


def test_a_client_that_leaves_takes_nobodys_turn() -> None:
    """It is cut, or its time is over."""
    assert asyncio.run(order_of(2.0, 1.0, 3.0, leaving=(1,))) == [[0], [2]]
