"""Keeps the records of a process that died without a word, or hangs.

Its own report it may have written when it made a finding; what came after that is in the
ring, which shared memory loses with the machine or the container.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ampwatch.wire.blackbox.salvage import forget_silence, salvage
from ampwatch.wire.records import RunState

if TYPE_CHECKING:
    from pathlib import Path

    from ampwatch.settings import Settings
    from ampwatch.wire.records import RunIdentity

logger = logging.getLogger(__name__)


class Rescue:
    """Writes reports in the place of processes that cannot.

    Args:
        settings: Where reports are, and how many.

    Attributes:
        failures: How often one could not be written.

    Cost:
        Reading a ring whole: 0.1 s, once for each process that dies or falls silent.
    """

    def __init__(self, settings: Settings) -> None:
        self.failures = 0
        self._settings = settings

    def died(self, path: Path, identity: RunIdentity) -> None:
        """Write the report of a writer that is gone and has not said why. Never raises."""
        self._salvage(path, identity, RunState.FAILED)

    def fell_silent(self, path: Path, identity: RunIdentity) -> None:
        """Write the report of a writer that lives, but has not ended a step for long. Never raises."""
        self._salvage(path, identity, RunState.STALE)

    def spoke_again(self, _path: Path, identity: RunIdentity) -> None:
        """Remove the report of a writer that has ended a step after all, or has said that it ends."""
        try:
            forget_silence(identity, self._settings)
        except OSError as error:
            logger.warning("the report of run %s cannot be removed: %s", identity.run, error)

    def _salvage(self, path: Path, identity: RunIdentity, state: RunState) -> None:
        try:
            salvage(path, identity, state, self._settings)
        except Exception as error:  # noqa: BLE001 - a boundary, see below
            # The bytes of a ring are another process's, of any release, torn where it was killed:
            # no list of errors is complete, and one run must not end the page of all others.
            self.failures += 1
            text = "expected to write the report of run %s (%s), got: %s"
            logger.warning(text, identity.run, state.value, error)
