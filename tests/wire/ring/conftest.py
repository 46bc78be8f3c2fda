"""A place for rings that is nobody's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ampwatch.wire.ring import RingReader, RingWriter
from tests.wire.ring.samples import END, IDENTITY

MakeWriter = Callable[..., RingWriter]
OpenReader = Callable[[Path], RingReader]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "ring-files"


@pytest.fixture
def make_writer(directory: Path) -> Iterator[MakeWriter]:
    """Makes writers of small rings, and closes them."""
    made: list[RingWriter] = []

    def make(slots: int = 64) -> RingWriter:
        made.append(RingWriter.create([directory], IDENTITY, slots=slots))
        return made[-1]

    yield make
    for writer in made:
        writer.close(END, keep=False)


@pytest.fixture
def open_reader() -> Iterator[OpenReader]:
    """Opens readers, and closes them."""
    opened: list[RingReader] = []

    def open_one(path: Path) -> RingReader:
        opened.append(RingReader(path))
        return opened[-1]

    yield open_one
    for reader in opened:
        reader.close()
