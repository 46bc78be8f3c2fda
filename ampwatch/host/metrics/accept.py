"""The ``Accept`` header of a scrape: whether it asks for Prometheus' protobuf format."""

from __future__ import annotations

import re

PROTOBUF = (
    "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
)
"""Content type of a scrape in protobuf."""

_MEDIA_TYPE, *_PARAMETERS = (part.strip() for part in PROTOBUF.split(";"))

_OTHERS = frozenset({"text/plain", "text/*", "application/openmetrics-text", "*/*"})
"""What else the daemon writes, as it can be asked for."""

_KEEP_NAMES = ("", "allow-utf-8", "underscores")
"""Ways of escaping that leave names of ours as they are."""

# RFC 9110, 12.4.2. What is written in another way counts as not asked for.
_QUALITY = re.compile(r"0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?")


def protobuf_type(accept: str) -> str | None:
    """Return the content type of an answer in protobuf; ``None`` if another format is preferred.

    Of what is asked for with the same quality, the first counts, as with exporters in Go. A
    wildcard never asks for protobuf. Nothing is raised, whatever the header is.

    Cost: linear in the length of the header; below 1 us for one that does not speak of protobuf.
    """
    accept = accept.lower()
    if _MEDIA_TYPE not in accept:
        return None
    best, found = 0.0, None
    for entry in accept.split(","):
        name, *rest = (part.strip() for part in entry.split(";"))
        parameters = _parameters(rest)
        offered = PROTOBUF if name in _OTHERS else _offered(name, parameters)
        quality = _quality(parameters.get("q", "1"))
        if offered is not None and quality > best:
            best, found = quality, None if name in _OTHERS else offered
    return found


def _parameters(parts: list[str]) -> dict[str, str]:
    pairs = (part.partition("=") for part in parts)
    return {name.strip(): value.strip().strip('"') for name, _, value in pairs}


def _offered(name: str, parameters: dict[str, str]) -> str | None:
    """Return the content type by which an entry is answered in protobuf, ``None`` if it is not."""
    asked = {f"{key}={value}" for key, value in parameters.items()}
    escaping = parameters.get("escaping", "")
    wanted = {parameter.lower() for parameter in _PARAMETERS}
    if name != _MEDIA_TYPE or not wanted <= asked or escaping not in _KEEP_NAMES:
        return None
    return f"{PROTOBUF}; escaping={escaping}" if escaping else PROTOBUF


def _quality(text: str) -> float:
    return float(text) if _QUALITY.fullmatch(text) else 0.0
