"""Dashboards as files: reading them, comparing them with what a Grafana has, writing them."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ampwatch.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

COUNTED = ("version", "iteration")
"""Fields that Grafana counts by itself, like ``id``: they say nothing about how a dashboard appears."""

UID = re.compile(r"[A-Za-z0-9_-]{1,40}")


@dataclass(frozen=True)
class Board:
    """A dashboard as it ought to be.

    Attributes:
        uid: Its stable name, ``ampwatch-run``.
        dashboard: The JSON object as ``bare`` returns it.
    """

    uid: str
    dashboard: dict[str, Any]

    @property
    def digest(self) -> str:
        """Sixteen characters that only this content has."""
        return hashlib.sha256(compared(self.dashboard).encode()).hexdigest()[:16]


def load(directory: Path, names: Sequence[str] = ()) -> list[Board]:
    """Read dashboards.

    Args:
        directory: Where the JSON files are, ``<uid>.json`` each.
        names: Their uids, with or without ``ampwatch-`` in front; all if empty.

    Raises:
        SettingsError: If there is no such one, or a file is not the JSON of a dashboard.
    """
    there = {file.stem: file for file in sorted(directory.glob("*.json"))}
    if not there:
        msg = f"expected dashboards, JSON files, in {str(directory)!r}, found none"
        raise SettingsError(msg)
    wanted = dict.fromkeys(_known(name, there) for name in names) or there
    return [_read(there[uid]) for uid in wanted]


def _known(name: str, there: dict[str, Path]) -> str:
    for uid in (name, f"ampwatch-{name}", name.removesuffix(".json")):
        if uid in there:
            return uid
    near = difflib.get_close_matches(name, there, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    msg = f"expected one of the dashboards {', '.join(there)}, got {name!r}{hint}"
    raise SettingsError(msg)


def _read(file: Path) -> Board:
    try:
        read = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        msg = f"expected to read the dashboard {str(file)!r}, got: {error.strerror}"
        raise SettingsError(msg) from error
    except ValueError as error:
        msg = f"expected the JSON of a dashboard in {str(file)!r}, got: {error}"
        raise SettingsError(msg) from None
    if not isinstance(read, dict) or not isinstance(read.get("title"), str):
        msg = f"expected the JSON of a dashboard, an object with a title, in {str(file)!r}"
        raise SettingsError(msg)
    if read.get("uid") != file.stem:
        msg = f"expected the uid {file.stem!r} in {str(file)!r}, as its name says, got {read.get('uid')!r}"
        raise SettingsError(msg)
    return Board(file.stem, bare(read))


def bare(dashboard: dict[str, Any]) -> dict[str, Any]:
    """Return ``dashboard`` without what Grafana counts, and without an id of one database."""
    return {**{key: value for key, value in dashboard.items() if key not in COUNTED}, "id": None}


def _plain(value: Any) -> Any:
    """Return ``value`` with 1 for 1.0: Grafana's JSON knows no difference, Python's does."""
    if isinstance(value, dict):
        return {key: _plain(of_it) for key, of_it in value.items()}
    if isinstance(value, list):
        return [_plain(of_it) for of_it in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def with_datasource(board: Board, uid: str, name: str) -> Board:
    """Return ``board`` as it looks when it is opened on the datasource ``uid``, called ``name``."""
    current = {"selected": False, "text": name, "value": uid}
    return Board(board.uid, _with_choice(board.dashboard, {"current": current}))


def _with_choice(dashboard: dict[str, Any], choice: dict[str, Any]) -> dict[str, Any]:
    """Return ``dashboard`` with another ``current`` of its datasource variable, or with none."""
    templating = dashboard.get("templating") or {}
    variables = templating.get("list") or []
    for index, variable in enumerate(variables):
        if variable.get("type") == "datasource" and variable.get("query") == "prometheus":
            chosen = {k: v for k, v in variable.items() if k != "current"} | choice
            variables = [*variables[:index], chosen, *variables[index + 1 :]]
            return {**dashboard, "templating": {**templating, "list": variables}}
    return dashboard


def as_shipped(dashboard: dict[str, Any], model: Board | None) -> dict[str, Any]:
    """Return what a Grafana has as a file of ours would be written, so that the two can be compared.

    Args:
        dashboard: As Grafana has it.
        model: The shipped one with that uid, if there is one: it gives the order of the keys,
            and the choice of the datasource, which belongs to one Grafana.
    """
    plain = bare(dashboard)
    if model is None:
        return plain
    choice = _choice(model.dashboard)
    ordered: dict[str, Any] = _in_order(_with_choice(plain, choice), model.dashboard)
    return ordered


def _choice(dashboard: dict[str, Any]) -> dict[str, Any]:
    for variable in (dashboard.get("templating") or {}).get("list") or []:
        if variable.get("type") == "datasource":
            return {key: value for key, value in variable.items() if key == "current"}
    return {}


def _in_order(value: Any, model: Any) -> Any:
    """Return ``value`` with the keys of its objects in the order that they have in ``model``."""
    if isinstance(value, dict) and isinstance(model, dict):
        keys = [key for key in model if key in value]
        keys += [key for key in value if key not in model]
        return {key: _in_order(value[key], model.get(key)) for key in keys}
    if isinstance(value, list) and isinstance(model, list):
        models = [*model, *[None] * (len(value) - len(model))]
        return [_in_order(one, like) for one, like in zip(value, models, strict=False)]
    # 1.0 stays 1.0 where it is so in the model: Grafana writes 1.
    are_numbers = {type(value), type(model)} <= {int, float}
    return model if are_numbers and value == model else value


def as_text(dashboard: dict[str, Any]) -> str:
    """Return JSON as the files have it, a line for each value."""
    return json.dumps(dashboard, indent=2, ensure_ascii=False) + "\n"


def compared(dashboard: dict[str, Any]) -> str:
    """Return JSON that is the same for what is the same: keys sorted, nothing that Grafana counts."""
    return json.dumps(_plain(bare(dashboard)), indent=2, ensure_ascii=False, sort_keys=True) + "\n"


def difference(stored: dict[str, Any], board: Board, where: str) -> str:
    """Return the unified diff from what ``where`` has to ``board``; empty if they are the same."""
    lines = difflib.unified_diff(
        compared(stored).splitlines(keepends=True),
        compared(board.dashboard).splitlines(keepends=True),
        f"{board.uid} in {where}",
        f"{board.uid} as shipped",
    )
    return "".join(lines).rstrip("\n")
