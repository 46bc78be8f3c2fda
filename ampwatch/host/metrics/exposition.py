"""The families as text, byte for byte as ``prometheus_client`` writes them, four times as fast.

The library escapes every name and label of every series at every scrape. Between two
scrapes only the numbers change, so the beginning of each line is remembered here.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from prometheus_client.utils import floatToGoString

from ampwatch.host.metrics.metric import Exemplified

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ampwatch.host.metrics.metric import Metric, Samples

    Collected = Iterable[tuple[Metric, Samples]]
    Lines = Iterator[tuple[str, tuple[str, ...], str, float | Exemplified]]

END = "# EOF\n"


class Exposition:
    """Writes scrapes in one of the two formats.

    Args:
        header: Returns what the library writes for a family without samples.
        exemplars: Whether the format has exemplars.

    Cost:
        About 2 us a series, and 0.2 KB for each of the newest scrape.
    """

    def __init__(self, header: Callable[[Metric], str], *, exemplars: bool) -> None:
        self._header = header
        self._has_exemplars = exemplars
        self._headers: dict[str, str] = {}
        self._beginnings: dict[tuple[str, tuple[str, ...], str], str] = {}

    def render(self, collected: Collected) -> str:
        """Return the text of a scrape.

        Args:
            collected: Each metric with the label values and the value of its samples.
        """
        known, used = self._beginnings, {}
        text = []
        for metric, samples in collected:
            header = self._headers.get(metric.name)
            if header is None:
                header = self._headers[metric.name] = self._header(metric).removesuffix(END)
            text.append(header)
            for name, values, bound, value in _lines(metric, samples):
                # Known by the values, not by the place: ranks and modules come and go in between.
                key = (name, values, bound)
                beginning = known.get(key)
                if beginning is None:
                    beginning = _beginning(name, metric.labels, values, bound)
                used[key] = beginning
                tail = ""
                if isinstance(value, Exemplified):
                    tail = _exemplar(value) if self._has_exemplars else ""
                    value = value.value  # noqa: PLW2901 - the number that it carries
                number = floatToGoString(value)  # type: ignore[no-untyped-call]
                text.append(f"{beginning} {number}{tail}\n")
        # Only those of this scrape: series of runs that are over must not pile up.
        self._beginnings = used
        return "".join(text)


def _lines(metric: Metric, samples: Samples) -> Lines:
    """Yield the name, the label values, the bound of a bucket and the value of each line."""
    if metric.type != "histogram":
        for values, value in samples:
            yield metric.name, values, "", value
        return
    for values, (buckets, total) in samples:
        for bound, count in buckets:
            yield f"{metric.name}_bucket", values, bucket_label(bound), count
        # As the library does: without a sum it writes no count either.
        if total is not None:
            yield f"{metric.name}_count", values, "", buckets[-1][1]
            yield f"{metric.name}_sum", values, "", total


def _beginning(name: str, labels: tuple[str, ...], values: tuple[str, ...], bound: str) -> str:
    pairs = list(zip(labels, values, strict=True))
    if bound:
        pairs.append(("le", bound))
    if not pairs:
        return name
    # Sorted, as the library does, which is what the tests compare with byte for byte.
    words = ",".join(f'{label}="{_escaped(value)}"' for label, value in sorted(pairs))
    return f"{name}{{{words}}}"


def _exemplar(value: Exemplified) -> str:
    words = ",".join(f'{label}="{_escaped(text)}"' for label, text in sorted(value.labels.items()))
    return f" # {{{words}}} 1.0 {value.time_s}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def bucket_label(bound: float) -> str:
    """Return the label ``le`` of the bucket up to ``bound``."""
    return "+Inf" if math.isinf(bound) else repr(bound)
