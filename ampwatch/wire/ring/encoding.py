"""Records and identities to bytes, and back, by msgspec.

A payload is a MessagePack array: the values of the fields of a record in the order of its
dataclass, enumerations by value, named tuples as arrays; of a ``FindingRecord`` those of its
``Finding``. Five kinds differ:

- A step and an optimizer, which are written in every iteration, are packed by ``struct`` in
  the byte order of the machine, without padding. It is as fast as MessagePack, and refuses
  what is no number while it packs; everything else is read back for that.
- A range ends with the fields of its histogram instead of the histogram; ``before`` is an array
  of the same fields, or nil. ``blocks`` are an array for each size: elements of a block, ``top``, zero
  blocks, and the counts of distances and maxima of each level. ``counts`` are an array of two: how many there are, and their bytes,
  little-endian, the lowest byte of every count first, then the next of every count, as far as
  the largest count needs.
- A profiler window is compressed by zlib. Its last kernels are cut off until it fits.
- An op census is a JSON array, compressed by zlib: MessagePack has no integers of more than
  64 bits, which the FLOPs of a run need. Its last rows are cut off until it fits.

The identity in the header is a JSON object. A change of any needs a new ``layout.LAYOUT``.

Both ends check the types and bounds that the records declare: the writer because nobody would
read what it wrote, the reader because it trusts nobody. What a type cannot say (a histogram
that contradicts itself) only the reader checks.
"""

from __future__ import annotations

import struct
import zlib
from math import inf, isnan
from operator import attrgetter, index
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

from msgspec import Meta, json, msgpack

from ampwatch.numerics.blocks import (
    BLOCK_SIZES,
    NUM_DISTANCES,
    NUM_LEVELS,
    NUM_MANTISSAS,
    BlockHistogram,
    BlockLevel,
)
from ampwatch.numerics.exponents import (
    MAX_EXPONENT,
    MIN_EXPONENT,
    PLAIN_EXPONENTS,
    ExponentHistogram,
)
from ampwatch.numerics.units.ops import OpKind
from ampwatch.wire.records import (
    BudgetRecord,
    CensusRecord,
    ChecksumRecord,
    CulpritRecord,
    DevicePhasesRecord,
    EndRecord,
    FactsRecord,
    Finding,
    FindingRecord,
    MemoryRecord,
    OptimizerRecord,
    PlanRecord,
    RangeRecord,
    RunIdentity,
    RunState,
    SamplingRecord,
    SensorFailureRecord,
    StepPhase,
    StepRecord,
    WindowRecord,
)
from ampwatch.wire.records.fields import MAX_NAME
from ampwatch.wire.ring.layout import RecordKind
from ampwatch.wire.ring.text import check_names, cut_name, cut_text, harmless, refuse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ampwatch.wire.records import Record

MAX_DTYPE_NAME = 32
"""Longest name of the dtype of a range. Unit: characters."""

_CUTS = ((4096, 256), (1024, 64), (256, 32), (64, 16), (16, 4))
"""Longest text (characters) and most entries of a dict, tried in turn until a record fits.
The last fits into 8 slots whatever a finding says: 9 texts, 4 names, and 3 texts of each of 3
remedies at 4 bytes a character at most, and the numbers."""

_MIN_SCALE, _MAX_SCALE = 2.0**-149, 2.0**128
"""The loss scale is a float32 tensor; one that has halved itself too often is 0."""

_MAX_ROWS = 1024
"""Rows of a census or window that are tried; a ring that takes more is not met with."""

_MAX_TABLE = 4 << 20
"""Longest table before compression: a bound for the reader's memory. Unit: bytes."""

_MAX_LARGE_COUNT = 2**126

_WIDEST = 8
"""Bytes of a count of a histogram at most."""


def encode(record: Record, limit: int) -> tuple[RecordKind, bytes]:
    """Return the kind and the payload of a record, long text and long tables cut to fit.

    Args:
        record: The record.
        limit: Longest payload; what 8 slots hold, or more. Unit: bytes.

    Cost: 1 us for a step, 4 us for a range with 40 bins, 0.5 ms for a census of 400 rows.

    Raises:
        struct.error, TypeError, ValueError, AttributeError, RuntimeError, ArithmeticError:
            If a field is not what the record declares.
    """
    # By the exact type: a subclass may have fields of which the other end knows nothing.
    packer = _PACKERS.get(type(record))
    if packer is None:
        refuse("a record", record)
    kind, pack = packer
    payload = pack(record, limit)
    if len(payload) > limit:  # exponents of a tensor that has nearly all of them
        refuse(f"a record of at most {limit} bytes", payload)
    return kind, payload


def decode(kind: int, payload: bytes) -> Record:
    """Return the record that ``encode`` made ``payload`` of.

    Raises:
        ValueError: If the kind is unknown or the payload is not of its form.
    """
    unpack = _UNPACKERS.get(kind)
    if unpack is None:
        refuse("a known kind of record", kind)
    try:
        return unpack(payload)
    except (struct.error, zlib.error) as error:
        raise ValueError(str(error)) from error


def encode_identity(identity: RunIdentity) -> bytes:
    """Return the identity as it stands in the header.

    Raises:
        TypeError, ValueError, ArithmeticError: If a field is not what it declares.
    """
    encoded = json.encode(identity)
    decode_identity(encoded)  # a ring that no reader accepts is not worth writing
    return encoded


def decode_identity(encoded: bytes) -> RunIdentity:
    """Return the identity of a header.

    Raises:
        ValueError: If it is no identity: names, types, lengths.
    """
    identity = json.decode(encoded, type=RunIdentity)
    check_names(identity.run, identity.host, identity.version)
    return identity


class _Form:
    """Codec of one record type: an array of its fields.

    Subclasses cut, compress or rearrange on the way.

    Args:
        record: The dataclass.
        check: Called with a record that was read; raises ``ValueError`` for what the types
            cannot say.
    """

    def __init__(self, record: type[Any], check: Callable[[Any], None] | None = None) -> None:
        self._record = record
        self._names = record.__match_args__
        self._values = attrgetter(*self._names)
        self._check = check
        hints = get_type_hints(record, include_extras=True)
        self._types: Any = tuple[tuple(hints[name] for name in self._names)]  # type: ignore[misc]
        self._encoder: Any = _ENCODER
        self._decoder: Any = msgpack.Decoder(self._types)

    def pack(self, record: Any, limit: int) -> bytes:  # noqa: ARG002 - those below cut
        # Decoded at once: a record that every reader would refuse is found here, where it is counted
        # as dropped, and not there, where it counts as damage.
        payload = _ENCODER.encode(self._values(record))
        self._decoder.decode(payload)
        return payload

    def unpack(self, payload: bytes) -> Any:
        return self._build(self._decoder.decode(payload))

    def _build_checked(self, values: tuple[Any, ...]) -> Any:
        """Return the record of values whose types and bounds are to be checked.

        Raises:
            ValueError: If one is not what the record declares.
        """
        # msgspec.convert would read the types anew in each call, which takes 10 us.
        return self._build(self._decoder.decode(_ENCODER.encode(values)))

    def _build(self, values: Iterable[Any]) -> Any:
        """Return the record of these values.

        Raises:
            ValueError: If they contradict one another.
        """
        record = self._record(*values)
        if self._check is not None:
            self._check(record)
        return record


class _StepForm(_Form):
    """A ``StepRecord``, packed by ``struct``."""

    _packing = struct.Struct("=qqddqdqBqqqqqqqq10fqqqq")

    def __init__(self) -> None:
        super().__init__(StepRecord, _check_step)
        self._place = self._names.index("phases")

    def pack(self, record: StepRecord, limit: int) -> bytes:  # noqa: ARG002 - nothing to cut
        values = self._values(record)
        place = self._place
        return self._packing.pack(*values[:place], *values[place], *values[place + 1 :])

    def unpack(self, payload: bytes) -> Any:
        values = self._packing.unpack(payload)
        place, end = self._place, self._place + len(StepPhase)
        return self._build_checked((*values[:place], values[place:end], *values[end:]))


class _OptimizerForm(_Form):
    """An ``OptimizerRecord``, packed by ``struct``."""

    _packing = struct.Struct("=qB?qqqqq")

    def __init__(self) -> None:
        super().__init__(OptimizerRecord)

    def pack(self, record: OptimizerRecord, limit: int) -> bytes:  # noqa: ARG002 - nothing to cut
        r = record
        return self._packing.pack(r.step, r.index, r.skipped, r.total_steps, *r.total_skipped)

    def unpack(self, payload: bytes) -> Any:
        *values, a, b, c, d = self._packing.unpack(payload)
        return self._build_checked((*values, (a, b, c, d)))


class _TextForm(_Form):
    """Records of free text, which is cut until the record fits: most of it is better than none."""

    def pack(self, record: Any, limit: int) -> bytes:
        values = [getattr(record, name) for name in self._names]
        payload = b""
        for length, entries in _CUTS:
            payload = _ENCODER.encode([cut_text(value, length, entries) for value in values])
            if len(payload) <= limit:
                break
        self._decoder.decode(payload)
        return payload

    def unpack(self, payload: bytes) -> Any:
        return self._build(map(harmless, self._decoder.decode(payload)))


class _RangeForm(_Form):
    """A ``RangeRecord``: most of them fit into one slot."""

    def __init__(self) -> None:
        super().__init__(RangeRecord, _check_range)
        self._place = self._names.index("blocks")
        after = self._names.index("before_step")
        self._values = attrgetter(*self._names[: self._place])
        measured = _histogram_types(MIN_EXPONENT, MAX_EXPONENT)
        # Without the loss scale exponents may be beyond those of a measurement, by as much.
        plain = _histogram_types(*PLAIN_EXPONENTS)
        known = get_args(self._types)
        types = (*known[: self._place], _BLOCKS, known[after], tuple[plain] | None, *measured)  # type: ignore[valid-type]
        self._decoder = msgpack.Decoder(tuple[types])  # type: ignore[valid-type]

    def pack(self, record: RangeRecord, limit: int) -> bytes:  # noqa: ARG002 - nothing to cut
        step, time_ns, topic, module, dtype, *rest = self._values(record)
        names = cut_name(module, MAX_NAME), cut_name(dtype, MAX_DTYPE_NAME)
        before = None if record.before is None else _pack_histogram(record.before)
        histogram = _pack_histogram(record.histogram)
        blocks = tuple(map(_pack_blocks, record.blocks))
        head = (step, time_ns, topic, *names, *rest, blocks, record.before_step)
        payload = _ENCODER.encode((*head, before, *histogram))
        self._decoder.decode(payload)
        return payload

    def unpack(self, payload: bytes) -> Any:
        values = self._decoder.decode(payload)
        blocks, before_step, before, *histogram = values[self._place :]
        plain = None if before is None else _unpack_histogram(*before)
        every = tuple(_unpack_blocks(*one) for one in blocks)
        head = (*values[: self._place], every, before_step)
        return self._build((*head, plain, _unpack_histogram(*histogram)))


class _TableForm(_Form):
    """Records whose last fields are a table and the number of rows left out of it.

    Rows of a table repeat one another; compressed they take some 10 bytes each.
    """

    def pack(self, record: Any, limit: int) -> bytes:
        *head, rows, left_out = map(_with_short_names, self._values(record))
        total = left_out + len(rows)
        count = min(len(rows), _MAX_ROWS)
        while True:
            text = self._encoder.encode((*head, rows[:count], total - count))
            payload = zlib.compress(text, 1)
            if len(payload) <= limit and len(text) <= _MAX_TABLE:
                break
            if count == 0:
                refuse(f"totals of at most {limit} bytes", text)
            # In proportion: two or three attempts, where one row at a time would be hundreds.
            count = min(count - 1, count * limit // len(payload))
        self._decoder.decode(text)
        return payload

    def unpack(self, payload: bytes) -> Any:
        inflater = zlib.decompressobj()
        # Bounded: 15 KB of zeros compressed are 15 MB, and a reader has a ring of them.
        text = inflater.decompress(payload, _MAX_TABLE)
        if not inflater.eof or inflater.unused_data:
            refuse(f"a compressed table of at most {_MAX_TABLE} bytes", payload)
        record = super().unpack(text)
        for table in self._values(record):
            for names in _names_in(table):
                check_names(*names)
        return record


class _CensusForm(_TableForm):
    """A ``CensusRecord``: JSON, whose integers are of any size."""

    def __init__(self) -> None:
        super().__init__(CensusRecord, _check_census)
        self._encoder, self._decoder = _JSON_ENCODER, json.Decoder(self._types)


def _number(value: Any) -> Any:
    """Return a number of another library (a tensor, a NumPy scalar) as one of Python."""
    try:
        return index(value)
    except TypeError:
        return float(value)


def _names_in(table: Any) -> list[set[str]]:
    """Return the names in each column of a table; none for what is no table."""
    if not isinstance(table, tuple) or not table or not isinstance(table[0], tuple):
        return []
    # By column and each name once: a census has thousands of cells and few names.
    return [set(column) for column in zip(*table, strict=True) if isinstance(column[0], str)]


def _with_short_names(table: Any) -> Any:
    """Return a table whose names are short and printable; what is no table as it is."""
    names = set().union(*_names_in(table))
    if all(cut_name(name, MAX_NAME) is name for name in names):
        return table
    return tuple(
        tuple(cut_name(cell, MAX_NAME) if isinstance(cell, str) else cell for cell in row)
        for row in table
    )


def _histogram_types(lowest: int, highest: int) -> tuple[Any, ...]:
    """Return the types of the fields of a histogram with exponents in these bounds."""
    elements = get_type_hints(ExponentHistogram) | {
        "first": Annotated[int, Meta(ge=lowest, le=highest)],
        # The length is bounded before anything of that length is made.
        "counts": tuple[Annotated[int, Meta(ge=0, le=highest - lowest + 1)], bytes],
    }
    return tuple(elements.values())


def _pack_histogram(histogram: ExponentHistogram) -> tuple[Any, ...]:
    first, counts, *elements = _HISTOGRAM_VALUES(histogram)
    return first if counts else 0, _pack_counts(counts), *elements


def _unpack_histogram(first: int, counts: tuple[int, bytes], *elements: Any) -> ExponentHistogram:
    return ExponentHistogram(first, _unpack_counts(*counts), *elements)


def _pack_blocks(blocks: BlockHistogram) -> tuple[Any, ...]:
    # Of most tensors two levels or three are empty, which take two bytes each.
    levels = [
        _pack_counts(level.distances + level.maxima if level.blocks else ())
        for level in blocks.levels
    ]
    return blocks.size, blocks.top, blocks.zero_blocks, levels


def _unpack_blocks(
    size: int, top: int, zero_blocks: int, levels: Iterable[tuple[int, bytes]]
) -> BlockHistogram:
    return BlockHistogram(size, top, tuple(_unpack_level(*level) for level in levels), zero_blocks)


def _unpack_level(num_counts: int, planes: bytes) -> BlockLevel:
    if not num_counts:
        return BlockLevel()
    if num_counts != NUM_DISTANCES + NUM_MANTISSAS:
        refuse("as many counts as a level has", num_counts)
    counts = _unpack_counts(num_counts, planes)
    return BlockLevel(counts[:NUM_DISTANCES], counts[NUM_DISTANCES:])


def _pack_counts(counts: tuple[int, ...]) -> tuple[int, bytes]:
    # The lowest bytes of all counts, then the second ones, as far as the largest count has any: most
    # histograms have counts of two or three bytes, and this needs no length for each of them.
    packed = struct.pack(f"<{len(counts)}Q", *counts)
    width = (max(counts, default=0).bit_length() + 7) // 8
    return len(counts), b"".join([packed[byte::_WIDEST] for byte in range(width)])


def _unpack_counts(num_counts: int, planes: bytes) -> tuple[int, ...]:
    width, rest = divmod(len(planes), num_counts or 1)
    # Whatever the bytes say: without this a wrong length would raise something else further down.
    if rest or width > _WIDEST or (planes and not num_counts):
        refuse(f"the bytes of {num_counts} counts", planes)
    packed = bytearray(_WIDEST * num_counts)
    for byte in range(width):
        packed[byte::_WIDEST] = planes[byte * num_counts : (byte + 1) * num_counts]
    return struct.unpack(f"<{num_counts}Q", packed)


def _check_range(record: RangeRecord) -> None:
    """Refuse what no measurement gives.

    Raises:
        ValueError: If the numbers contradict one another.
    """
    check_names(record.module, record.dtype)
    if not (record.loss_scale == 0.0 or _MIN_SCALE <= record.loss_scale <= _MAX_SCALE):
        refuse("a loss scale of float32", record.loss_scale)
    if record.flushed > record.histogram.zeros:
        refuse("no more flushed zeros than zeros", record.flushed)
    _check_histogram(record.histogram, MIN_EXPONENT, MAX_EXPONENT)
    for blocks in record.blocks:
        _check_blocks(blocks)
    if record.before is not None:
        _check_histogram(record.before, *PLAIN_EXPONENTS)


def _check_histogram(h: ExponentHistogram, lowest: int, highest: int) -> None:
    # By local names: this is read once for each module, topic, sample and rank of a machine.
    counts, zeros, nans = h.counts, h.zeros, h.nans
    positive_infs, negative_infs = h.positive_infs, h.negative_infs
    if zeros < 0 or nans < 0 or positive_infs < 0 or negative_infs < 0:
        refuse("counts that are not negative", h)
    # Equal histograms must have equal bytes, and ``first`` must say where the smallest element is.
    if counts and not (counts[0] and counts[-1]):
        refuse("counts without empty bins at the ends", h)
    if h.first + len(counts) - 1 > highest:
        refuse(f"exponents from {lowest} to {highest}", h)
    if sum(counts) + zeros + nans + positive_infs + negative_infs > h.numel:
        refuse("no more elements in the bins than there are", h)
    extremes = 0.0 < h.amin <= h.amax < inf if counts else h.amin == inf and 0.0 <= h.amax < inf
    if not extremes:
        refuse("extremes that are finite and in order", h)


def _check_blocks(blocks: BlockHistogram) -> None:
    if blocks.size not in BLOCK_SIZES:
        refuse("blocks of 16 or 32 elements", blocks.size)
    for level in blocks.levels:
        # Each block has a largest element, which lies at the first distance or the second.
        if not level.blocks <= sum(level.distances) <= level.blocks * blocks.size:
            refuse("as many elements as blocks can have", level)


def _check_step(record: StepRecord) -> None:
    if record.duration_s < 0 or record.duration_s == inf:
        refuse("a duration that is NaN, or finite and not negative", record)
    _check_phases(record)


def _check_phases(record: StepRecord | DevicePhasesRecord) -> None:
    if not all(0.0 <= seconds < inf for seconds in record.phases):
        refuse("phases that are finite and not negative", record.phases)


def _check_census(record: CensusRecord) -> None:
    # msgspec has no bound for integers of more than 64 bits. Later code makes floats of them,
    # and above 2**1023 that raises in the daemon.
    tables = (record.ops, record.casts, record.fallbacks, record.rows)
    numbers = (cell for table in tables for row in table for cell in row if isinstance(cell, int))
    if max(numbers, default=0) > _MAX_LARGE_COUNT:
        refuse(f"counts of at most {_MAX_LARGE_COUNT}", record.step)
    if any(total.kind is OpKind.CAST for total in record.ops):
        refuse("casts in the table of casts", record.ops)


def _check_window(record: WindowRecord) -> None:
    if not (isnan(record.drag) or 0.0 <= record.drag < inf):
        refuse("a drag that is NaN, or finite and not negative", record.drag)


def _check_plan(record: PlanRecord) -> None:
    if not (0.0 <= record.limit_db < inf and 0.0 <= record.max_flushed <= 1.0):
        refuse("a finite limit and a share", (record.limit_db, record.max_flushed))
    if not 0.0 < record.loss_scale < inf:
        refuse("a loss scale", record.loss_scale)


def _check_budget(record: BudgetRecord) -> None:
    if not (isnan(record.total) or record.total >= 0.0):
        refuse("an error that is NaN or not negative", record.total)


def _check_checksum(record: ChecksumRecord) -> None:
    check_names(*(name for place in record.places for name in place))
    if not len(record.places) == len(record.first) == len(record.then):
        refuse("two checksums of each group", record.places)


def _check_end(record: EndRecord) -> None:
    if record.state not in (RunState.FINISHED, RunState.FAILED):
        refuse("finished or failed", record.state)


def _check_failure(record: SensorFailureRecord) -> None:
    check_names(record.sensor)


_COUNTS = tuple[Annotated[int, Meta(ge=0, le=NUM_DISTANCES + NUM_MANTISSAS)], bytes]
_LEVELS = Annotated[tuple[_COUNTS, ...], Meta(min_length=NUM_LEVELS, max_length=NUM_LEVELS)]
_EXPONENT = Annotated[int, Meta(ge=PLAIN_EXPONENTS[0] - 1, le=PLAIN_EXPONENTS[1])]
_BLOCK = tuple[int, _EXPONENT, Annotated[int, Meta(ge=0)], _LEVELS]
_BLOCKS = Annotated[tuple[_BLOCK, ...], Meta(max_length=len(BLOCK_SIZES))]
"""Types of the blocks of a range, bounded before anything of their length is made."""

_ENCODER = msgpack.Encoder(enc_hook=_number)
_JSON_ENCODER = json.Encoder(enc_hook=_number)
_HISTOGRAM = ExponentHistogram.__struct_fields__
_HISTOGRAM_VALUES = attrgetter(*_HISTOGRAM)
_FINDING = _TextForm(Finding)
_FORMS: tuple[tuple[RecordKind, type[Any], _Form], ...] = (
    (RecordKind.STEP, StepRecord, _StepForm()),
    (RecordKind.OPTIMIZER, OptimizerRecord, _OptimizerForm()),
    (RecordKind.RANGE, RangeRecord, _RangeForm()),
    (RecordKind.SAMPLING, SamplingRecord, _Form(SamplingRecord)),
    (RecordKind.CENSUS, CensusRecord, _CensusForm()),
    (RecordKind.WINDOW, WindowRecord, _TableForm(WindowRecord, _check_window)),
    (RecordKind.CHECKSUM, ChecksumRecord, _Form(ChecksumRecord, _check_checksum)),
    (
        RecordKind.CULPRIT,
        CulpritRecord,
        _Form(CulpritRecord, lambda record: check_names(record.parameter)),
    ),
    (
        RecordKind.DEVICE_PHASES,
        DevicePhasesRecord,
        _Form(DevicePhasesRecord, _check_phases),
    ),
    (RecordKind.MEMORY, MemoryRecord, _Form(MemoryRecord)),
    (RecordKind.PLAN, PlanRecord, _TextForm(PlanRecord, _check_plan)),
    (RecordKind.BUDGET, BudgetRecord, _TextForm(BudgetRecord, _check_budget)),
    (RecordKind.FACTS, FactsRecord, _TextForm(FactsRecord)),
    (RecordKind.END, EndRecord, _TextForm(EndRecord, _check_end)),
    (RecordKind.FAILURE, SensorFailureRecord, _TextForm(SensorFailureRecord, _check_failure)),
)
_PACKERS: dict[type[Any], tuple[RecordKind, Callable[[Any, int], bytes]]] = {
    **{record: (kind, form.pack) for kind, record, form in _FORMS},
    FindingRecord: (RecordKind.FINDING, lambda record, limit: _FINDING.pack(record.finding, limit)),
}
_UNPACKERS: dict[int, Callable[[bytes], Record]] = {
    **{kind: form.unpack for kind, _, form in _FORMS},
    RecordKind.FINDING: lambda payload: FindingRecord(_FINDING.unpack(payload)),
}
