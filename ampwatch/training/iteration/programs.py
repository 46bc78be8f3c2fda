"""Programs that this process has run to their end before: their next fit needs no opening.

A search for hyper-parameters fits one program again and again, for some dozen iterations each. The
opening, and what is sampled in advance of the budget, would be most of what these take. It
shows what the program does, and that is the same each time: so a program has one opening in a
process, in its first fit, or spread over several that are shorter than it.

A program is known by evidence: the lines of the user's code that are running when the first iteration
ends, the code there, the modules of the models by name and class, and the code of their ``forward``.
What runs when the monitor is made has to do for the first iteration itself. A fit in which anything
went wrong counts for nothing, and what is known of its program is forgotten. Whatever goes wrong in a
later one has it looked at more closely, as ever. Of a run of several ranks each fit has its opening:
what goes wrong on one rank alone would have it sample in other steps than the others.
"""

from __future__ import annotations

from hashlib import blake2b
from itertools import islice
from types import CodeType
from typing import TYPE_CHECKING, Any

from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.hooks.sources import frames, is_of_user
from ampwatch.training.iteration.governor import OPENING
from ampwatch.wire.records import Severity

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ampwatch.diagnosis.book import FindingBook
    from ampwatch.training.hooks.events import IterationOpened
    from ampwatch.training.iteration.context import Context

MAX_PROGRAMS = 256
"""Programs that are remembered; then all are forgotten, and looked at again."""

MAX_FRAMES = 64
"""Frames of the user's that tell a program from another."""

_seen: dict[str, int] = {}
"""By program, how many iterations of its fits were looked at and found well."""


class Programs(Sensor):
    """Shortens the opening of a fit whose program is known in this process.

    It stands before the planner, so that the second iteration is planned accordingly.

    Args:
        context: Shared parts of the training.
        book: Says what went wrong.

    Cost: a walk over the modules and the frames of the calling thread, once in a fit.
    """

    name = "programs"

    def __init__(self, context: Context, book: FindingBook) -> None:
        self._names = context.names
        # The laboratory looks at more: an opening without it is none to it.
        self._is_lab = context.settings.lab
        self._governor = context.governor
        self._book = book
        self._set_up = self._program = ""
        self._num_probed = 0

    def installed(self) -> None:
        """Find out how large the model is, and from where the monitor is made whether to look at the first iteration."""
        self._set_up = self._is_lab + program_of(self._names.modules())
        self._governor.size(sum(1 for _ in self._names.parameters()))
        if _seen.get(self._set_up, 0) >= OPENING:
            self._governor.shorten_opening(OPENING)

    def iteration_opened(self, _event: IterationOpened) -> None:
        """Find out after the first iteration which program this is; count those that are looked at."""
        if not self._program:
            self._program = self._is_lab + program_of(self._names.modules())
            self._governor.shorten_opening(_seen.get(self._program, 0))
        self._num_probed += 1
        self.is_dormant = not self._governor.is_opening

    def removed(self) -> None:
        """Remember the program, or forget it where something went wrong."""
        if not self._program:
            return
        is_well = all(finding.severity is Severity.INFO for finding in self._book.findings)
        if len(_seen) >= MAX_PROGRAMS:
            _seen.clear()
        for program in (self._set_up, self._program):
            seen = _seen.pop(program, 0)
            if is_well:
                _seen[program] = min(seen + self._num_probed, OPENING)
        self._program = ""
        self._num_probed = 0
        self.is_dormant = False


def forget() -> None:
    """Know no program any more."""
    _seen.clear()


def program_of(modules: Iterable[tuple[str, Any]]) -> str:
    """Return a digest of the code that the calling thread is in, and of the modules it trains.

    Args:
        modules: Modules by name.
    """
    digest = blake2b(digest_size=16)
    for frame in islice(filter(is_of_user, frames()), MAX_FRAMES):
        digest.update(
            f"{frame.f_code.co_filename}:{frame.f_lineno}\n".encode(errors="backslashreplace")
        )
        _add(digest, frame.f_code)
    for name, module in modules:
        kind = type(module)
        digest.update(
            f"{name} {kind.__module__}.{kind.__qualname__}\n".encode(errors="backslashreplace")
        )
        forward = getattr(getattr(kind, "forward", None), "__code__", None)
        if forward is not None:
            _add(digest, forward)
    return digest.hexdigest()


def _add(digest: Any, code: CodeType) -> None:
    """Add what a function does to a digest: a cell of a notebook keeps its name when it is edited."""
    digest.update(code.co_code)
    digest.update(repr((code.co_names, code.co_varnames)).encode())
    # Of code within it the representation has an address, which is another one each time.
    digest.update(repr([c for c in code.co_consts if not isinstance(c, CodeType)]).encode())
