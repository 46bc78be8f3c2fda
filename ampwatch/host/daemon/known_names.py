"""Keeps on disk whose the names of runs are, so that a daemon that is started again knows them."""

from __future__ import annotations

import json
import logging
import os
import time
from typing import TYPE_CHECKING

from ampwatch.wire.ring.text import parse_json

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ampwatch.host.fleet.owners import NameOwners

NAMES_FILE = "runs.json"

SAVE_SECONDS = 3600.0
"""Time after which it is written though no owner has changed: when a run was there last has. Unit: s."""

logger = logging.getLogger(__name__)


class KnownNames:
    """The file of the owners of names; it is read when this is made.

    Args:
        directory: The runtime directory, which lets nobody else in.
        owners: The owners.
        clock: Monotonic time. Unit: s.
    """

    def __init__(
        self, directory: Path, owners: NameOwners, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = directory / NAMES_FILE
        self._owners = owners
        self._clock = clock
        self._saved = owners.version
        self._due_s = clock() + SAVE_SECONDS
        try:
            owners.load(parse_json(self._path.read_bytes()))
        except (OSError, ValueError):  # none yet, or half of one
            return

    def update(self) -> None:
        """Write the file if there is something new. Trouble is logged, and tried again in an hour."""
        now = self._clock()
        if self._owners.version != self._saved or now >= self._due_s:
            self._saved, self._due_s = self._owners.version, now + SAVE_SECONDS
            self.save()

    def save(self) -> None:
        """Write the file."""
        # Whole under another name first: a daemon that is killed meanwhile leaves the old one.
        draft = self._path.with_suffix(".new")
        try:
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                json.dump(self._owners.dump(), file)
            draft.replace(self._path)
        except OSError as error:
            logger.warning("whose the names of runs are cannot be kept in %s: %s", draft, error)
