"""Messages of ampwatch in a program that has set up no logging."""

from __future__ import annotations

import logging
import sys


class LastResort(logging.StreamHandler):  # type: ignore[type-arg] # not before Python 3.11
    """Writes as Python does for a program that has set up no logging, and names ampwatch.

    Python writes the bare message then, and nothing else says whose it is.
    """

    def __init__(self) -> None:
        super().__init__()
        self.setLevel(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record that no other handler gets."""
        if logging.lastResort is None:
            return
        place: logging.Logger | None = logging.getLogger(record.name)
        while place is not None:
            if any(handler is not self for handler in place.handlers):
                return
            place = place.parent if place.propagate else None
        self.stream = sys.stderr  # as it is now
        super().emit(record)

    def format(self, record: logging.LogRecord) -> str:
        """Return the message with the name, if it does not begin with that."""
        text = super().format(record)
        return text if text.startswith("ampwatch") else f"ampwatch: {text}"
