"""Tests of the wire format: the library of Protocol Buffers reads what was written."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampwatch.host.metrics import protobuf
from tests.host.metrics.client_model import CLASSES

UINT64 = st.integers(0, 2**64 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)


@given(UINT64)
def test_integers_without_a_sign(value: int) -> None:
    """All of uint64."""
    message = CLASSES["Histogram"].FromString(protobuf.integer(7, value))

    assert message.zero_count == value


@given(INT64)
def test_integers_with_a_sign(value: int) -> None:
    """All of int64, as type int64 and, packed, as sint64."""
    metric = CLASSES["Metric"].FromString(protobuf.integer(6, value))
    histogram = CLASSES["Histogram"].FromString(protobuf.packed_signed(13, [value, 0, -1]))

    assert metric.timestamp_ms == value
    assert list(histogram.positive_delta) == [value, 0, -1]


@given(INT32)
def test_small_integers_with_a_sign(value: int) -> None:
    """All of sint32."""
    assert CLASSES["Histogram"].FromString(protobuf.signed(5, value)).schema == value


@given(st.floats())
def test_doubles(value: float) -> None:
    """Bit for bit, NaN too."""
    message = CLASSES["Gauge"].FromString(protobuf.double(1, value))

    assert struct.pack("<d", message.value) == struct.pack("<d", value)


@given(st.text())
def test_text_and_messages_of_any_length(text: str) -> None:
    """As UTF-8; a message in a message is one."""
    pair = protobuf.text(1, "name") + protobuf.text(2, text)

    message = CLASSES["Metric"].FromString(protobuf.block(1, pair))

    assert [(label.name, label.value) for label in message.label] == [("name", text)]


@pytest.mark.parametrize("size", [0, 127, 128, 16383, 16384, 1 << 21])
def test_a_length_has_as_many_bytes_as_it_needs(size: int) -> None:
    """Where one byte more is needed."""
    label = CLASSES["LabelPair"].FromString(protobuf.text(1, "x" * size))

    assert label.SerializeToString() == protobuf.text(1, "x" * size)
    assert label.name == "x" * size
