"""The user's exception in words, whatever it does when it is asked."""

from __future__ import annotations

import gc
import weakref

from ampwatch.wire.blackbox.exception import MAX_CHARACTERS, MAX_WORDS, traceback_of, words_of


class Mute(Exception):  # noqa: N818 - it says nothing
    def __str__(self) -> str:
        raise ZeroDivisionError


class Batch:
    """Something large that a frame holds."""


def raised(error: BaseException) -> BaseException:
    try:
        raise error  # noqa: TRY301 - it is only to be caught
    except BaseException as caught:  # noqa: BLE001 - that is the purpose
        return caught


def test_the_line_that_raised_is_in_it() -> None:
    """The text is as Python would print it."""
    text = traceback_of(raised(ValueError("no")))

    assert text.startswith("Traceback (most recent call last):\n")
    assert "raise error" in text
    assert text.endswith("ValueError: no\n")


def test_an_ordinary_end_has_none() -> None:
    """Neither has one that somebody asked for."""
    assert [traceback_of(e) for e in (None, SystemExit(1), KeyboardInterrupt())] == ["", "", ""]


def test_an_exception_that_cannot_say_its_text_is_named() -> None:
    """Nothing is raised in the place of the user's own."""
    assert words_of(Mute()) == "Mute: (its text could not be had: ZeroDivisionError)"
    assert "Mute" in traceback_of(raised(Mute()))


def test_a_long_one_is_cut_at_its_beginning() -> None:
    """The end of a long text is kept: it says what happened."""
    text = traceback_of(raised(ValueError("x" * 100_000 + "the end")))

    assert len(text) < MAX_CHARACTERS + 10
    assert text.endswith("the end\n")
    assert len(words_of(ValueError("x" * 100_000))) < MAX_WORDS + 10


def test_nothing_of_the_frames_is_kept() -> None:
    """They may hold gigabytes."""

    def train() -> None:
        batch = Batch()
        kept.append(weakref.ref(batch))
        raise ValueError

    kept: list[weakref.ref[Batch]] = []
    try:
        train()
    except ValueError as error:
        text = traceback_of(error)
    gc.collect()

    assert "in train" in text
    assert kept[0]() is None
