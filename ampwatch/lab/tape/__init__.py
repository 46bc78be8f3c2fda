"""The tape: the file in which a run records chosen steps, for `ampwatch lab diff` to hold against another.

``rows.py`` says what is in it, ``files.py`` how it stands in a file. No torch here: a tape is read on any machine.
"""

from __future__ import annotations

from ampwatch.lab.tape.files import Tape, TapeWriter, read_tape
from ampwatch.lab.tape.rows import RowKind, TapeHead, TapeOutcome, TapeRow, TapeStep

__all__ = [
    "RowKind",
    "Tape",
    "TapeHead",
    "TapeOutcome",
    "TapeRow",
    "TapeStep",
    "TapeWriter",
    "read_tape",
]
