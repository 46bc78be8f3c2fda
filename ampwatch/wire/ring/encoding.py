"""Records and identities to bytes, and back.

Records of every step, and of every sampled one, are packed in the byte order of the
machine: numbers in the order of the fields of the dataclass, or as ``packing.py`` and
``precision_packing.py`` say.
The rare ones are JSON objects in UTF-8 (``forms.py``), NaN and infinities as Python
writes them. A change of any needs a new ``layout.LAYOUT``.

Decoding trusts nobody; a record that comes out has the types it declares, and counts
that are not negative.
"""

from __future__ import annotations

import struct
from dataclasses import fields
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ampwatch.wire.records import (
    CensusRecord,
    EndRecord,
    FactsRecord,
    Finding,
    FindingRecord,
    OptimizerRecord,
    RangeRecord,
    RunIdentity,
    SamplingRecord,
    SkipClass,
    StepRecord,
    WindowRecord,
)
from ampwatch.wire.ring import forms
from ampwatch.wire.ring.layout import MAX_IDENTITY, Kind
from ampwatch.wire.ring.packing import pack_range, unpack_range
from ampwatch.wire.ring.precision_packing import (
    pack_census,
    pack_window,
    unpack_census,
    unpack_window,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.wire.records import Record

_STEP = struct.Struct("=qqddqdqBq???qqqqqqq")
_STEP_FIELDS = tuple(f.name for f in fields(StepRecord))
_STEP_VALUES = attrgetter(*_STEP_FIELDS)
_STEP_COUNTS = attrgetter(
    *(f.name for f in fields(StepRecord) if f.type == "int" and f.name != "growth_tracker")
)
_OPTIMIZER = struct.Struct("=qB?qqqqq")
_SAMPLING = struct.Struct("=qq6q12q")
_SAMPLING_VALUES = attrgetter(*(f.name for f in fields(SamplingRecord)))
_NOT_LOOKED = -1


def encode(record: Record, limit: int) -> tuple[Kind, bytes]:
    """Return the kind and the payload of a record, long text and long tables cut to fit.

    Args:
        record: The record.
        limit: Longest payload; what 8 slots hold, or more. Unit: bytes.

    Raises:
        struct.error, TypeError, ValueError, AttributeError, RuntimeError, ArithmeticError:
            If a field is not what the record declares.
    """
    if packer := _PACKERS.get(type(record)):
        kind, pack = packer
        packed = pack(record)
        if len(packed) > limit:  # exponents of a tensor that has nearly all of them
            forms.refuse(f"a record of at most {limit} bytes", packed)
        return kind, packed
    if isinstance(record, CensusRecord):
        return Kind.CENSUS, pack_census(record, limit)
    if isinstance(record, WindowRecord):
        return Kind.WINDOW, pack_window(record, limit)
    if isinstance(record, FactsRecord):
        return Kind.FACTS, forms.to_json(record, forms.FACTS, limit)
    if isinstance(record, FindingRecord):
        return Kind.FINDING, forms.to_json(record.finding, forms.FINDING, limit)
    return Kind.END, forms.to_json(record, forms.END, limit)


def decode(kind: int, payload: bytes) -> Record:
    """Return the record that ``encode`` made ``payload`` of.

    Raises:
        ValueError: If the kind is unknown or the payload is not of its form.
    """
    decoder = _DECODERS.get(kind)
    if decoder is None:
        forms.refuse("a known kind of record", kind)
    try:
        return decoder(payload)
    except struct.error as error:
        raise ValueError(str(error)) from error


def encode_identity(identity: RunIdentity) -> bytes:
    """Return the identity as it stands in the header.

    Raises:
        AttributeError, TypeError, ValueError: If a field is not what it declares.
    """
    encoded = forms.to_json(identity, forms.IDENTITY, MAX_IDENTITY)
    decode_identity(encoded)  # a ring that no reader accepts is not worth writing
    return encoded


def decode_identity(encoded: bytes) -> RunIdentity:
    """Return the identity of a header.

    Raises:
        ValueError: If it is not exactly an identity: names, types, lengths.
    """
    return RunIdentity(**forms.from_json(encoded, forms.IDENTITY))


def _pack_step(record: StepRecord) -> bytes:
    return _STEP.pack(*_STEP_VALUES(record))


def _pack_optimizer(record: OptimizerRecord) -> bytes:
    r = record
    return _OPTIMIZER.pack(r.step, r.index, r.skipped, r.total_steps, *r.total_skipped)


def _pack_sampling(record: SamplingRecord) -> bytes:
    step, interval, samples, *rest = _SAMPLING_VALUES(record)
    return _SAMPLING.pack(step, interval, *samples, *rest)


_PACKERS: dict[type[Any], tuple[Kind, Callable[[Any], bytes]]] = {
    StepRecord: (Kind.STEP, _pack_step),
    OptimizerRecord: (Kind.OPTIMIZER, _pack_optimizer),
    RangeRecord: (Kind.RANGE, pack_range),
    SamplingRecord: (Kind.SAMPLING, _pack_sampling),
}
"""The records that are packed whole; tables are cut to fit, and the others are JSON."""


def _decode_step(payload: bytes) -> StepRecord:
    values = dict(zip(_STEP_FIELDS, _STEP.unpack(payload), strict=True))
    values["skip_class"] = SkipClass(values["skip_class"])
    record = StepRecord(**values)
    if min(_STEP_COUNTS(record)) < 0 or record.growth_tracker < -1:
        forms.refuse("counts that are not negative", record)
    if record.duration_s < 0 or record.duration_s == inf:
        forms.refuse("a duration that is NaN, or finite and not negative", record)
    return record


def _decode_optimizer(payload: bytes) -> OptimizerRecord:
    step, index, skipped, total_steps, *total_skipped = _OPTIMIZER.unpack(payload)
    if min(step, total_steps, *total_skipped) < 0:
        forms.refuse("counts that are not negative", payload)
    calibrating, probe, unprovoked, storm = total_skipped
    totals = (calibrating, probe, unprovoked, storm)
    return OptimizerRecord(step, index, skipped, total_steps, totals)


def _decode_sampling(payload: bytes) -> SamplingRecord:
    step, interval, *values = _SAMPLING.unpack(payload)
    gradient, activation, activation_gradient, weight, update, buffer, *rest = values
    samples = (gradient, activation, activation_gradient, weight, update, buffer)
    record = SamplingRecord(step, interval, samples, *rest)
    looks = (record.parameter_nonfinite, record.buffer_nonfinite)
    counts = (step, interval, *values[:-3], record.device_ns)
    if min(counts) < 0 or min(looks) < _NOT_LOOKED:
        forms.refuse("counts that are not negative", record)
    return record


_DECODERS: dict[int, Callable[[bytes], Record]] = {
    Kind.STEP: _decode_step,
    Kind.OPTIMIZER: _decode_optimizer,
    Kind.RANGE: unpack_range,
    Kind.SAMPLING: _decode_sampling,
    Kind.CENSUS: unpack_census,
    Kind.WINDOW: unpack_window,
    Kind.FACTS: lambda payload: FactsRecord(**forms.from_json(payload, forms.FACTS)),
    Kind.FINDING: lambda payload: FindingRecord(Finding(**forms.from_json(payload, forms.FINDING))),
    Kind.END: lambda payload: EndRecord(**forms.from_json(payload, forms.END)),
}
