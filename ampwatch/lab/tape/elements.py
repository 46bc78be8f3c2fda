"""The elements of one step, in a file of the layout of safetensors.

Eight bytes, little-endian: the length of a header in JSON, which has dtype, shape and place of each
tensor by name; then the tensors. Written and read here without its library: nothing is executed.

Source: https://github.com/huggingface/safetensors, README, "Format".
"""

from __future__ import annotations

import json
import math
import os
import struct
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from ampwatch.errors import DiffError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_BYTES = 2**28
"""Bytes of all tensors of a step together; what comes after them is left out, and counted."""

MAX_HEADER = 2**24
DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
"""Names in the header of dtypes that are kept."""

_SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_FORMATS = {"F64": "d", "F32": "f", "F16": "e"}


@dataclass
class ElementsWriter:
    """Gathers tensors of a step, and writes them.

    Attributes:
        left_out: Tensors that there was no room for, or whose dtype is not kept.
    """

    left_out: int = 0

    def __post_init__(self) -> None:
        self._header: dict[str, Any] = {}
        self._parts: list[bytes] = []
        self._nbytes = 0

    def room_for(self, dtype: str, nbytes: int) -> bool:
        """Whether a tensor will be kept; one that will not be is counted."""
        fits = dtype in DTYPES and self._nbytes + nbytes <= MAX_BYTES
        self.left_out += not fits
        return fits

    def put(self, name: str, dtype: str, shape: list[int], data: bytes) -> None:
        """Keep a tensor; of one name the first, later ones get a number."""
        unique, number = name, 1
        while unique in self._header:
            number += 1
            unique = f"{name}#{number}"
        end = self._nbytes + len(data)
        self._header[unique] = {
            "dtype": DTYPES[dtype],
            "shape": shape,
            "data_offsets": [self._nbytes, end],
        }
        self._nbytes = end
        self._parts.append(data)

    def write(self, path: Path) -> None:
        """Write the file.

        Raises:
            OSError: If it cannot be written; then there is no file.
        """
        header = json.dumps(self._header).encode()
        header += b" " * (-len(header) % 8)
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(file, "wb") as out:
                out.write(struct.pack("<Q", len(header)) + header)
                for part in self._parts:
                    out.write(part)
        except OSError:
            path.unlink(missing_ok=True)
            raise


@dataclass(frozen=True)
class Elements:
    """One tensor, element by element.

    Attributes:
        name: Its name.
        dtype: As in the header: ``F32``.
        shape: Its shape.
        values: Its elements in order, as float64.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    values: array[float]


class ElementsFile:
    """A file of elements.

    Args:
        path: The file.

    Raises:
        DiffError: If it cannot be read, or is no such file.

    Attributes:
        names: Names of its tensors, in their order.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                length = file.read(8)
                header = struct.unpack("<Q", length)[0] if len(length) == 8 else 0
                if not 0 < header <= min(MAX_HEADER, size - 8):
                    self._refuse("its header is not whole")
                text = file.read(header)
        except OSError as error:
            if isinstance(error, DiffError):
                raise
            self._refuse(error.strerror or "it cannot be read")
        self._begin = 8 + header
        self._entries = self._checked(text, size - self._begin)
        self.names = list(self._entries)

    def _refuse(self, why: str) -> NoReturn:
        msg = (
            f"expected the elements of a step, a file that a run records with record_elements=STEP, got"
            f" {str(self._path)!r}: {why}"
        )
        raise DiffError(msg) from None

    def _checked(self, text: bytes, room: int) -> dict[str, tuple[str, tuple[int, ...], int]]:
        try:
            header = json.loads(text)
        except (ValueError, RecursionError):
            self._refuse("its header is no JSON")
        entries = {}
        for name, entry in header.items() if isinstance(header, dict) else ():
            if name == "__metadata__":
                continue
            try:
                dtype, shape = entry["dtype"], tuple(entry["shape"])
                begin, end = entry["data_offsets"]
                sound = all(type(n) is int and n >= 0 for n in (*shape, begin, end))
                sound = sound and end <= room and end - begin == math.prod(shape) * _SIZES[dtype]
            except (KeyError, TypeError, ValueError):
                sound = False
            if not sound:
                self._refuse(f"the entry of {str(name)[:80]!r} is not sound")
            entries[name] = dtype, shape, begin
        return entries

    def read(self, name: str, most: int) -> Elements:
        """Return the first ``most`` elements of a tensor, or fewer.

        Raises:
            DiffError: If the file has become shorter.
        """
        dtype, shape, begin = self._entries[name]
        count = min(math.prod(shape), most)
        try:
            with self._path.open("rb") as file:
                file.seek(self._begin + begin)
                data = file.read(count * _SIZES[dtype])
        except OSError as error:
            self._refuse(error.strerror or "it cannot be read")
        if len(data) < count * _SIZES[dtype]:
            self._refuse("it has become shorter")
        return Elements(name, dtype, shape, array("d", _values(dtype, data, count)))


def _values(dtype: str, data: bytes, count: int) -> Iterator[float]:
    if dtype in _FORMATS:
        return iter(struct.unpack(f"<{count}{_FORMATS[dtype]}", data))
    # bfloat16 is the upper half of a float32.
    wide = bytearray(4 * count)
    wide[2::4] = data[0::2]
    wide[3::4] = data[1::2]
    return iter(struct.unpack(f"<{count}f", wide))
