"""Upgrades: what releases have written is read, or refused in words that say who is to be upgraded."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path

import pytest

from ampwatch.cli import main
from ampwatch.errors import RingError
from ampwatch.host.daemon.watcher import RingWatcher
from ampwatch.host.fleet import Fleet
from ampwatch.settings import Settings
from ampwatch.wire.blackbox import files
from ampwatch.wire.ring import RingReader, layout, lock
from ampwatch.wire.ring.encoding import encode
from tests.fuzz.rings import mutate, one
from tests.wire.corpus import FILES, RECORDS, REPORT, RING, ring
from tests.workshop.boxes import box

OLDER = range(1, layout.LAYOUT)
NEWER = layout.LAYOUT + 1
KEPT = Path(__file__).parents[1] / "fuzz" / "corpus" / "rings"


def refusal(version: int) -> str:
    """Every word of it, but for the path that comes before."""
    age, behind = ("an older", "training") if version < NEWER else ("a newer", "daemon")
    return (
        f"expected a ring of layout {layout.LAYOUT}, got layout {version} of {age} ampwatch;"
        " training and daemon need the same version: upgrade that of the"
        f" {behind} and start it again"
    )


def ring_of(version: int, directory: Path) -> Path:
    """Return a private copy of a ring that a release of this layout has written."""
    directory.mkdir(mode=0o700, exist_ok=True)
    path = directory / f"of-{version}.ring"
    shutil.copyfile(FILES / f"layout-{min(version, layout.LAYOUT)}.ring", path)
    if version == NEWER:  # all that is known of one to come
        data = bytearray(path.read_bytes())
        data[8:10] = version.to_bytes(2, "little")
        path.write_bytes(data)
    path.chmod(0o600)
    return path


def test_there_is_a_ring_and_a_report_of_each_layout_with_every_kind_of_record() -> None:
    """A new layout or kind comes with its files: python -m tests.wire.corpus."""
    names = {path.name for path in FILES.iterdir()}

    assert {f"layout-{version}.ring" for version in range(1, layout.LAYOUT + 1)} <= names
    assert RING.name in names
    assert REPORT.name in names
    assert {encode(record, 64 * 240)[0] for record in RECORDS} == set(layout.RecordKind)
    assert all(path.stat().st_size < 65536 for path in FILES.iterdir())


def test_the_ring_of_this_layout_is_read_to_the_letter() -> None:
    """A daemon of tomorrow reads a training of today, as long as the layout is the same."""
    reader = RingReader(RING)

    assert tuple(reader.poll()) == RECORDS
    assert (reader.lost, reader.dropped, reader.writer_alive()) == (0, 0, False)
    reader.close()


def test_a_ring_is_written_today_as_it_was_when_its_layout_was_new() -> None:
    """Else releases of one layout misread each other. What is compressed may differ by its library."""
    compressed = (layout.RecordKind.CENSUS, layout.RecordKind.WINDOW)
    then, now = RING.read_bytes(), ring()

    assert len(then) == len(now)
    assert then[: layout.HEADER_SIZE] == now[: layout.HEADER_SIZE]
    for place in range(layout.HEADER_SIZE, len(then), layout.SLOT_SIZE):
        if then[place + 4] not in compressed:
            assert then[place : place + layout.SLOT_SIZE] == now[place : place + layout.SLOT_SIZE]


@pytest.fixture
def alive() -> Iterator[Callable[[Path], None]]:
    """Hold the lock of a ring, as its writer does."""
    with ExitStack() as held:

        def hold(path: Path) -> None:
            lock.hold(held.enter_context(path.open("r+b")).fileno())

        yield hold


@pytest.mark.parametrize("version", [*OLDER, NEWER])
def test_a_ring_of_another_layout_is_refused_by_reader_and_daemon(
    version: int, tmp_path: Path, alive: Callable[[Path], None]
) -> None:
    """The page and ampwatch_rings_unreadable show it while it is written; the file stays."""
    path = ring_of(version, tmp_path / "rings")
    with pytest.raises(RingError) as refused:
        RingReader(path)
    alive(path)  # not before: a process that closes a file lets go of its lock
    fleet = Fleet(Settings())
    watcher = RingWatcher(fleet, lambda: [path.parent], grace_seconds=600)
    watcher.poll()
    watcher.close()

    assert str(refused.value) == f"cannot read ring {str(path)!r}: {refusal(version)}"
    assert fleet.problems == {str(path): str(refused.value)}
    assert fleet.ranks() == []
    assert path.exists()


@pytest.mark.parametrize("version", [OLDER[-1], NEWER])
@pytest.mark.parametrize("by_path", [True, False])
def test_ampwatch_report_says_why_it_cannot_read_one(
    version: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    alive: Callable[[Path], None],
    *,
    by_path: bool,
) -> None:
    """Asked for the file, or for whatever there is that lives."""
    path = ring_of(version, tmp_path / "rings")
    if not by_path:
        alive(path)
    monkeypatch.setenv("AMPWATCH_RING_DIR", str(path.parent))
    monkeypatch.setenv("AMPWATCH_REPORT_DIR", str(tmp_path / "none"))
    monkeypatch.setenv("AMPWATCH_RUNTIME_DIR", str(tmp_path))

    status = main(["report", str(path)] if by_path else ["report"])

    assert status == 1
    assert refusal(version) in capsys.readouterr().err


def test_the_report_of_this_release_is_read_to_the_letter() -> None:
    """With NaN and infinities, which equal themselves as text only."""
    (read,) = files.read(REPORT)

    assert repr(read) == repr(box())


@pytest.mark.parametrize("seed", range(2))
def test_hostile_changes_of_a_ring_are_read_or_refused(
    seed: int, keep: Callable[[bytes], None]
) -> None:
    """A few hundred a run: slots with right checksums and wrong contents above all."""
    source = random.Random(seed)
    golden = RING.read_bytes()
    for _ in range(150):
        data = mutate(golden, source)
        try:
            one(data)
        except Exception:
            keep(data)
            raise


@pytest.fixture
def keep() -> Callable[[bytes], None]:
    """Keeps what has shown a defect, so that every later run of the fuzzer begins with it."""

    def keep(data: bytes) -> None:
        KEPT.mkdir(parents=True, exist_ok=True)
        (KEPT / blake2b(data, digest_size=8).hexdigest()).write_bytes(data)

    return keep
