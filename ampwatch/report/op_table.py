"""The table of an op census for a terminal: by op, by module, or by dtype."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ampwatch.report.op_lines import op_lines
from ampwatch.report.op_shares import casts_per_op, flops_by_dtype, low_precision_share
from ampwatch.report.precision_words import FALLBACKS, census_sentence, mix, si
from ampwatch.report.words import percent

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.report.op_lines import By, OpLine
    from ampwatch.wire.records import CensusRecord

WIDTH = 120
MIN_WIDTH = 60
_GAP = "  "
_CUT = ".."
_NONE = "-"


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of the table.

    Attributes:
        title: Its head.
        cell: Returns the text of a line; FLOPs of the whole table are the second argument.
        is_text: Aligned to the left, and cut where there is no room.
        least: Of text, what it is never cut below. Unit: characters.
    """

    title: str
    cell: Callable[[OpLine, int], str]
    is_text: bool = False
    least: int = 12


def _size(value: int, unit: str = "") -> str:
    return si(value, unit) if value else _NONE


def _share(part: float, whole: float) -> str:
    return percent(part / whole) if whole else _NONE


def _low(line: OpLine) -> str:
    share = low_precision_share(line.mix)
    return _NONE if share is None else percent(share)


_NAME = _Column("", lambda line, _: line.name or "(root)", is_text=True, least=20)
_CALLS = _Column("calls", lambda line, _: _size(line.calls))
_FLOPS = _Column("FLOPs", lambda line, _: _size(line.flops))
_SHARE = _Column("share", lambda line, whole: _share(line.flops, whole) if line.flops else _NONE)
_TENSOR = _Column("for tensor cores", lambda line, _: _share(line.tensor_flops, line.flops))
_BYTES = _Column("bytes", lambda line, _: _size(line.bytes, "B"))
_CASTS = _Column("casts", lambda line, _: _size(line.casts))
_CAST_BYTES = _Column("cast bytes", lambda line, _: _size(line.cast_bytes, "B"))

_COLUMNS: dict[By, tuple[_Column, ...]] = {
    "op": (
        _NAME,
        _Column("ran in", lambda line, _: line.ran_in, is_text=True),
        _CALLS,
        _FLOPS,
        _SHARE,
        _TENSOR,
        _BYTES,
    ),
    "module": (
        _NAME,
        _CALLS,
        _FLOPS,
        _SHARE,
        _Column("low precision", lambda line, _: _low(line)),
        _TENSOR,
        _BYTES,
        _CASTS,
        _CAST_BYTES,
    ),
    "dtype": (_NAME, _CALLS, _FLOPS, _SHARE, _TENSOR, _BYTES, _CASTS, _CAST_BYTES),
}


def render(census: CensusRecord, by: By = "op", width: int = WIDTH) -> str:
    """Return the table of the newest census, those with the most FLOPs and bytes first.

    Args:
        census: The record.
        by: Group ops by: an op and a dtype, a module, or a dtype.
        width: Longest line, at least 60. Names and reasons are cut to fit; where numbers
            alone do not fit, lines are longer. Unit: characters.

    Raises:
        ValueError: If ``by`` is none of these.
    """
    if by not in _COLUMNS:
        msg = f"expected by to be one of {', '.join(_COLUMNS)}, got {by!r}"
        raise ValueError(msg)
    lines = op_lines(census, by)
    columns = _COLUMNS[by]
    whole = sum(line.flops for line in lines)
    cells = [
        [column.cell(line, whole).encode("ascii", "replace").decode() for column in columns]
        for line in lines
    ]
    heads = [by if column is _NAME else column.title for column in columns]
    widths = _widths(columns, [heads, *cells], max(width, MIN_WIDTH))
    text = [census_sentence(census), *_summary(census), "", _row(columns, heads, widths)]
    text.append("-" * len(_GAP.join("-" * size for size in widths)))
    for line, cells_of in zip(lines, cells, strict=True):
        text += [_row(columns, cells_of, widths), *_why(line)]
    return "\n".join([*text, ""])


def _summary(census: CensusRecord) -> list[str]:
    flops = flops_by_dtype(census)
    casts = casts_per_op(census)
    lines = [f"FLOPs: {mix(flops)}."] if flops else ["No op with FLOPs was counted."]
    if casts is not None:
        lines.append(f"Casts: {casts:.2g} to each op that has FLOPs.")
    return lines


def _why(line: OpLine) -> list[str]:
    """Say why some of the ops of a line ran in float32, most of them first, and which are emulated."""
    reasons = [
        f"    {calls} in float32: {FALLBACKS[reason]}"
        for reason, calls in line.fallbacks.most_common()
    ]
    emulated = [
        f"    {calls} emulated: numbers of FP8, multiplied in {dtype}"
        for dtype, calls in line.emulated.most_common()
    ]
    return reasons + emulated


def _widths(columns: tuple[_Column, ...], rows: list[list[str]], limit: int) -> list[int]:
    """Return how wide each column is; the widest text gives way until all fit."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    excess = sum(widths) + len(_GAP) * (len(widths) - 1) - limit
    while excess > 0:
        texts = [i for i, c in enumerate(columns) if c.is_text and widths[i] > c.least]
        if not texts:
            break
        widths[max(texts, key=widths.__getitem__)] -= 1
        excess -= 1
    return widths


def _row(columns: tuple[_Column, ...], cells: list[str], widths: list[int]) -> str:
    padded = []
    for column, cell, width in zip(columns, cells, widths, strict=True):
        text = _shortened(cell, width)
        padded.append(text.ljust(width) if column.is_text else text.rjust(width))
    return _GAP.join(padded).rstrip()


def _shortened(text: str, width: int) -> str:
    """Cut out the middle: the end of a name says as much as its beginning."""
    if len(text) <= width:
        return text
    tail = (width - len(_CUT)) // 2
    return text[: width - len(_CUT) - tail] + _CUT + text[len(text) - tail :]
