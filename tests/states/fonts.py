"""Fonts that are the same on every machine, so that a picture of the page does not depend on its own.

Letters are those of the font that comes inside Pillow, digits and punctuation included. All else, of
which every system has other shapes or none, is a box.
"""

from __future__ import annotations

import base64
import struct

from PIL import ImageFont

UNITS = 1000
"""Units of a box font to its size."""

BOX = (60, 0, 560, 560)
"""Left, bottom, right and top of the box. Unit: font units."""

ADVANCE = 620


def style_sheet() -> str:
    """Return the CSS that makes the page use these fonts and no others."""
    faces = "".join(
        f"@font-face {{ font-family: {name}; src: url(data:font/ttf;base64,"
        f"{base64.b64encode(font).decode()}); }}\n"
        for name, font in (("letters", letters()), ("boxes", boxes()))
    )
    return (
        f"{faces}:root {{ --font: letters, boxes !important; --mono: letters, boxes !important; }}"
    )


def letters() -> bytes:
    """Return the TrueType font that comes with Pillow."""
    font = ImageFont.load_default(16)
    assert isinstance(font, ImageFont.FreeTypeFont), f"expected Pillow with FreeType, got {font!r}"
    return font.font_bytes


def boxes() -> bytes:
    """Return a TrueType font in which every character is the same box."""
    left, bottom, right, top = BOX
    points = ((left, bottom), (left, top), (right, top), (right, bottom))
    steps = [
        tuple(b - a for a, b in zip(before, point, strict=True))
        for before, point in zip(((0, 0), *points), points, strict=False)
    ]
    box = struct.pack(">5h", 1, *BOX)  # one contour, and what it fits in
    box += struct.pack(">2H", len(points) - 1, 0)  # its last point; no instructions
    box += bytes([1] * len(points))  # each point is on the curve, its steps have two bytes
    box += b"".join(struct.pack(">h", step[axis]) for axis in (0, 1) for step in steps)
    box += bytes(-len(box) % 4)
    # All characters but the controls are glyph 1.
    characters = struct.pack(">2HL2L", 13, 0, 28, 0, 1) + struct.pack(">3L", 0x20, 0x10FFFF, 1)
    names = [(1, "boxes"), (2, "Regular"), (4, "boxes"), (6, "boxes")]
    tables = {
        b"OS/2": _metrics_of_windows(),
        b"cmap": struct.pack(">4HL", 0, 1, 3, 10, 12) + characters,
        b"glyf": box,
        b"head": struct.pack(
            ">4L2H2Q4h2H3h", 0x10000, 0x10000, 0, 0x5F0F3CF5, 3, UNITS, 0, 0, *BOX, 0, 8, 2, 1, 0
        ),
        b"hhea": struct.pack(
            ">L3hH11hH", 0x10000, 800, -200, 0, ADVANCE, left, 60, right, 1, *[0] * 7, 2
        ),
        b"hmtx": struct.pack(">HhHh", ADVANCE, 0, ADVANCE, left),
        b"loca": struct.pack(">3L", 0, 0, len(box)),
        b"maxp": struct.pack(">L14H", 0x10000, 2, len(points), 1, 0, 0, 2, *[0] * 8),
        b"name": _names(names),
        b"post": struct.pack(">2L2h5L", 0x30000, 0, -100, 50, 0, 0, 0, 0, 0),
    }
    return _file(tables)


def _metrics_of_windows() -> bytes:
    return struct.pack(
        ">HhHHH10hh10x4L4s3H3h2H2L2h3H",
        *(4, 500, 400, 5, 0),
        *[0] * 11,
        *(0, 0, 0, 0, b"none"),
        *(0x40, 0x20, 0xFFFF, 800, -200, 0, 800, 200, 0, 0, 560, 560, 0, 0x20, 0),
    )


def _names(names: list[tuple[int, str]]) -> bytes:
    """Return the table of names, for Windows in English."""
    rows, text = b"", b""
    for number, name in names:
        encoded = name.encode("utf-16-be")
        rows += struct.pack(">6H", 3, 1, 0x409, number, len(encoded), len(text))
        text += encoded
    return struct.pack(">3H", 0, len(names), 6 + len(rows)) + rows + text


def _file(tables: dict[bytes, bytes]) -> bytes:
    """Return the tables as a file, with the sums that a reader checks."""
    power = len(tables).bit_length() - 1
    span = 16 << power
    header = struct.pack(">L4H", 0x10000, len(tables), span, power, 16 * len(tables) - span)
    place = len(header) + 16 * len(tables)
    rows, body = b"", b""
    for tag, table in sorted(tables.items()):
        padded = table + bytes(-len(table) % 4)
        rows += tag + struct.pack(">3L", _sum(padded), place + len(body), len(table))
        body += padded
    whole = header + rows + body
    # The sum of the whole file goes into its table "head", 8 bytes after its beginning.
    head = struct.unpack_from(">L", rows, rows.index(b"head") + 8)[0]
    missing = (0xB1B0AFBA - _sum(whole)) & 0xFFFFFFFF
    return whole[: head + 8] + struct.pack(">L", missing) + whole[head + 12 :]


def _sum(data: bytes) -> int:
    return sum(struct.unpack(f">{len(data) // 4}L", data)) & 0xFFFFFFFF
