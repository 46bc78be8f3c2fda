"""A Prometheus, asked what Grafana would ask it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

from ampwatch.errors import AmpwatchError

if TYPE_CHECKING:
    from tools.preview.intervals import Interval, TimeSpan


class PrometheusError(AmpwatchError):
    """Prometheus does not answer, or says that a query is wrong."""


class Series(NamedTuple):
    """Series of an answer.

    Attributes:
        labels: Its labels, the name of the metric among them.
        samples: Unix time in seconds and value of each sample, in their order.
    """

    labels: dict[str, str]
    samples: list[tuple[float, float]]


class Prometheus:
    """Asks through the HTTP API.

    Args:
        url: Where it listens.
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    def instant(self, expression: str, at: float) -> list[Series]:
        """Return the newest sample of each series.

        Raises:
            PrometheusError: If it does not answer, or the expression is wrong.
        """
        data = self._ask("query", query=expression, time=at)
        if data["resultType"] == "scalar":
            return [Series({}, [_sample(data["result"])])]
        return [Series(s["metric"], [_sample(s["value"])]) for s in data["result"]]

    def ranged(self, expression: str, interval: Interval) -> list[Series]:
        """Return the samples of each series over the time drawn.

        Raises:
            PrometheusError: If it does not answer, or the expression is wrong.
        """
        step = interval.step
        start, end = (t // step * step for t in (interval.span.start, interval.span.end))
        data = self._ask("query_range", query=expression, start=start, end=end, step=step)
        return [Series(s["metric"], [_sample(v) for v in s["values"]]) for s in data["result"]]

    def label_values(self, label: str, match: str, span: TimeSpan) -> list[str]:
        """Return the values of a label, of all series or of those that ``match``.

        Raises:
            PrometheusError: If it does not answer, or the selector is wrong.
        """
        selector = {"match[]": match} if match else {}
        found = self._ask(f"label/{label}/values", start=span.start, end=span.end, **selector)
        return [str(value) for value in found]

    def _ask(self, path: str, **parameters: object) -> Any:
        address = f"{self._url}/api/v1/{path}?{urlencode(parameters)}"
        try:
            with urllib.request.urlopen(address, timeout=30) as answer:  # noqa: S310 - as told
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            raise PrometheusError(_reason(text)) from None
        except OSError as error:
            msg = f"expected a Prometheus at {self._url}, got: {error}; start one, or give another --prometheus"
            raise PrometheusError(msg) from None


def _sample(pair: tuple[float, str]) -> tuple[float, float]:
    return float(pair[0]), float(pair[1])


def _reason(text: str) -> str:
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError):
        return text
