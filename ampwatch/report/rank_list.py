"""The ranks of a machine in a row each, as the daemon hands them to the terminal.

One type for both ends: the daemon encodes it, ``ampwatch top`` decodes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, field

from ampwatch.report.incidents import Incident  # noqa: TC001 - read by msgspec, like the next
from ampwatch.report.verdict import Level  # noqa: TC001

if TYPE_CHECKING:
    from collections.abc import Callable

Lines = tuple[str, str, str, str]
"""A verdict in four lines (``headline.Headline.lines``)."""


class RankRow(Struct, frozen=True, kw_only=True):
    """One rank.

    Attributes:
        run: Label of its run.
        rank: Global rank.
        world_size: Ranks of the run.
        is_shown: Whether the run's verdict is about this rank.
        level: How it goes.
        state: State of its process.
        host: Where it runs.
        user: Who runs it.
        step: Its newest step; -1 before the first.
        headline: The verdict on it.
        figures: Value and note of each figure that is known, by its title.
        phases: The largest phases of a step, in a line; empty if none is known.
        scale: Loss scale at the end of each of the newest spans of steps; ``None`` where not known.
        loss: Mean loss of these, likewise.
        seconds: Mean time of a step of these, likewise. Unit: s.
        gpu: The GPU it computes on, in a few words; empty if that is not known.
        incidents: Its findings, each root with what it explains.
        links: Addresses about its run, by what is there (``links.Links.of_run``).
    """

    run: str
    rank: int
    world_size: int
    is_shown: bool = field(name="is_speaker")
    level: Level
    state: str
    host: str
    user: str
    step: int
    headline: Lines
    figures: dict[str, tuple[str, str]]
    phases: str
    scale: list[float | None]
    loss: list[float | None]
    seconds: list[float | None]
    gpu: str
    incidents: list[Incident] = field(name="stories")
    links: dict[str, str]

    @property
    def identity(self) -> tuple[str, int]:
        """Run and rank, by which it is known from one list to the next."""
        return self.run, self.rank

    @property
    def name(self) -> str:
        """Its run, and which rank of several it is."""
        return self.run if self.world_size <= 1 else f"{self.run} rank {self.rank}"


class RunRow(Struct, frozen=True):
    """One run: its label, how it goes, and the verdict on it."""

    run: str
    level: Level
    headline: Lines


class RankList(Struct, frozen=True):
    """All ranks that a daemon shows.

    Attributes:
        version: Of the daemon.
        now: Unix time. Unit: s.
        runs: The runs.
        ranks: Their ranks.
    """

    version: str
    now: float
    runs: list[RunRow]
    ranks: list[RankRow]


def packed(ranks: RankList) -> bytes:
    """Return a list as the daemon sends it."""
    return msgspec.msgpack.encode(ranks)


def unpacked(body: bytes, clean: Callable[[str], str] = str) -> RankList:
    """Return the list that a daemon has sent.

    Args:
        body: What it has sent.
        clean: Makes of each text one that can be shown.

    Raises:
        msgspec.MsgspecError: If it is no list of this release.
    """
    return msgspec.convert(_cleaned(msgspec.msgpack.decode(body), clean), RankList)


def _cleaned(value: Any, clean: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {_cleaned(name, clean): _cleaned(each, clean) for name, each in value.items()}
    return [_cleaned(each, clean) for each in value] if isinstance(value, list) else value
