"""The file that the ranks of a machine share: what was read of it is not read again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.training import said as said_module
from ampwatch.training.said import Said

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_only_what_is_new_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing is lost or doubled for that."""
    path = tmp_path / "ranks.said"
    ranks = [Said(path, rank) for rank in range(2)]
    parsed: list[int] = []
    original = said_module._parsed

    def counted(text: bytes) -> list[said_module._Line]:
        parsed.append(text.count(b"\n"))
        return original(text)

    monkeypatch.setattr(said_module, "_parsed", counted)
    for number in range(5):
        ranks[number % 2].found(f"{number}")
        assert ranks[0].finders(f"{number}") == [number % 2]
        assert ranks[0].present() == [0, 1]
    assert parsed == [3, 1, 1, 1, 1]
    assert ranks[1].finders_among(["0", "1", "other"]) == {"0": [0], "1": [1]}


def test_a_line_that_is_cut_short_is_read_when_it_is_whole(tmp_path: Path) -> None:
    """As after a write that was interrupted."""
    path = tmp_path / "ranks.said"
    rank = Said(path, 0)
    line = path.read_bytes().replace(b"here - 0", b"here - 1")
    with path.open("ab") as file:
        file.write(line[:-3])
        file.flush()
        assert rank.present() == [0]
        file.write(line[-3:])

    assert rank.present() == [0, 1]


def test_a_file_that_takes_the_place_of_another_is_read_from_its_beginning(tmp_path: Path) -> None:
    """As where somebody has removed the first one."""
    path = tmp_path / "ranks.said"
    rank = Said(path, 0)
    rank.found("one thing")
    assert rank.finders("one thing") == [0]
    path.rename(path.with_name("away"))
    rank.found("another")

    assert rank.finders("another") == [0]
    assert rank.finders("one thing") == []
