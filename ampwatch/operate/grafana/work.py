"""The plan, which compares what a Grafana has with what it should have, and the verbs."""

from __future__ import annotations

import copy
import difflib
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ampwatch import __version__
from ampwatch.errors import GrafanaError, SettingsError
from ampwatch.operate.grafana.server import ADDRESS, VERSIONS, GrafanaServer, expect

Json = dict[str, Any]

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


OURS = re.compile(r"ampwatch (\S+) sha256:([0-9a-f]{16})")
"""Message in Grafana's history of a dashboard by which a push knows its own work again."""

UID = re.compile(r"[A-Za-z0-9_-]{1,40}")

NEW = {"name": "ampwatch Prometheus", "type": "prometheus", "access": "proxy"}

# What Grafana answers with about a datasource and does not want back.
SETTLED = {"id", "orgId", "readOnly", "secureJsonFields", "typeLogoUrl", "typeName", "apiVersion"}


@dataclass(frozen=True)
class Wishes:
    """Target state of a Grafana. Raises a SettingsError if it cannot be."""

    folder: str = "ampwatch"  # uid of the folder of the dashboards
    datasource: str = "ampwatch-prometheus"  # uid of the datasource that they open on
    prometheus_url: str | None = None  # where it is for Grafana; None: leave the datasource
    scrape_interval: str = "10s"  # of that Prometheus
    force: bool = False  # replace what was changed by hand

    def __post_init__(self) -> None:
        for option, uid in (("`--folder`", self.folder), ("`--datasource`", self.datasource)):
            expect(UID.fullmatch(uid), option, "a uid, up to 40 letters, digits, `-` and `_`", uid)
        interval, url = self.scrape_interval, self.prometheus_url
        is_duration = re.fullmatch(r"(\d+(ms|[smh]))+", interval)
        expect(is_duration, "`--scrape-interval`", "a duration like 10s", interval)
        is_address = url is None or ADDRESS.fullmatch(url)
        expect(is_address, "`--prometheus-url`", "an address like http://prometheus:9090", url)


class Change(NamedTuple):
    """Plan for a folder, a datasource or a dashboard."""

    part: str  # which of them, and its uid
    outcome: str  # unchanged, create, update or refuse
    why: str = ""
    request: tuple[Any, ...] = ()  # a method of the client and its arguments
    diff: str = ""  # from what is there to what would be

    def line(self, *, dry_run: bool) -> str:
        """Return it in words."""
        verb = f"would {self.outcome}" if dry_run else f"{self.outcome}d"
        verb = self.outcome if self.outcome == "unchanged" else verb
        return f"{verb:<12}  {self.part}{': ' if self.why else ''}{self.why}"


def plan_datasource(stored: Json | None, wishes: Wishes) -> Change:
    """Plan the datasource; ``stored`` is ``None`` if there is none."""
    uid, url = wishes.datasource, wishes.prometheus_url
    change = partial(Change, f"datasource {uid}")
    if stored is None and url is None:
        return change("refuse", "there is no datasource of that uid")
    before: Json = {"uid": uid, **NEW} if stored is None else stored
    if before.get("type") != "prometheus":
        why = f"it is a datasource of type {before.get('type')}, not prometheus"
        return change("refuse", why)
    if url is None:
        return change("unchanged")
    was = before.get("jsonData") or {}
    options = {**was, "httpMethod": "POST", "timeInterval": wishes.scrape_interval}
    body = {key: value for key, value in before.items() if key not in SETTLED}
    body |= {"url": url, "jsonData": options}
    if stored is None:
        return change("create", f"for Prometheus at {url}", ("datasource.create_datasource", body))
    old, new = {"url": before.get("url"), **was}, {"url": url, **options}
    changed = (key for key in new if new[key] != old.get(key))
    why = ", ".join(f"{key} {old.get(key) or 'unset'} -> {new[key]}" for key in changed)
    request = ("datasource.update_datasource_by_uid", uid, body)
    if why and stored.get("readOnly"):
        why = f"it is provisioned from a file, where this has to be changed: {why}"
        return change("refuse", why)
    return change("update" if why else "unchanged", why, request)


def plan_board(board: Json, stored: Json | None, versions: list[Json], wishes: Wishes) -> Change:
    """Plan a dashboard; ``stored`` is ``None`` if there is none, empty if it is of another format.

    A stored one is ours to replace if the version it is in was saved by a push, which its message
    says; what anybody has saved by hand is refused, unless forced. An unchanged one is kept: also
    one that Grafana has rewritten in storing it, which is so if the push that saved it is this one.
    """
    there, meta = (stored or {}).get("dashboard") or {}, (stored or {}).get("meta") or {}
    version, digest = there.get("version"), hashlib.sha256(as_text(board).encode()).hexdigest()[:16]
    # With the version that was compared Grafana refuses if somebody has saved since.
    counted = {"id": None} | ({"version": version} if there else {})
    body = {
        "dashboard": json.loads(as_text(board)) | counted,
        "folderUid": wishes.folder,
        "message": f"ampwatch {__version__} sha256:{digest}",
        "overwrite": wishes.force,
    }
    words = [one.get("message") or "" for one in versions if one.get("version") == version]
    last = OURS.fullmatch(words[0]) if words else None
    diff = difference(there, board) if there else ""
    is_same = there and (not diff or (last and last[2] == digest))
    is_in_place = (meta.get("folderUid") or "") == wishes.folder
    by_hand = "update" if wishes.force else "refuse"
    hint = "" if wishes.force else "; --force replaces it, `ampwatch grafana export` keeps a copy"
    outcome, why = "refuse", ""
    if stored is None:
        outcome = "create"
    elif is_same and is_in_place:
        outcome, diff = "unchanged", ""
    elif meta.get("provisioned"):
        file = meta.get("provisionedExternalId") or "a file"
        why = f"it is provisioned from {file}: change it there, or take it out there"
    elif meta.get("canSave") is False:
        why = "the token may not save it; give its service account the role Editor, or dashboards:write on the folder"
    elif not there:
        outcome, why = by_hand, f"it was saved in Grafana's newer format (v2), so by hand{hint}"
    elif not last:
        history = "" if words else ", or its history cannot be read"
        when = f"by {meta.get('updatedBy')} on {str(meta.get('updated'))[:16].replace('T', ' ')}"
        outcome, why = by_hand, f"it was saved by hand{history}: version {version} {when}{hint}"
    elif not is_in_place:
        where = meta.get("folderTitle") or "General"
        outcome, why = by_hand, f"it was moved to the folder {where!r}{hint}"
    else:
        outcome, why = "update", f"from ampwatch {last[1]} to {__version__}"
    request = ("dashboard.update_dashboard", body)
    return Change(f"dashboard {board['uid']}", outcome, why, request, diff)


def plan(server: GrafanaServer, boards: Sequence[Json], wishes: Wishes) -> list[Change]:
    """Return what there is to do, and raise a GrafanaError if Grafana does not answer."""
    server.check()
    is_there = server.ask("folder.get_folder", wishes.folder, instead={404: None})
    request = ("folder.create_folder", wishes.folder, wishes.folder)
    outcome = "unchanged" if is_there else "create"
    changes = [Change(f"folder {wishes.folder}", outcome, request=request)]
    uid = wishes.datasource
    stored = server.ask("datasource.get_datasource_by_uid", uid, instead={403: {}, 404: None})
    if stored == {}:  # it may not be read, but tried
        why = "the token may not read datasources" if wishes.prometheus_url else server.trouble(uid)
        source = Change(f"datasource {uid}", "refuse" if why else "unchanged", why)
    else:
        source = plan_datasource(stored, wishes)
    if source.outcome == "refuse":
        listed = server.ask("datasource.list_datasources", instead={403: []})
        names = [f"{one['uid']} ({one['name']})" for one in listed if one["type"] == "prometheus"]
        hint = f"of that type there are {', '.join(names)}: " if names else ""
        why = f"{source.why}; {hint}name one with --datasource UID, or have one made with --prometheus-url URL"
        source = source._replace(why=why)
    changes.append(source)
    name = (NEW if stored is None else stored).get("name", uid)
    current = {"selected": False, "text": name, "value": uid}
    for board in boards:
        there = server.ask("dashboard.get_dashboard", board["uid"], instead={404: None, 406: {}})
        versions = server.ask(VERSIONS, board["uid"], instead={403: [], 404: []}) if there else []
        # Grafana 11 and older answer with a list.
        versions = versions.get("versions") if isinstance(versions, dict) else versions
        chosen = opened_on(board, current=current)
        changes.append(plan_board(chosen, there, versions or [], wishes))
    return changes


def push(
    server: GrafanaServer, changes: Sequence[Change], datasource: str, *, dry_run: bool
) -> Iterator[str]:
    """Do what is planned, and say so line by line.

    Raises:
        GrafanaError: If something is refused, in which case nothing has been written; if Grafana
            does not do what it is asked to; if the datasource does not answer.
    """
    refused = [change for change in changes if change.outcome == "refuse"]
    yield from (change.diff for change in refused if change.diff)
    if refused:
        reasons = "".join(f"\n  {change.part}: {change.why}" for change in refused)
        msg = f"nothing was written, because:{reasons}"
        raise GrafanaError(msg)
    for change in changes:
        if change.outcome != "unchanged" and not dry_run:
            server.ask(*change.request)
        yield change.line(dry_run=dry_run)
    is_there = not dry_run or changes[1].outcome != "create"
    if is_there and (trouble := server.trouble(datasource)):
        head = "nothing was written" if dry_run else "the dashboards are in place, but empty"
        msg = f"{head}: {trouble}"
        raise GrafanaError(msg)


def export(server: GrafanaServer, directory: Path, folder: str) -> Iterator[str]:
    """Write the dashboards of a folder as files like the shipped ones, and say so line by line.

    Raises:
        GrafanaError: If Grafana does not answer, or has nothing in that folder.
        SettingsError: If the directory cannot be written to.
    """
    server.check()
    # 5000 is the most that Grafana lists.
    wanted = {"type_": "dash-db", "folder_uids": folder, "limit": 5000}
    uids = [str(one["uid"]) for one in server.ask("search.search_dashboards", **wanted)]
    written = 0
    for uid in filter(UID.fullmatch, uids):  # they become names of files
        found = server.ask("dashboard.get_dashboard", uid, instead={404: {}, 406: {}})
        if "dashboard" not in found:
            yield f"left out {uid}: it is in Grafana's newer format (v2), which this cannot write"
            continue
        path = directory / f"{uid}.json"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            path.write_text(as_text(opened_on(found["dashboard"])), encoding="utf-8")
        except OSError as error:
            msg = f"expected to write {str(path)!r}, got: {error.strerror}"
            raise SettingsError(msg) from error
        yield f"written {path}"
        written += 1
    if not written:
        msg = f"expected dashboards in the folder {folder!r}, found none to write; `ampwatch grafana push` makes it, --folder names another one"
        raise GrafanaError(msg)
