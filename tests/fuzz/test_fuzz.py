"""Every kind of input from outside: what once showed a defect, and some hundred new mutants."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.fuzz.engine import attempt, corpus, load, mutant, search, targets

KEPT = [(name, path) for name in targets() for path in corpus(name)]
MANY = 400


@pytest.mark.parametrize(("name", "path"), KEPT, ids=lambda value: getattr(value, "name", value))
def test_what_once_showed_a_defect_is_refused_or_read(name: str, path: Path) -> None:
    """Crashes become corpus."""
    _, finding = attempt(load(name), path.read_bytes())

    assert finding is None, finding.error


@pytest.mark.nightly
@pytest.mark.parametrize("name", targets())
def test_mutants_are_refused_in_words_or_read(name: str) -> None:
    """Within bounded time and memory; `make fuzz` does it for hours."""
    outcome = search(name, seed=1, executions=getattr(load(name), "MANY", MANY))

    assert [finding.error for finding in outcome.findings.values()] == []
    assert outcome.executions >= len(load(name).SEEDS)


def test_the_search_finds_a_defect_and_makes_it_small() -> None:
    """Of a reader that goes wrong at one word."""

    class Reader:
        SEEDS = (b"a harmless line of some length, and a value of 1234567",)

        @staticmethod
        def one(data: bytes) -> None:
            if b"9" * 30 in data:
                raise ZeroDivisionError

    from tests.fuzz import engine  # noqa: PLC0415 - its function is exchanged

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "load", lambda _: Reader)
        outcome = search("reader", seed=3, executions=3000)

    (finding,) = outcome.findings.values()
    assert finding.where.startswith("ZeroDivisionError")
    assert finding.data == b"9" * 30


@pytest.mark.nightly
def test_an_input_that_takes_too_long_or_too_much_is_a_defect() -> None:
    """Bounded by the time of a processor, and by the memory of the process."""

    class Reader:
        @staticmethod
        def one(data: bytes) -> None:
            if data == b"long":
                while True:
                    pass
            bytearray(400 << 20)[:: 1 << 10] = b"x" * (400 << 10)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.fuzz.engine.MAX_CPU_SECONDS", 0.05)
        for data in (b"long", b"much"):
            _, finding = attempt(Reader, data)
            assert finding is not None
            assert finding.where.startswith("TooMuchError")
            patch.setattr("tests.fuzz.engine.MAX_CPU_SECONDS", 5.0)


def test_a_seed_makes_the_same_mutants_again() -> None:
    """A run can be repeated."""
    made = [
        [mutant(random.Random(4), [b"abc 12", b"x"], [b"word"]) for _ in range(20)]
        for _ in range(2)
    ]

    assert made[0] == made[1]
