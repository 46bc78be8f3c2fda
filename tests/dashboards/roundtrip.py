"""Grafana's own types as a schema: what they do not know is lost on the way through them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard


def lost(dashboard: dict[str, Any]) -> list[str]:
    """Return the paths in ``dashboard`` that Grafana's types have no place for."""
    register_default_plugins()
    through = JSONEncoder(sort_keys=False).encode(Dashboard.from_json(dashboard))
    return list(_missing(dashboard, json.loads(through), ""))


def _missing(before: Any, after: Any, path: str) -> Iterator[str]:
    if before is None:  # written out or left out, it means the same
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            if key in after:
                yield from _missing(value, after[key], f"{path}.{key}")
            elif value is not None:
                yield f"{path}.{key}"
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from _missing(one, other, f"{path}[{index}]")
    elif before != after:
        yield f"{path}: {before!r} became {after!r}"
