"""Faults of the file under a writer: each ends no process, is said once, and costs records at most."""

from __future__ import annotations

import json
from pathlib import Path
from threading import get_ident
from types import SimpleNamespace
from typing import Any

import pytest

from ampwatch.wire.records import StepRecord
from ampwatch.wire.ring import RingReader, RingWriter, memory
from tests.host.daemon.parts import eventually
from tests.wire.ring.conftest import MakeWriter, OpenReader
from tests.wire.ring.samples import END, IDENTITY, heard, program, step

BEGIN = """
import errno, json, logging, resource
lines = []
class Kept(logging.Handler):
    def emit(self, record):
        lines.append(record.getMessage())
logging.getLogger("ampwatch").addHandler(Kept())
writer = create()
say(writer.path)
for index in range(4):
    writer.put(step(index))
say("written")
sys.stdin.readline()
"""

END_OF_IT = """
for index in range(4, 24):
    writer.put(step(index))
sys.stdin.readline()
writer.close(END, keep=True)
say(json.dumps({"lines": lines, "dropped": writer.dropped}))
"""


class Faulty:
    """A writer in a process of its own, to whose file something happens after four steps."""

    def __init__(self, directory: Path, fault: str, prefix: tuple[str, ...] = ()) -> None:
        self._program = program(directory, BEGIN + fault + "\nsay('done')\n" + END_OF_IT, prefix)
        self.process = self._program.__enter__()
        self.path = Path(heard(self.process))
        assert heard(self.process) == "written"

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def strike(self) -> None:
        """Let the fault happen."""
        self.go_on()
        assert heard(self.process) == "done"

    def outcome(self) -> dict[str, Any]:
        """Write twenty more steps and end."""
        self.go_on()
        said: dict[str, Any] = json.loads(heard(self.process))
        assert self.process.wait(60) == 0
        return said

    def close(self) -> None:
        self._program.__exit__(None, None, None)


def steps_in(reader: RingReader) -> list[int]:
    return [record.step for record in reader.poll() if isinstance(record, StepRecord)]


@pytest.mark.parametrize("length", [0, 20, 4096, 5000])
def test_a_ring_that_is_cut_is_made_whole_again(
    length: int, directory: Path, open_reader: OpenReader
) -> None:
    """A plain store into what is gone is SIGBUS. Readers of before and after both go on."""
    faulty = Faulty(directory, f"os.truncate(writer.path, {length})")
    before = open_reader(faulty.path)
    shown = steps_in(before)

    faulty.strike()
    said = faulty.outcome()

    assert shown == [0, 1, 2, 3]
    (line,) = said["lines"]
    assert f"the file was cut to {length} bytes" in line
    assert "Training is not affected" in line
    # That by which it was noticed. Memory comes by pages of 16 slots: the rest of that in which the
    # file ends takes what is stored, and nobody can read it.
    assert said["dropped"] == 1
    noticed = 4 if length <= 4096 else 16
    assert steps_in(before) == list(range(noticed + 1, 24))
    assert steps_in(open_reader(faulty.path))[-7:] == list(range(17, 24))
    faulty.close()


def test_a_program_that_closes_all_descriptors_keeps_its_ring(
    directory: Path, open_reader: OpenReader
) -> None:
    """Libraries that make daemons do; the writer is alive again with its next record."""
    faulty = Faulty(directory, "os.closerange(3, 1 << 16)\nwriter.put(step(99))")
    faulty.strike()
    reader = open_reader(faulty.path)
    alive = reader.writer_alive()
    said = faulty.outcome()

    (line,) = said["lines"]
    assert alive
    assert said["dropped"] == 0
    assert "descriptors were closed; it was opened again" in line
    assert steps_in(reader) == [0, 1, 2, 3, 99, *range(4, 24)]
    faulty.close()


def test_files_that_get_the_number_of_the_ring_are_left_alone(
    directory: Path, tmp_path: Path, open_reader: OpenReader
) -> None:
    """Not written to, and not closed at the end: they are the program's."""
    user = tmp_path / "user"
    fault = f"""
os.closerange(3, 1 << 16)
users = [os.open({str(user)!r}, os.O_RDWR | os.O_CREAT)]
for number in range(4, 1000):
    os.dup2(users[0], number)
os.write(users[0], b"mine")
import atexit
atexit.register(lambda: [os.fstat(number) for number in range(4, 1000)] and os.write(users[0], b", all of it"))
"""
    faulty = Faulty(directory, fault)
    faulty.strike()
    faulty.outcome()

    assert user.read_bytes() == b"mine, all of it"
    assert steps_in(open_reader(faulty.path)) == list(range(24))
    faulty.close()


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("os.unlink(writer.path)", "No such file or directory"),
        ("resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))", "Too many open files"),
        ("os.unlink(writer.path); os.mkfifo(writer.path)", "another file has its name"),
    ],
)
def test_a_ring_that_cannot_be_opened_again_is_said_once(
    fault: str, why: str, directory: Path, open_reader: OpenReader
) -> None:
    """What is shown is what came before, and what is still read."""
    faulty = Faulty(directory, f"os.closerange(3, 1 << 16)\n{fault}")
    reader = open_reader(faulty.path)
    faulty.strike()
    said = faulty.outcome()

    (line,) = said["lines"]
    assert "cannot be restored" in line
    assert why in line
    assert steps_in(reader) == list(range(24))
    faulty.close()


def test_a_ring_that_can_be_opened_again_later_is(directory: Path) -> None:
    """A program that has no descriptor left for a moment is not dead for the rest of its life."""
    fault = """
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
os.closerange(3, 1 << 16)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
for index in range(3):
    writer.put(step(index))
resource.setrlimit(resource.RLIMIT_NOFILE, limits)
"""
    faulty = Faulty(directory, fault)
    faulty.strike()
    eventually(lambda: RingReader(faulty.path).writer_alive())
    said = faulty.outcome()

    (line,) = said["lines"]
    assert "Too many open files" in line
    assert said["dropped"] == 0
    faulty.close()


def test_a_store_that_fails_for_no_reason_to_be_seen_is_said(
    make_writer: MakeWriter, open_reader: OpenReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sandbox that a program enters later refuses the call, and the file is as it was."""
    writer = make_writer()
    writer.put(step(1))
    real = memory._LIBRARY

    def refused(*_arguments: object) -> int:
        memory.ctypes.set_errno(memory.errno.EPERM)
        return -1

    sandbox = SimpleNamespace(munmap=real.munmap, process_vm_writev=refused)
    monkeypatch.setattr(memory, "_LIBRARY", sandbox)
    for index in range(2, 10):
        writer.put(step(index))

    assert "Operation not permitted" in writer.trouble
    assert writer.dropped == 8
    assert open_reader(writer.path).poll() == [step(1)]


def test_a_cut_ring_on_a_full_file_system_loses_records_and_nothing_else(
    directory: Path, open_reader: OpenReader
) -> None:
    """No room to make it whole again: said once, each record counted."""
    refuse = """
os.truncate(writer.path, 0)
def full(*arguments):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
os.posix_fallocate = full
"""
    faulty = Faulty(directory, refuse)
    reader = open_reader(faulty.path)
    shown = steps_in(reader)
    faulty.strike()
    said = faulty.outcome()

    (line,) = said["lines"]
    assert shown == [0, 1, 2, 3]
    assert "No space left on device" in line
    assert said["dropped"] == 21  # the end is a record as well
    assert steps_in(reader) == []
    faulty.close()


def test_limits_that_come_after_the_start_cost_nothing(
    directory: Path, open_reader: OpenReader
) -> None:
    """Of address space, of the size of files with the signal that ends a process, of descriptors."""
    fault = """
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
resource.setrlimit(resource.RLIMIT_AS, (1 << 20, 1 << 20))
"""
    faulty = Faulty(directory, fault)
    faulty.strike()

    assert faulty.outcome() == {"lines": [], "dropped": 0}
    assert steps_in(open_reader(faulty.path)) == list(range(24))
    faulty.close()


@pytest.mark.parametrize(
    ("limit", "why"),
    [
        ("RLIMIT_FSIZE, (4096, 4096)", "File too large"),
        ("RLIMIT_NOFILE, (3, 3)", "Too many open files"),
        ("RLIMIT_AS, (1 << 20, 1 << 20)", "Cannot allocate memory"),
    ],
)
def test_limits_at_the_start_are_a_ring_error_in_words(
    limit: str, why: str, directory: Path
) -> None:
    """Also that of the size of files, where the kernel sends SIGXFSZ to who does not ask."""
    body = f"""
import resource, signal
from ampwatch.errors import RingError
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
create().close(END, keep=False)
resource.setrlimit(resource.{limit})
try:
    create()
except RingError as error:
    say(error)
"""
    with program(directory, body) as process:
        said = heard(process)

    assert why in said
    assert "raise the limit" in said
    assert "AMPWATCH_RING_DIR" not in said
    assert list(directory.iterdir()) == []


def test_where_a_sandbox_refuses_the_call_stores_are_plain(
    monkeypatch: pytest.MonkeyPatch, directory: Path, open_reader: OpenReader
) -> None:
    """Old sandboxes of containers do; the ring works as well."""
    real = memory._LIBRARY

    def refused(*_arguments: object) -> int:
        memory.ctypes.set_errno(memory.errno.EPERM)
        return -1

    names = ("mmap", "munmap", "memmove")
    library = SimpleNamespace(**{name: getattr(real, name) for name in names})
    for sandbox in (library, SimpleNamespace(**vars(library), process_vm_writev=refused)):
        monkeypatch.setattr(memory, "_LIBRARY", sandbox)
        writer = RingWriter.create([directory], IDENTITY, slots=64)
        for index in range(100):
            writer.put(step(index))
        reader = open_reader(writer.path)
        writer.close(END, keep=False)

        assert not writer._memory.is_checked
        assert reader.poll() == [*map(step, range(37, 100)), END]


def test_a_put_that_an_interrupt_has_left_open_blinds_nothing(
    make_writer: MakeWriter, open_reader: OpenReader
) -> None:
    """A second interrupt may end what was to be done at the end of a put."""
    writer = make_writer()
    writer.put(step(1))
    writer._holder = get_ident()
    writer.put(step(2))

    assert open_reader(writer.path).poll() == [step(1), step(2)]
    assert writer.dropped == 0
