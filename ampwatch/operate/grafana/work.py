"""The verbs: look at a Grafana, plan, say so, and do it."""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from ampwatch.errors import GrafanaError, SettingsError
from ampwatch.operate.grafana.boards import as_shipped, as_text, with_datasource
from ampwatch.operate.grafana.plan import (
    DATASOURCE,
    FOLDER,
    Outcome,
    PartChange,
    plan_board,
    plan_datasource,
    plan_folder,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from ampwatch.operate.grafana.boards import Board
    from ampwatch.operate.grafana.plan import Stored


class Grafana(Protocol):
    """Methods that the verbs need of a Grafana; see ``server.GrafanaServer``."""

    def check(self) -> str: ...  # noqa: D102 - documented where it is done
    def has_folder(self, uid: str) -> bool: ...  # noqa: D102
    def create_folder(self, body: dict[str, Any]) -> None: ...  # noqa: D102
    def datasource(self, uid: str) -> dict[str, Any] | None: ...  # noqa: D102
    def datasources(self) -> list[dict[str, Any]]: ...  # noqa: D102
    def create_datasource(self, body: dict[str, Any]) -> None: ...  # noqa: D102
    def update_datasource(self, body: dict[str, Any]) -> None: ...  # noqa: D102
    def datasource_trouble(self, uid: str) -> str: ...  # noqa: D102
    def dashboard(self, uid: str, *, history: bool = True) -> Stored | None: ...  # noqa: D102
    def dashboards_in(self, folder: str) -> Iterator[str]: ...  # noqa: D102
    def save_dashboard(self, body: dict[str, Any]) -> Any: ...  # noqa: D102


@dataclass(frozen=True)
class BoardWishes:
    """Target state of a Grafana.

    Attributes:
        folder: uid of the folder of the dashboards.
        datasource: uid of the datasource they open on.
        prometheus_url: Where Prometheus is, as seen from Grafana; ``None`` to leave the datasource
            as it is.
        scrape_interval: Of Prometheus, ``10s``.
        force: Replace what was changed by hand.
    """

    folder: str = FOLDER
    datasource: str = DATASOURCE
    prometheus_url: str | None = None
    scrape_interval: str = "10s"
    force: bool = False

    def __post_init__(self) -> None:
        if not re.fullmatch(r"(\d+(ms|[smh]))+", self.scrape_interval):
            msg = f"`--scrape-interval`: expected a duration as in prometheus.yml, like 10s, got {self.scrape_interval!r}"
            raise SettingsError(msg)
        for option, uid in (("--folder", self.folder), ("--datasource", self.datasource)):
            if not re.fullmatch(r"[A-Za-z0-9_-]{1,40}", uid):
                msg = f"`{option}`: expected a uid, up to 40 letters, digits, `-` and `_`, got {uid!r}"
                raise SettingsError(msg)
        if self.prometheus_url is not None:
            parts = urlsplit(self.prometheus_url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                msg = f"`--prometheus-url`: expected an address like http://prometheus:9090, got {self.prometheus_url!r}"
                raise SettingsError(msg)
            if parts.username is not None or parts.password is not None:
                msg = "`--prometheus-url`: expected one without a password; set that in Grafana's datasource, and name its uid with --datasource"
                raise SettingsError(msg)


def push(
    server: Grafana,
    boards: Sequence[Board],
    wishes: BoardWishes,
    say: Callable[[str], None],
    *,
    dry_run: bool = False,
) -> None:
    """Make a Grafana have the dashboards; what is as it should be is left alone.

    Args:
        server: The Grafana.
        boards: The dashboards.
        wishes: How it is to be.
        say: Takes a line for a reader.
        dry_run: Only say what would be done.

    Raises:
        GrafanaError: If something is refused, in which case nothing has been written; if Grafana
            does not do what it is asked to; if the datasource does not answer.
    """
    changes = _plan(server, boards, wishes)
    refused = [change for change in changes if change.outcome is Outcome.REFUSE]
    for change in refused:
        if change.diff:
            say(change.diff)
    if refused:
        reasons = "".join(f"\n  {c.part} {c.name}: {_why(server, c)}" for c in refused)
        msg = f"nothing was written, for this stands against it:{reasons}"
        raise GrafanaError(msg)
    for change in changes:
        if not dry_run:
            _do(server, change)
        say(_line(change, dry_run=dry_run))
    is_new = any(c.part == "datasource" and c.outcome is Outcome.CREATE for c in changes)
    if dry_run and is_new:
        return
    if trouble := server.datasource_trouble(wishes.datasource):
        text = f"the dashboards are in place, but will be empty: {trouble}"
        raise GrafanaError(f"nothing was written: {trouble}" if dry_run else text)


def diff(
    server: Grafana, boards: Sequence[Board], wishes: BoardWishes, say: Callable[[str], None]
) -> bool:
    """Say what a push would change, with the differences, and return whether there are any.

    Raises:
        GrafanaError: If Grafana does not answer.
    """
    changes = _plan(server, boards, wishes)
    for change in changes:
        say(_line(change, dry_run=True))
        if change.diff and change.outcome is not Outcome.KEEP:
            say(change.diff)
    return any(change.outcome is not Outcome.KEEP for change in changes)


def export(
    server: Grafana,
    directory: Path,
    boards: Sequence[Board],
    folder: str,
    say: Callable[[str], None],
) -> None:
    """Write the dashboards of a folder into files, as the shipped ones are written.

    Args:
        server: The Grafana.
        directory: Where to; made if it is not there. Files of the same name are replaced.
        boards: The shipped ones, which give the order of the keys.
        folder: uid of the folder.
        say: Takes a line for a reader.

    Raises:
        GrafanaError: If Grafana does not answer, or has no such folder, or nothing in it.
        SettingsError: If the directory cannot be written to.
    """
    server.check()
    if not server.has_folder(folder):
        msg = f"expected a folder with the uid {folder!r}, found none; `ampwatch grafana push` makes it, --folder names another one"
        raise GrafanaError(msg)
    models = {board.uid: board for board in boards}
    count = 0
    for uid in server.dashboards_in(folder):
        stored = server.dashboard(uid, history=False)
        if stored is None or stored.dashboard is None:
            say(f"left out {uid}: it is in Grafana's newer format (v2), which this cannot write")
            continue
        text = as_text(as_shipped(stored.dashboard, models.get(uid)))
        say(f"written {_write(directory, f'{uid}.json', text)}")
        count += 1
    if not count:
        msg = f"expected dashboards in the folder {folder!r}, found none to write"
        raise GrafanaError(msg)


def _plan(server: Grafana, boards: Sequence[Board], wishes: BoardWishes) -> list[PartChange]:
    server.check()
    changes = [plan_folder(wishes.folder, is_there=server.has_folder(wishes.folder))]
    stored = server.datasource(wishes.datasource)
    name = wishes.datasource
    if stored == {}:  # it may not be read, but tried
        changes.append(_unread(server, wishes))
    else:
        planned = plan_datasource(
            wishes.datasource, stored, wishes.prometheus_url, wishes.scrape_interval
        )
        changes.append(planned)
        name = (stored or planned.body or {}).get("name", name)
    for board in boards:
        chosen = with_datasource(board, wishes.datasource, name)
        there = server.dashboard(board.uid)
        changes.append(plan_board(chosen, there, wishes.folder, force=wishes.force))
    return changes


def _unread(server: Grafana, wishes: BoardWishes) -> PartChange:
    trouble = "the token may not read datasources"
    if wishes.prometheus_url is None:
        trouble = server.datasource_trouble(wishes.datasource)
    outcome = Outcome.REFUSE if trouble else Outcome.KEEP
    return PartChange("datasource", wishes.datasource, outcome, trouble)


def _why(server: Grafana, change: PartChange) -> str:
    if change.part != "datasource":
        return change.why
    found = [d for d in server.datasources() if d.get("type") == "prometheus"]
    known = ", ".join(f"{d.get('uid')} ({d.get('name')})" for d in found)
    there = f"of that type there are {known}: name one with" if known else "name one with"
    return f"{change.why}; {there} --datasource UID, or have one made with --prometheus-url URL"


def _do(server: Grafana, change: PartChange) -> None:
    if change.body is None:
        return
    if change.part == "folder":
        server.create_folder(change.body)
    elif change.part == "dashboard":
        server.save_dashboard(change.body)
    elif change.outcome is Outcome.CREATE:
        server.create_datasource(change.body)
    else:
        server.update_datasource(change.body)


def _line(change: PartChange, *, dry_run: bool) -> str:
    words = {
        Outcome.KEEP: ("unchanged", "unchanged"),
        Outcome.CREATE: ("created", "would create"),
        Outcome.UPDATE: ("updated", "would update"),
        Outcome.REFUSE: ("refused", "would refuse"),
    }[change.outcome]
    why = f": {change.why}" if change.why else ""
    return f"{words[dry_run]:<12}  {change.part} {change.name}{why}"


def _write(directory: Path, name: str, text: str) -> Path:
    path = directory / name
    try:
        directory.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=directory, prefix=".", suffix=".json")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except OSError as error:
        msg = f"expected to write {str(path)!r}, got: {error.strerror}"
        raise SettingsError(msg) from error
    return path
