"""Which files are written, and which are somebody's."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ampwatch import __version__
from ampwatch.errors import DeployError
from ampwatch.operate.deploy.writing import RECORD, FileChange, Theirs, plan, write

FILES = {"a.yml": "a\n", "deep/er/b.yml": "b\n", "c.yml": "c\n"}


def contents(directory: Path) -> dict[str, str]:
    """Return the text of every file but the record."""
    return {
        path.relative_to(directory).as_posix(): path.read_text()
        for path in directory.rglob("*")
        if path.is_file() and path.name != RECORD
    }


def inodes(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in directory.rglob("*")}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory that was written."""
    write(plan(tmp_path / "stack", FILES))
    return tmp_path / "stack"


def test_containers_can_read_it_whatever_the_umask(tmp_path: Path) -> None:
    """They run as other users, and mount the files."""
    before = os.umask(0o077)
    try:
        write(plan(tmp_path / "stack", FILES))
    finally:
        os.umask(before)

    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "stack").rglob("*.yml")}
    assert modes == {0o644}
    assert (tmp_path / "stack" / "deep" / "er").stat().st_mode & 0o777 == 0o755


def test_the_second_time_nothing_is_touched(place: Path) -> None:
    """Not even replaced by the same."""
    before = inodes(place)

    todo = plan(place, FILES)
    write(todo)

    assert set(todo.changes.values()) == {FileChange.SAME}
    assert todo.version == __version__
    assert inodes(place) == before


def test_what_is_as_it_was_written_is_brought_up_to_date(place: Path) -> None:
    """Replaced, added and, where it is no longer shipped, removed."""
    wanted = {"a.yml": "A\n", "deep/er/b.yml": "b\n", "d.yml": "d\n"}

    todo = plan(place, wanted)
    write(todo)

    assert todo.changes == {
        "a.yml": FileChange.UPDATED,
        "deep/er/b.yml": FileChange.SAME,
        "c.yml": FileChange.REMOVED,
        "d.yml": FileChange.NEW,
    }
    assert contents(place) == wanted


def test_what_somebody_changed_can_be_kept(place: Path) -> None:
    """Also the next time: it does not become ours by that."""
    (place / "c.yml").write_text("mine\n")

    for _ in range(2):
        write(plan(place, FILES | {"a.yml": "A\n"}), theirs=Theirs.KEEP)
        assert contents(place) == FILES | {"a.yml": "A\n", "c.yml": "mine\n"}

    assert plan(place, FILES).changes["c.yml"] is FileChange.THEIRS


def test_what_is_no_longer_shipped_but_changed_is_left(place: Path) -> None:
    """Files that were never written here are not read."""
    (place / "c.yml").write_text("mine\n")
    (place / "notes.txt").write_text("mine\n")
    wanted = {name: text for name, text in FILES.items() if name != "c.yml"}

    todo = plan(place, wanted)
    write(todo)

    assert todo.changes["c.yml"] is FileChange.LEFT
    assert contents(place) == wanted | {"c.yml": "mine\n", "notes.txt": "mine\n"}


def test_a_file_that_was_there_before_is_somebodys(tmp_path: Path) -> None:
    """Unless it is the same."""
    (tmp_path / "a.yml").write_text("mine\n")
    (tmp_path / "c.yml").write_text("c\n")

    changes = plan(tmp_path, FILES).changes

    assert (changes["a.yml"], changes["c.yml"]) == (FileChange.THEIRS, FileChange.SAME)


def test_a_link_is_somebodys_and_is_not_followed(place: Path, tmp_path: Path) -> None:
    """The target of a link stays as it is."""
    (tmp_path / "elsewhere").write_text("a\n")
    (place / "a.yml").unlink()
    (place / "a.yml").symlink_to(tmp_path / "elsewhere")

    todo = plan(place, FILES | {"a.yml": "A\n"})
    assert todo.changes["a.yml"] is FileChange.THEIRS
    write(todo, theirs=Theirs.OVERWRITE)

    assert (tmp_path / "elsewhere").read_text() == "a\n"
    assert not (place / "a.yml").is_symlink()


def test_a_directory_of_an_older_version_is_brought_up_to_date_one_of_a_newer_is_not(
    place: Path,
) -> None:
    """The version that wrote it is known; an old program would take out what it does not know."""
    record = json.loads((place / RECORD).read_text())
    (place / RECORD).write_text(json.dumps(record | {"version": "0.0.9"}))
    todo = plan(place, FILES)
    write(todo)
    assert (todo.version, plan(place, FILES).version) == ("0.0.9", __version__)

    (place / RECORD).write_text(json.dumps(record | {"version": "99.1.0"}))
    with pytest.raises(DeployError, match=r"of ampwatch 99\.1\.0; use that version"):
        plan(place, FILES)


@pytest.mark.parametrize(
    "record",
    ["", "[]", '{"version": 1}', '{"files": {"../x": ""}}', '{"files": {"/x": ""}}', "\xff"],
)
def test_a_record_that_is_none_is_reported(place: Path, record: str) -> None:
    """Files are removed by it, so it is not guessed at."""
    (place / RECORD).write_bytes(record.encode("latin-1"))

    with pytest.raises(DeployError, match=r"expected .*ampwatch-deploy.json.* remove it"):
        plan(place, FILES)


def test_a_file_in_place_of_the_directory_is_reported(tmp_path: Path) -> None:
    """Also one in place of a directory above it, and one of a directory below."""
    (tmp_path / "file").write_text("")
    with pytest.raises(DeployError, match="expected a directory, new or old"):
        plan(tmp_path / "file", FILES)
    with pytest.raises(DeployError, match=r"got: (Not a directory|File exists)"):
        write(plan(tmp_path / "file" / "stack", FILES))
    (tmp_path / "stack").mkdir()
    (tmp_path / "stack" / "deep").write_text("")
    with pytest.raises(DeployError, match=r"got: (Not a directory|File exists)"):
        write(plan(tmp_path / "stack", FILES))


def test_a_place_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    """Sysfs takes no directory from anybody, root included."""
    with pytest.raises(DeployError, match="name a directory that is yours"):
        write(plan(tmp_path.__class__("/sys/ampwatch"), FILES))


def test_an_interrupted_write_is_taken_up_again(place: Path) -> None:
    """Files that are new already, with a record that is still the old one."""
    wanted = FILES | {"a.yml": "A\n", "c.yml": "C\n"}
    (place / "a.yml").write_text("A\n")

    write(plan(place, wanted))

    assert contents(place) == wanted
    assert not list(place.rglob(".ampwatch-*[!n]"))
