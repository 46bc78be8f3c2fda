"""The wire format of Protocol Buffers: fields of a message as bytes.

Written here, since scrapes ask for one message of six kinds, and the library would be a dependency
of every daemon. Bytes of fields are joined to those of a message.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_VARINT, _FIXED64, _BYTES = 0, 1, 2
"""Wire types."""

_DOUBLE = struct.Struct("<d")

_WORD = (1 << 64) - 1


def varint(value: int) -> bytes:
    """Return an integer in as many bytes as it needs; a negative one as int64 has it, in ten.

    Args:
        value: From -2**63 to 2**64 - 1.
    """
    value &= _WORD
    if value < 0x80:
        return _SMALL[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SMALL = tuple(bytes([value]) for value in range(0x80))


def zigzag(value: int) -> int:
    """Return a sint32 or sint64 as it is written: small numbers of either sign are small.

    Args:
        value: From -2**63 to 2**63 - 1.
    """
    return (value << 1) ^ (value >> 63)


def integer(field: int, value: int) -> bytes:
    """Return a field of type uint32, uint64, int32, int64 or enum."""
    return varint(field << 3 | _VARINT) + varint(value)


def signed(field: int, value: int) -> bytes:
    """Return a field of type sint32 or sint64."""
    return integer(field, zigzag(value))


def double(field: int, value: float) -> bytes:
    """Return a field of type double."""
    return varint(field << 3 | _FIXED64) + _DOUBLE.pack(value)


def block(field: int, content: bytes) -> bytes:
    """Return a field of type bytes or string, or one that is a message."""
    return varint(field << 3 | _BYTES) + delimited(content)


def text(field: int, value: str) -> bytes:
    """Return a field of type string."""
    return block(field, value.encode())


def packed_signed(field: int, values: Iterable[int]) -> bytes:
    """Return a repeated field of type sint32 or sint64, packed."""
    return block(field, b"".join([varint(zigzag(value)) for value in values]))


def delimited(message: bytes) -> bytes:
    """Return a message behind its length, as it stands in a sequence of messages."""
    return varint(len(message)) + message
