"""Plan: compares what a Grafana has with what it should have. Pure: no HTTP, no client."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from ampwatch import __version__
from ampwatch.operate.grafana.boards import compared, difference

if TYPE_CHECKING:
    from ampwatch.operate.grafana.boards import Board

FOLDER = "ampwatch"
DATASOURCE = "ampwatch-prometheus"
DATASOURCE_NAME = "ampwatch Prometheus"

OURS = re.compile(r"ampwatch (\S+) sha256:([0-9a-f]{16})")

SETTLED = ("id", "orgId", "readOnly", "secureJsonFields", "typeLogoUrl", "typeName", "apiVersion")
"""Members of a datasource that Grafana answers with and does not want back."""


class Outcome(Enum):
    """Action on a part of the plan."""

    KEEP = "keep"
    CREATE = "create"
    UPDATE = "update"
    REFUSE = "refuse"


@dataclass(frozen=True)
class PartChange:
    """Planned change of one part of a Grafana.

    Attributes:
        part: ``folder``, ``datasource`` or ``dashboard``.
        name: Its uid.
        outcome: What becomes of it.
        why: The reason, in words.
        body: What is sent.
        diff: From what is there to what would be, as a unified diff; empty if there is none.
    """

    part: str
    name: str
    outcome: Outcome
    why: str = ""
    body: dict[str, Any] | None = None
    diff: str = ""


class Stored(NamedTuple):
    """A dashboard that a Grafana has.

    Attributes:
        dashboard: Its JSON; ``None`` if it is of a format that this API does not give out.
        meta: What Grafana says about it.
        message: Of the version it is in: what whoever saved it has written; ``None`` if unknown.
    """

    dashboard: dict[str, Any] | None
    meta: dict[str, Any]
    message: str | None


def message(board: Board) -> str:
    """Return what is written into Grafana's history, by which a push knows its own work again."""
    return f"ampwatch {__version__} sha256:{board.digest}"


def plan_folder(uid: str, *, is_there: bool) -> PartChange:
    """Plan the folder."""
    if is_there:
        return PartChange("folder", uid, Outcome.KEEP)
    return PartChange("folder", uid, Outcome.CREATE, body={"uid": uid, "title": uid})


def plan_datasource(
    uid: str, stored: dict[str, Any] | None, url: str | None, interval: str
) -> PartChange:
    """Plan the datasource.

    Args:
        uid: Its uid.
        stored: As Grafana has it; ``None`` if it has none of that uid.
        url: Where Prometheus is, for Grafana; ``None`` to leave the datasource as it is.
        interval: The scrape interval, of which Grafana derives ``$__rate_interval``.
    """
    outcome, why, body = Outcome.KEEP, "", None
    kind = "prometheus" if stored is None else stored.get("type")
    if stored is None and url is None:
        outcome, why = Outcome.REFUSE, "there is no datasource of that uid"
    elif kind != "prometheus":
        outcome = Outcome.REFUSE
        why = f"it is a datasource of type {kind}, not prometheus"
    elif url is not None and stored is None:
        new = {"uid": uid, "name": DATASOURCE_NAME, "access": "proxy"}
        outcome, why = Outcome.CREATE, f"for Prometheus at {url}"
        body = _datasource(new, url, interval)
    elif url is not None and stored is not None:
        wanted = _datasource(stored, url, interval)
        why = ", ".join(_changed(stored, wanted))
        if stored.get("readOnly") and why:
            outcome = Outcome.REFUSE
            why = f"it is provisioned from a file, where this has to be changed: {why}"
        elif why:
            outcome = Outcome.UPDATE
            body = {key: value for key, value in wanted.items() if key not in SETTLED}
    return PartChange("datasource", uid, outcome, why, body)


def _datasource(stored: dict[str, Any], url: str, interval: str) -> dict[str, Any]:
    options = {**(stored.get("jsonData") or {}), "httpMethod": "POST", "timeInterval": interval}
    return {**stored, "type": "prometheus", "url": url, "jsonData": options}


def _changed(stored: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    before, after = stored.get("jsonData") or {}, wanted["jsonData"]
    pairs = [("url", stored.get("url"), wanted["url"])]
    pairs += [(name, before.get(name), after[name]) for name in ("httpMethod", "timeInterval")]
    return [f"{name} {was or 'unset'} -> {to}" for name, was, to in pairs if was != to]


def plan_board(
    board: Board, stored: Stored | None, folder: str, *, force: bool = False, where: str = "Grafana"
) -> PartChange:
    """Plan a dashboard.

    A stored one is ours to replace if the version it is in was saved by a push, which its message
    says; what anybody has saved by hand is refused, unless forced. An unchanged one is kept: also
    one that Grafana has rewritten in storing it, which is so if the push that saved it is this one.

    Args:
        board: As it should be.
        stored: As Grafana has it; ``None`` if it does not.
        folder: uid of the folder it belongs into.
        force: Replace what was changed by hand.
        where: Name of the Grafana, for the diff.
    """
    if stored is None:
        body = _body(board, folder, version=None, force=force)
        return PartChange("dashboard", board.uid, Outcome.CREATE, body=body)
    present, meta = stored.dashboard, stored.meta
    last = OURS.fullmatch(stored.message or "")
    diff = "" if present is None else difference(present, board, where)
    is_in_place = (meta.get("folderUid") or "") == folder
    is_same = present is not None and (
        compared(present) == compared(board.dashboard)
        or (last is not None and last[2] == board.digest)
    )
    if is_same and is_in_place:
        return PartChange("dashboard", board.uid, Outcome.KEEP)
    if meta.get("provisioned"):
        file = meta.get("provisionedExternalId") or "a file"
        why = f"it is provisioned from {file}: change it there, or take it out there"
        return PartChange("dashboard", board.uid, Outcome.REFUSE, why, diff=diff)
    if meta.get("canSave") is False:
        why = "the token may not save it; give its service account the role Editor, or dashboards:write on the folder"
        return PartChange("dashboard", board.uid, Outcome.REFUSE, why, diff=diff)
    body = _body(board, folder, version=(present or {}).get("version"), force=force)
    by_hand = _by_hand(stored, folder, last)
    if by_hand and not force:
        why = f"{by_hand}; --force replaces it, `ampwatch grafana export` keeps a copy"
        return PartChange("dashboard", board.uid, Outcome.REFUSE, why, diff=diff)
    why = by_hand or (f"from ampwatch {last[1]} to {__version__}" if last else "")
    return PartChange("dashboard", board.uid, Outcome.UPDATE, why, body, diff)


def _by_hand(stored: Stored, folder: str, last: re.Match[str] | None) -> str:
    """Return what somebody has done to it by hand, in words; empty if nobody has."""
    meta = stored.meta
    if stored.dashboard is None:
        return "it was saved in Grafana's newer format (v2), so by hand"
    if last is None:
        who = meta.get("updatedBy")
        by = f" by {who}" if who and who != "Anonymous" else ""
        when = f" on {meta['updated'][:16].replace('T', ' ')}" if meta.get("updated") else ""
        history = "" if stored.message is not None else ", or its history cannot be read"
        return f"it was saved by hand{history}: version {stored.dashboard.get('version')}{by}{when}"
    if (meta.get("folderUid") or "") != folder:
        return f"it was moved to the folder {meta.get('folderTitle') or 'General'!r}"
    return ""


def _body(board: Board, folder: str, *, version: Any, force: bool) -> dict[str, Any]:
    # With the version that was compared, Grafana refuses if somebody has saved since.
    dashboard = board.dashboard if version is None else {**board.dashboard, "version": version}
    return {
        "dashboard": dashboard,
        "folderUid": folder,
        "message": message(board),
        "overwrite": force,
    }
