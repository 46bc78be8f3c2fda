"""The writing end: never blocks, never raises, never grows, and says what it dropped."""

from __future__ import annotations

import errno
import os
import signal
import stat
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from ampwatch.errors import RingError
from ampwatch.wire.records import EndRecord, FactsRecord, Record, RunState
from ampwatch.wire.ring import RingReader, RingWriter
from tests.wire.ring.conftest import MakeWriter, OpenReader
from tests.wire.ring.samples import (
    END,
    FACTS,
    IDENTITY,
    changed,
    finding,
    message,
    optimizer,
    step,
)


def test_the_file_is_private_whatever_the_umask(directory: Path) -> None:
    """0600 in a directory of 0700: losses and module names are nobody else's business."""
    for mask in (0o000, 0o777):
        before = os.umask(mask)
        try:
            writer = RingWriter.create([directory], IDENTITY, slots=64)
        finally:
            os.umask(before)

        assert stat.S_IMODE(writer.path.stat().st_mode) == 0o600
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        writer.close(END, keep=False)


def test_the_name_tells_run_rank_and_pid_and_cannot_leave_the_directory(directory: Path) -> None:
    """A run called ../../etc/passwd is a file name like any other."""
    writer = RingWriter.create([directory], replace(IDENTITY, run="../../etc/pass wd"), slots=64)

    assert writer.path.parent == directory
    assert writer.path.name.startswith(f"______etc_pass_wd-3-{os.getpid()}-")
    assert writer.path.suffix == ".ring"
    writer.close(END, keep=False)


def test_two_writers_share_a_directory(make_writer: MakeWriter, open_reader: OpenReader) -> None:
    """The ranks of one machine, or two runs of one name: each has a file of its own."""
    first, second = make_writer(), make_writer()
    first.put(step(1))
    second.put(step(2))

    assert first.path != second.path
    assert open_reader(first.path).poll() == [step(1)]
    assert open_reader(second.path).poll() == [step(2)]


@pytest.mark.parametrize(
    ("blocks", "slots"),
    [(65536, 8192), (65535, 8192), (16384, 4080), (1024, 240), (16, 64), (0, 8192)],
)
def test_a_ring_takes_a_64th_of_a_small_file_system(
    blocks: int, slots: int, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The 64 MiB of a container hold eight ranks and what crashed before; 0 is no limit."""
    status = SimpleNamespace(f_frsize=4096, f_blocks=blocks)
    monkeypatch.setattr(os, "statvfs", lambda _: status)

    writer = RingWriter.create([directory], IDENTITY, slots=8192)

    assert writer.path.stat().st_size == 4096 + 256 * slots
    for index in range(slots + 1):
        writer.put(step(index))
    reader = RingReader(writer.path)
    assert len(reader.poll()) == slots
    reader.close()
    writer.close(END, keep=False)


@pytest.mark.parametrize(
    ("call", "number"),
    [("posix_fallocate", errno.ENOSPC), ("open", errno.EROFS), ("fchmod", errno.EPERM)],
)
def test_a_failing_call_leaves_nothing_and_the_next_place_is_used(
    call: str, number: int, tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full shared memory is found here, and not as SIGBUS in the training loop; so is one that is read-only."""
    real = getattr(os, call)
    refusals = iter([OSError(number, os.strerror(number))])

    def refuse_once(*arguments: Any) -> Any:
        for error in refusals:
            raise error
        return real(*arguments)

    monkeypatch.setattr(os, call, refuse_once)
    writer = RingWriter.create([tmp_path / "first", directory], IDENTITY, slots=64)

    first = tmp_path / "first"
    assert list(first.iterdir()) == []
    assert writer.path.parent == directory
    assert writer.fell_back.startswith(f"the ring is in {directory}: {first} could not be used (")
    assert os.strerror(number) in writer.fell_back
    writer.close(END, keep=False)


def test_no_place_at_all_is_an_error_that_names_each_and_what_to_set(tmp_path: Path) -> None:
    """Raised at set-up, where it can be shown."""
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path)

    with pytest.raises(RingError, match=r"(?s)got none: .*/file .*/link .*AMPWATCH_RING_DIR"):
        RingWriter.create([tmp_path / "file", tmp_path / "link"], IDENTITY, slots=64)


def test_the_second_place_is_not_touched_while_the_first_one_works(
    tmp_path: Path, directory: Path
) -> None:
    """It may be one that cannot be had at all."""
    writer = RingWriter.create([directory, tmp_path / "second"], IDENTITY, slots=64)

    assert not (tmp_path / "second").exists()
    assert writer.fell_back == ""
    writer.close(END, keep=False)


def test_a_directory_that_others_can_enter_takes_no_ring(tmp_path: Path, directory: Path) -> None:
    """AMPWATCH_RING_DIR=/dev/shm: refused with the mode, which stays what it was."""
    (tmp_path / "shm").mkdir()
    (tmp_path / "shm").chmod(0o1777)

    writer = RingWriter.create([tmp_path / "shm", directory], IDENTITY, slots=64)

    assert "its mode is drwxrwxrwt" in writer.fell_back
    assert stat.S_IMODE((tmp_path / "shm").stat().st_mode) == 0o1777
    writer.close(END, keep=False)


@pytest.mark.parametrize("run", ["", "a\nb", "x" * 300, 7])
def test_an_identity_that_no_reader_accepts_is_refused(directory: Path, run: str) -> None:
    """Better at set-up than a ring that stays unread."""
    with pytest.raises(RingError, match="cannot describe the run"):
        RingWriter.create([directory], replace(IDENTITY, run=run), slots=64)


@pytest.mark.parametrize("slots", [0, 63, 262145, -1])
def test_too_few_or_too_many_slots_are_refused(directory: Path, slots: int) -> None:
    """The message names the bounds, the value and the setting."""
    expected = f"expected 64 to 262144 slots, got {slots}; set ring_slots"
    with pytest.raises(RingError, match=expected):
        RingWriter.create([directory], IDENTITY, slots=slots)


class _Interrupting(dict[str, str]):
    """Facts during which the user presses Ctrl-C."""

    def items(self) -> object:  # type: ignore[override]
        raise KeyboardInterrupt


class _Unwilling:
    """A value that cannot be a number, as a tensor on the meta device."""

    def __float__(self) -> float:
        message = "Tensor.item() cannot be called on meta tensors"
        raise RuntimeError(message)


@pytest.mark.parametrize(
    "broken",
    [
        None,
        "text",
        changed(step(1), loss="nan"),
        changed(step(1), loss=_Unwilling()),
        changed(step(1), step=1.5),
        changed(step(1), step=2**64),
        changed(optimizer(1), index=256),
        changed(optimizer(1), total_skipped=(1, 2)),
        changed(optimizer(1), total_skipped=None),
        FactsRecord({"a": object()}),  # type: ignore[dict-item]
        FactsRecord({(1, 2): "a"}),  # type: ignore[dict-item]
        EndRecord(RunState.FAILED, "", 10**16000),
    ],
)
def test_a_broken_record_is_dropped_and_counted_and_nothing_else_suffers(
    broken: object, make_writer: MakeWriter, open_reader: OpenReader
) -> None:
    """A sensor's mistake never reaches the training loop, and the reader is told."""
    writer = make_writer()
    writer.put(step(1))
    writer.put(broken)  # type: ignore[arg-type]
    writer.put(step(2))

    reader = open_reader(writer.path)

    assert reader.poll() == [step(1), step(2)]
    assert (writer.dropped, reader.dropped, reader.lost) == (1, 1, 0)


@pytest.mark.parametrize("is_checked", [True, False])
@pytest.mark.parametrize("slots", [64, 2048])
def test_records_that_come_together_are_written_as_one_by_one(
    slots: int, make_writer: MakeWriter, *, is_checked: bool
) -> None:
    """Byte for byte, over the end of the file, with repeats among them, however many come."""
    together, apart = make_writer(slots=slots), make_writer(slots=slots)
    for writer in (together, apart):
        writer._memory.is_checked &= is_checked
    records: list[Record] = [FACTS, finding("a"), finding("b")]
    records += [made for index in range(1200) for made in (step(index), optimizer(index % 3))]
    records[700] = message(3)

    at, size = 0, 1
    while at < len(records):
        together.put(*records[at : at + size])
        at, size = at + size, size * 3 % 389 + 1
    for record in records:
        apart.put(record)

    assert together.path.read_bytes() == apart.path.read_bytes()
    assert together.dropped == apart.dropped == 0


def test_a_broken_record_among_others_costs_them_nothing(
    make_writer: MakeWriter, open_reader: OpenReader
) -> None:
    """Nor does an interrupt that comes after them: it passes, and leaves nothing locked."""
    writer = make_writer()

    writer.put(step(1), changed(step(1), step=1.5), step(2))
    with pytest.raises(KeyboardInterrupt):
        writer.put(step(3), FactsRecord(_Interrupting(a="b")), step(4))
    writer.put(step(5))

    assert open_reader(writer.path).poll() == [step(1), step(2), step(3), step(5)]
    assert writer.dropped == 1


def test_records_that_cannot_be_stored_together_are_counted_one_by_one(
    make_writer: MakeWriter, open_reader: OpenReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is repeated among them is none of them, and comes again."""
    writer = make_writer()
    writer.put(FACTS, step(0))
    reader = open_reader(writer.path)

    def cut(*_places: int) -> None:
        raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))

    monkeypatch.setattr(writer._memory, "store_slots", cut)
    writer.put(*map(step, range(1, 101)))
    monkeypatch.undo()
    writer.put(*map(step, range(101, 104)))

    assert reader.poll() == [FACTS, *map(step, [0, 101, 102, 103])]
    assert writer.dropped == 100


def test_a_time_limit_of_the_program_is_no_trouble_of_the_file(
    make_writer: MakeWriter, open_reader: OpenReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`TimeoutError` is an `OSError`, and not the file's where a handler of a signal raises it."""
    writer = make_writer()

    def limit(_number: int, _frame: object) -> None:
        raise TimeoutError

    def slow(*_places: int) -> None:
        signal.raise_signal(signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, limit)
    try:
        monkeypatch.setattr(writer._memory, "store_slots", slow)
        with pytest.raises(TimeoutError):
            writer.put(step(1))
    finally:
        signal.signal(signal.SIGALRM, before)
    monkeypatch.undo()
    writer.put(step(2))

    assert open_reader(writer.path).poll() == [step(2)]
    assert (writer.trouble, writer.dropped) == ("", 0)


def test_a_put_that_meets_another_one_is_dropped_instead_of_waiting(
    make_writer: MakeWriter, open_reader: OpenReader
) -> None:
    """No thread ever waits for another one, and no record is mixed with another."""
    writer = make_writer()
    inside, leave = threading.Event(), threading.Event()

    class Slow(dict[str, str]):
        def items(self) -> object:  # type: ignore[override]
            inside.set()
            leave.wait(60)
            return super().items()

    thread = threading.Thread(target=writer.put, args=(FactsRecord(Slow(a="b")),))
    thread.start()
    assert inside.wait(60)
    writer.put(step(1))
    leave.set()
    thread.join()

    assert writer.dropped == 1
    assert open_reader(writer.path).poll() == [FactsRecord({"a": "b"})]


def test_closing_writes_the_end_and_removes_the_file(
    make_writer: MakeWriter, open_reader: OpenReader, directory: Path
) -> None:
    """A reader that has it open still reads all of it; the directory is clean."""
    writer = make_writer()
    reader = open_reader(writer.path)
    writer.put(step(1))

    writer.close(END, keep=False)

    assert reader.poll() == [step(1), END]
    assert not reader.writer_alive()
    assert list(directory.iterdir()) == []


def test_closing_can_leave_the_file_for_a_reader_to_come(
    make_writer: MakeWriter, open_reader: OpenReader
) -> None:
    """The flight recorder of a run whose daemon was not there yet; closing again does nothing."""
    writer = make_writer()
    writer.put(step(1))

    writer.close(END, keep=True)
    writer.close(replace(END, reason="again"), keep=False)

    reader = open_reader(writer.path)
    assert reader.poll() == [step(1), END]
    assert not reader.writer_alive()


def test_closing_a_ring_that_somebody_removed_does_not_raise(make_writer: MakeWriter) -> None:
    """A janitor was faster."""
    writer = make_writer()
    writer.path.unlink()

    writer.close(END, keep=False)

    assert not writer.path.exists()


def test_a_closed_writer_drops_and_counts(make_writer: MakeWriter) -> None:
    """A hook that fires once more after the end must not raise."""
    writer = make_writer()
    writer.close(END, keep=False)

    for record in (step(1), finding(), FACTS):
        writer.put(record)

    assert writer.dropped == 3


def test_closing_in_the_middle_of_a_put_does_not_raise(make_writer: MakeWriter) -> None:
    """A signal handler closes the ring while the loop it interrupted is writing."""
    writer = make_writer()

    class Closing(dict[str, str]):
        def items(self) -> object:  # type: ignore[override]
            writer.close(END, keep=False)
            return super().items()

    writer.put(FactsRecord(Closing(a="b")))

    assert writer.dropped == 1


def test_a_forked_child_writes_nothing_removes_nothing_and_raises_nothing(
    make_writer: MakeWriter, open_reader: OpenReader
) -> None:
    """A DataLoader worker inherits the watched model, and its hooks."""
    writer = make_writer()
    writer.put(step(1))

    child = os.fork()
    if child == 0:
        code = 1
        try:
            writer.put(step(2))
            writer.put(None)  # type: ignore[arg-type]
            dropped = writer.dropped
            writer.close(END, keep=False)
            writer.put(step(3))
            code = 0 if dropped == 2 else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    writer.put(step(4))

    reader = open_reader(writer.path)
    assert os.waitstatus_to_exitcode(status) == 0
    assert reader.poll() == [step(1), step(4)]
    assert (reader.lost, reader.dropped, writer.dropped) == (0, 0, 0)
    assert reader.writer_alive()


def test_a_reader_never_sees_the_file_before_it_is_complete(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the moment it gets its name it can be read, and its writer shows as alive."""
    rename = Path.rename
    seen: list[object] = []

    def look(part: Path, final: Path) -> Path:
        seen.extend(path.suffix for path in directory.iterdir())
        result = rename(part, final)
        reader = RingReader(final)
        seen.extend([reader.identity, reader.poll(), reader.writer_alive()])
        reader.close()
        return result

    monkeypatch.setattr(Path, "rename", look)
    RingWriter.create([directory], IDENTITY, slots=64).close(END, keep=False)

    assert seen == [".part", IDENTITY, [], True]
