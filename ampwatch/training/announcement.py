"""The address of the page, once, where a person sees it."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING

from ampwatch.guard import Suppress

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger("ampwatch")

_announced: set[tuple[int, str]] = set()
"""Process and topic: a cell of a notebook that is run again has nothing new to tell."""


def announce(words: str, topic: str = "", *, on_terminal: str = "") -> None:
    """Say ``words`` once in this process: in the log if that takes them, else on stderr.

    A program that has not set up logging, or only from warnings on, would never show its address
    in the log. Who wants none sets a level above ``INFO`` for the logger ``ampwatch``.

    Args:
        words: One line.
        topic: What they are about: of one topic the first words are the only ones. By default the words.
        on_terminal: Printed instead where stderr is a terminal, which keeps nothing: has what others
            must not read. Logs, and the output of a notebook, are files that are handed on.
    """
    topic = topic or words
    if (os.getpid(), topic) in _announced or not _is_wanted():
        return
    _announced.add((os.getpid(), topic))
    # A log handler is user code, and stderr may be closed.
    with Suppress(Exception):
        if logger.isEnabledFor(logging.INFO) and any(map(_takes_info, _handlers())):
            logger.info("%s", words)
        else:
            text = on_terminal if on_terminal and _is_terminal() else words
            print(f"ampwatch: {text}", file=sys.stderr, flush=True)  # noqa: T201 - for a person, not for a log


def _handlers() -> Iterator[logging.Handler]:
    """Yield the handlers that a record of the logger reaches."""
    place: logging.Logger | None = logger
    while place is not None:
        yield from place.handlers
        place = place.parent if place.propagate else None


def _is_terminal() -> bool:
    # What a program has put in place of stderr may have no more than a ``write``.
    isatty = getattr(sys.stderr, "isatty", None)
    return isatty is not None and bool(isatty())


def _takes_info(handler: logging.Handler) -> bool:
    return handler.level <= logging.INFO and not isinstance(handler, logging.NullHandler)


def _is_wanted() -> bool:
    """Whether nobody has asked the logger of ampwatch for less."""
    return not logger.disabled and logger.level <= logging.INFO
