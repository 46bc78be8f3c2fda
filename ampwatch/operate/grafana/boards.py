"""Dashboards as files: reading them, comparing them with what a Grafana has, writing them."""

from __future__ import annotations

import copy
import difflib
import json
from typing import TYPE_CHECKING, Any

from ampwatch.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

COUNTED = ("id", "version", "iteration")
"""Fields that a Grafana counts by itself: they say nothing about how a dashboard appears."""


def load(directory: Path, names: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return dashboards: all of ``directory``, or those whose uids are named, in short or in full.

    Raises:
        SettingsError: If there is no such one, or a file is not the JSON of a dashboard.
    """
    files = {file.stem: file for file in sorted(directory.glob("*.json"))}
    boards = {}
    for name in names or files or [""]:
        spellings = (name, f"ampwatch-{name}", name.removesuffix(".json"))
        uid = next((uid for uid in spellings if uid in files), None)
        if uid is None:
            found = ", ".join(files) or "none"
            msg = f"expected {name or 'dashboards'} among the JSON files in {str(directory)!r}, found {found}"
            raise SettingsError(msg)
        boards[uid] = _read(files[uid])
    return list(boards.values())


def _read(file: Path) -> dict[str, Any]:
    msg = f"expected the JSON of a dashboard, with a title and the uid {file.stem!r}, in {str(file)!r}"
    try:
        read = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        msg = f"{msg}, got: {error}"
        raise SettingsError(msg) from None
    if not (isinstance(read, dict) and read.get("title") and read.get("uid") == file.stem):
        raise SettingsError(msg)
    return read


def opened_on(dashboard: dict[str, Any], **choice: Any) -> dict[str, Any]:
    """Return ``dashboard`` with another ``current`` datasource for Prometheus, or with none."""
    opened = copy.deepcopy(dashboard)
    for variable in (opened.get("templating") or {}).get("list") or []:
        if variable.get("type") == "datasource" and variable.get("query") == "prometheus":
            variable.pop("current", None)
            variable.update(choice)
            break
    return opened


def as_text(dashboard: dict[str, Any]) -> str:
    """Return the text of a dashboard's file, which is the same for what is the same to Grafana."""
    kept = {key: value for key, value in dashboard.items() if key not in COUNTED}
    text = json.dumps(kept)  # Grafana writes 1.0 as 1
    plain = json.loads(text, parse_float=lambda x: int(y) if (y := float(x)).is_integer() else y)
    return json.dumps(plain, indent=2, ensure_ascii=False, sort_keys=True) + "\n"


def difference(stored: dict[str, Any], board: dict[str, Any]) -> str:
    """Return the unified diff from what Grafana has to ``board``; empty if they are the same."""
    before, after = (as_text(one).splitlines(keepends=True) for one in (stored, board))
    names = f"{board['uid']} in Grafana", f"{board['uid']} as shipped"
    return "".join(difflib.unified_diff(before, after, *names)).rstrip("\n")
