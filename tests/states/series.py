"""Scrapes as the series that a Prometheus keeps: for promtool, and for a real one over remote write.

A series that is gone from one scrape to the next ends there, as Prometheus has it: it is not seen for
five minutes more.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from tests.states.clock import START

JOB = "ampwatch"

_LINE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


def unescaped(text: str) -> str:
    """Return the value of a label as it is meant."""
    return _ESCAPED.sub(lambda found: "\n" if found[1] == "n" else found[1], text)


def labels_of(text: str) -> dict[str, str]:
    """Return the labels that are written in ``text``."""
    return {name: unescaped(value) for name, value in _LABEL.findall(text)}


@dataclass(slots=True)
class Series:
    """The values of one series.

    Attributes:
        name: Of the metric.
        labels: All labels but the name.
        written: Name and labels as a scrape writes them, job and instance included.
        values: One for each scrape; ``None`` where it was not there.
    """

    name: str
    labels: dict[str, str]
    written: str
    values: list[float | None] = field(default_factory=list)


@dataclass
class Scraped:
    """All series of one script.

    Attributes:
        instance: The daemon that was scraped.
        times: When. Unit: s.
        series: By name and labels as they are written.
    """

    instance: str
    times: list[float] = field(default_factory=list)
    series: dict[str, Series] = field(default_factory=dict)

    @classmethod
    def of(cls, instance: str, scrapes: Iterable[tuple[float, str]]) -> Scraped:
        """Take in scrapes in order; one without text has failed."""
        found = cls(instance)
        for now, text in scrapes:
            place = len(found.times)
            found.times.append(now)
            found._put(place, f"up {int(bool(text))}")
            for line in text.splitlines():
                if not line.startswith("#"):
                    found._put(place, line)
        for series in found.series.values():
            series.values += [None] * (len(found.times) - len(series.values))
        return found

    def _put(self, place: int, line: str) -> None:
        key, _, value = line.rpartition(" ")
        series = self.series.get(key)
        if series is None:
            found = _LINE.match(line)
            assert found is not None, line
            name, inner = found[1], found[2] or ""
            inner = ",".join(filter(None, (inner, f'instance="{self.instance}",job="{JOB}"')))
            series = self.series[key] = Series(name, labels_of(inner), f"{name}{{{inner}}}")
        series.values += [None] * (place - len(series.values))
        series.values.append(float(value))

    def now(self, name: str, **labels: str) -> dict[tuple[tuple[str, str], ...], float]:
        """Return the newest values of a metric by those of its labels that were not given."""
        return {
            tuple(
                (k, v) for k, v in s.labels.items() if k not in ("job", "instance", *labels)
            ): last
            for s in self.series.values()
            if s.name == name
            and all(s.labels.get(k) == v for k, v in labels.items())
            and (last := s.values[-1]) is not None
        }

    def one(self, name: str, **labels: str) -> float | None:
        """Return the newest value of the one series with these labels; ``None`` without one."""
        found = list(self.now(name, **labels).values())
        assert len(found) <= 1, (name, labels, found)
        return found[0] if found else None


def for_promtool(scraped: Scraped) -> list[dict[str, str]]:
    """Return the input series of a test of rules, whose time begins at 0."""
    return [
        {"series": series.written, "values": " ".join(_words(series))}
        for series in scraped.series.values()
    ]


def _words(series: Series) -> Iterator[str]:
    # Time begins at 0 there, and what tells a time is compared with it.
    since = START if series.name.endswith("_timestamp_seconds") else 0.0
    was_there = False
    for value, several in groupby(series.values, key=_same):
        number = sum(1 for _ in several)
        if value is None:
            yield from (["stale"] if was_there else ["_"])
            if number > 1:
                yield f"_x{number - 1}"
        else:
            text = _number(float(value) - since)
            yield (
                f"{text}+0x{number - 1}"
                if number > 1 and text[-1].isdigit()
                else " ".join([text] * number)
            )
        was_there = value is not None


def _same(value: float | None) -> str | None:
    """Return what two equal values have in common; NaN is equal to itself here."""
    return None if value is None else repr(value)


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Inf" if value > 0 else "-Inf"
    return repr(value)


_STALE = struct.pack("<Q", 0x7FF0000000000002)
"""The NaN that ends a series."""


def for_remote_write(all_scraped: Iterable[Scraped]) -> bytes:
    """Return the body of a request that writes everything: a ``WriteRequest``, packed by snappy."""
    message = bytearray()
    for scraped in all_scraped:
        for series in scraped.series.values():
            labels = {"__name__": series.name, **series.labels}
            packed = b"".join(
                _field(1, _field(1, name.encode()) + _field(2, value.encode()))
                for name, value in sorted(labels.items())
                if value
            )
            packed += b"".join(_samples(series.values, scraped.times))
            message += _field(1, packed)
    return _unpacked_snappy(bytes(message))


def _samples(values: Sequence[float | None], times: Sequence[float]) -> Iterator[bytes]:
    was_there = False
    for value, time in zip(values, times, strict=True):
        if value is not None or was_there:
            number = _STALE if value is None else struct.pack("<d", value)
            yield _field(2, b"\x09" + number + b"\x10" + _varint(round(time * 1000)))
        was_there = value is not None


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _unpacked_snappy(content: bytes) -> bytes:
    """Return ``content`` in the block format of snappy, as literals: nothing is compressed."""
    out = bytearray(_varint(len(content)))
    for start in range(0, len(content), 65536):
        part = content[start : start + 65536]
        out += bytes([61 << 2]) + struct.pack("<H", len(part) - 1) + part
    return bytes(out)


def alerts_as_series(
    firing: Mapping[float, Sequence[Mapping[str, str]]], times: Sequence[float]
) -> Scraped:
    """Return the series ``ALERTS`` that a Prometheus with rules would write itself.

    Args:
        firing: Labels of the alerts that fire, by time. Unit: s.
        times: Of all scrapes. Unit: s.
    """
    found = Scraped("", list(times))
    for place, time in enumerate(times):
        for labels in firing.get(time, ()):
            key = repr(sorted(labels.items()))
            series = found.series.setdefault(
                key, Series("ALERTS", {**labels, "alertstate": "firing"}, key)
            )
            series.values += [None] * (place - len(series.values)) + [1.0]
    for series in found.series.values():
        series.values += [None] * (len(times) - len(series.values))
    return found
