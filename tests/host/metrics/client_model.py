"""The messages of Prometheus' protobuf format, as the library of Protocol Buffers reads them.

Source: ``io/prometheus/client/metrics.proto`` of prometheus/client_model: names, numbers, types.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any

from google.protobuf import timestamp_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.proto import parse_length_prefixed

_MESSAGES = {
    "LabelPair": "name=1 string, value=2 string",
    "Gauge": "value=1 double",
    "Counter": "value=1 double, exemplar=2 Exemplar, created_timestamp=3 Timestamp",
    "Quantile": "quantile=1 double, value=2 double",
    "Summary": "sample_count=1 uint64, sample_sum=2 double, quantile=3 *Quantile",
    "Untyped": "value=1 double",
    "Histogram": (
        "sample_count=1 uint64, sample_count_float=4 double, sample_sum=2 double, bucket=3 *Bucket, "
        "created_timestamp=15 Timestamp, schema=5 sint32, zero_threshold=6 double, zero_count=7 uint64, "
        "zero_count_float=8 double, negative_span=9 *BucketSpan, negative_delta=10 *sint64, "
        "negative_count=11 *double, positive_span=12 *BucketSpan, positive_delta=13 *sint64, "
        "positive_count=14 *double, exemplars=16 *Exemplar"
    ),
    "Bucket": (
        "cumulative_count=1 uint64, cumulative_count_float=4 double, upper_bound=2 double, exemplar=3 Exemplar"
    ),
    "BucketSpan": "offset=1 sint32, length=2 uint32",
    "Exemplar": "label=1 *LabelPair, value=2 double, timestamp=3 Timestamp",
    "Metric": (
        "label=1 *LabelPair, gauge=2 Gauge, counter=3 Counter, summary=4 Summary, untyped=5 Untyped, "
        "histogram=7 Histogram, timestamp_ms=6 int64"
    ),
    "MetricFamily": "name=1 string, help=2 string, type=3 MetricType, metric=4 *Metric, unit=5 string",
}
"""Fields by message: name, number and type, with a star if there may be several."""

TYPES = ("COUNTER", "GAUGE", "SUMMARY", "UNTYPED", "HISTOGRAM", "GAUGE_HISTOGRAM")
"""Names of the enum ``MetricType``, from 0 on."""

_PACKAGE = "io.prometheus.client"


def _file() -> FileDescriptorProto:
    file = FileDescriptorProto(name="metrics.proto", package=_PACKAGE, syntax="proto2")
    file.dependency.append("google/protobuf/timestamp.proto")
    kinds = file.enum_type.add(name="MetricType")
    for number, name in enumerate(TYPES):
        kinds.value.add(name=name, number=number)
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for text in fields.split(", "):
            field_name, _, rest = text.partition("=")
            number_text, kind = rest.split()
            field = message.field.add(name=field_name, number=int(number_text))
            field.label = (
                FieldDescriptorProto.LABEL_REPEATED
                if kind.startswith("*")
                else FieldDescriptorProto.LABEL_OPTIONAL
            )
            kind = kind.removeprefix("*")
            if kind == "Timestamp":
                field.type_name = ".google.protobuf.Timestamp"
            elif kind[0].isupper():
                field.type_name = f".{_PACKAGE}.{kind}"
            else:
                field.type = FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
    return file


def _classes() -> dict[str, Any]:
    pool = DescriptorPool()
    timestamps = FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(timestamps)
    pool.Add(timestamps)
    pool.Add(_file())
    return {
        name: GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in _MESSAGES
    }


CLASSES = _classes()
"""Classes of messages by name."""


def families(body: bytes) -> list[Any]:
    """Return the messages ``MetricFamily`` of a scrape.

    Raises:
        AssertionError: If something in them has no name.
    """
    found, source = [], BytesIO(body)
    while (family := parse_length_prefixed(CLASSES["MetricFamily"], source)) is not None:
        num_bytes = family.ByteSize()
        family.DiscardUnknownFields()
        assert family.ByteSize() == num_bytes, "fields that metrics.proto does not have"
        found.append(family)
    return found
