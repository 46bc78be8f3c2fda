"""Plays the part of a Grafana's HTTP API, after its documentation: keeps state, records requests.

No Grafana runs in these tests. It answers in the forms of Grafana 10.4, 12 and 13 as far as they
differ in what is used here, and takes only requests that Grafana would take.
"""

from __future__ import annotations

import json
import ssl
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from tests.workshop.servers import Quiet, answering

TOKEN = "glsa_a-secret-of-the-tests"

PERMISSIONS = {
    ("GET", "folders"): "folders:read",
    ("POST", "folders"): "folders:create",
    ("GET", "datasources"): "datasources:read",
    ("POST", "datasources"): "datasources:create",
    ("PUT", "datasources"): "datasources:write",
    ("GET", "health"): "datasources:query",
    ("GET", "dashboards"): "dashboards:read",
    ("GET", "versions"): "dashboards:write",
    ("POST", "dashboards"): "dashboards:write",
    ("GET", "search"): "dashboards:read",
}
"""Permissions by the method and by the kind of thing, the last or the first word of the path."""


class Asked(NamedTuple):
    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: Any


class RefusalError(Exception):
    def __init__(self, code: int, message: str, /, **more: Any) -> None:
        super().__init__(message)
        self.status, self.body = code, {"message": message, **more}


class Grafana:
    """Contents of a Grafana, and how it answers.

    Attributes:
        version: What it says it is; empty to hide it.
        prefix: Its sub-path.
        asked: Every request.
        allowed: The permissions of the token.
        rewrites: Changes what it stores, as newer Grafanas may: it brings the schema up to date.
        replies: Instead of the usual answer, by path: status, content type, body.
        before_save: Called when a dashboard comes in, before it is looked at.
    """

    def __init__(self, version: str = "12.1.0", prefix: str = "") -> None:
        self.version, self.prefix = version, prefix
        self.asked: list[Asked] = []
        self.allowed = set(PERMISSIONS.values())
        self.folders: dict[str, str] = {}
        self.datasources: dict[str, dict[str, Any]] = {}
        self.healthy = True
        self.dashboards: dict[str, dict[str, Any]] = {}
        self.meta: dict[str, dict[str, Any]] = {}
        self.history: dict[str, list[dict[str, Any]]] = {}
        self.rewrites = False
        self.replies: dict[str, tuple[int, str, str]] = {}
        self.before_save: Callable[[], None] = lambda: None
        self.delay_s = 0.0

    @property
    def writes(self) -> list[Asked]:
        return [one for one in self.asked if one.method != "GET"]

    def save(self, dashboard: dict[str, Any], folder: str, message: str) -> None:
        """Store a version, as the API and people at the page do."""
        uid = dashboard["uid"]
        versions = self.history.setdefault(uid, [])
        version = len(versions) + 1
        if self.rewrites:
            dashboard = {**dashboard, "schemaVersion": 42, "preload": False}
        self.dashboards[uid] = {**dashboard, "id": 7, "version": version}
        title = self.folders.get(folder, "")
        where = {"folderUid": folder, "folderTitle": title, "provisioned": False, "canSave": True}
        self.meta[uid] = {**where, "updated": "2026-10-01T12:30:00Z", "updatedBy": "ada"}
        versions.insert(0, {"uid": uid, "version": version, "message": message})

    def by_hand(self, uid: str, **changes: Any) -> None:
        """Somebody opens the dashboard, changes it and saves."""
        self.save({**self.dashboards[uid], **changes}, self.meta[uid]["folderUid"], "")

    def answer(self, asked: Asked) -> Any:  # noqa: C901, PLR0911, PLR0912 - a case for each request
        """Return the body of a success, or raise a RefusalError."""
        method, path = asked.method, asked.path.removeprefix("/api/").split("/")
        if path == ["health"]:
            return {"database": "ok"} | ({"version": self.version} if self.version else {})
        if asked.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise RefusalError(401, "Invalid API key")
        permission = PERMISSIONS.get((method, path[-1])) or PERMISSIONS.get((method, path[0]))
        if permission not in self.allowed:
            text = f"You'll need additional permissions to perform this action. Permissions needed: {permission}"
            raise RefusalError(403, text, title="Access denied")
        if method != "GET" and "application/json" not in asked.headers["Content-Type"]:
            raise RefusalError(400, "bad request data")
        match method, *path:
            case "GET", "folders", uid:
                return {"uid": uid, "title": _found(self.folders, uid)}
            case "POST", "folders":
                self.folders[asked.body["uid"]] = asked.body["title"]
                return asked.body
            case "GET", "datasources":
                return list(self.datasources.values())
            case "POST", "datasources":
                settled = {"id": 1, "orgId": 1, "readOnly": False, "typeName": "Prometheus"}
                self.datasources[asked.body["uid"]] = settled | asked.body
                return {"message": "Datasource added"}
            case "GET", "datasources", "uid", uid:
                return _found(self.datasources, uid)
            case "PUT", "datasources", "uid", uid:
                assert not {"id", "orgId", "readOnly", "typeName"} & set(asked.body)
                _found(self.datasources, uid).update(asked.body)
                return {"message": "Datasource updated"}
            case "GET", "datasources", "uid", uid, "health":
                _found(self.datasources, uid)
                if not self.healthy:
                    raise RefusalError(400, "dial tcp 10.0.0.7:9090: refused", status="ERROR")
                return {"status": "OK", "message": "Successfully queried the Prometheus API."}
            case "GET", "dashboards", "uid", uid:
                found = {"dashboard": _found(self.dashboards, uid), "meta": self.meta[uid]}
                if found["meta"].get("format") == "v2":
                    raise RefusalError(406, "dashboard api version not supported")
                return found
            case "GET", "dashboards", "uid", uid, "versions":
                is_bare = self.version.startswith(("10", "11"))
                return self.history[uid] if is_bare else {"versions": self.history[uid]}
            case "POST", "dashboards", "db":
                return self._save(asked.body)
            case "GET", "search":
                assert asked.query["type"] == ["dash-db"]
                assert 0 < int(asked.query["limit"][0]) <= 5000, "Grafana lists no more"
                (folder,) = asked.query["folderUIDs"]
                return [{"uid": u} for u in self.meta if self.meta[u]["folderUid"] == folder]
        raise RefusalError(404, "Not found")

    def _save(self, body: dict[str, Any]) -> Any:
        self.before_save()
        dashboard, folder = body["dashboard"], body["folderUid"]
        assert dashboard["id"] is None
        if folder not in self.folders:
            raise RefusalError(400, "folder not found")
        there = self.dashboards.get(dashboard["uid"])
        if there and self.meta[dashboard["uid"]]["provisioned"]:
            raise RefusalError(400, "Cannot save provisioned dashboard")
        if there and not body["overwrite"] and dashboard.get("version") != there["version"]:
            text = "The dashboard has been changed by someone else"
            raise RefusalError(412, text, status="version-mismatch")
        self.save(dashboard, folder, body["message"])
        return {"status": "success", "uid": dashboard["uid"]}


def _found(things: dict[str, Any], uid: str) -> Any:
    if uid not in things:
        raise RefusalError(404, "not found")
    return things[uid]


class _Handler(Quiet, BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def _any(self) -> None:
        grafana = self.server.grafana
        time.sleep(grafana.delay_s)
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        parts = urlsplit(self.path)
        headers = dict(self.headers.items())
        asked = Asked(self.command, parts.path, parse_qs(parts.query), headers, body)
        grafana.asked.append(asked)
        if parts.path in grafana.replies:
            self._reply(*grafana.replies[parts.path])
        elif not parts.path.startswith(grafana.prefix):
            self._reply(301, "text/html", "", Location=f"{grafana.prefix}/")
        else:
            below = asked._replace(path=parts.path[len(grafana.prefix) :])
            try:
                self._reply(200, "application/json", json.dumps(grafana.answer(below)))
            except RefusalError as refusal:
                self._reply(refusal.status, "application/json", json.dumps(refusal.body))

    do_GET = do_POST = do_PUT = _any  # noqa: N815 - the names that http.server looks for

    def _reply(self, status: int, kind: str, text: str, **headers: str) -> None:
        body = text.encode()
        self.send_response(status)
        length = str(len(body))
        for name, value in ("Content-Type", kind), ("Content-Length", length), *headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    def __init__(self, grafana: Grafana) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.grafana = grafana
        self.faults: list[str] = []

    def handle_error(self, *_: Any) -> None:
        # Of a client that does not wait for the answer nothing is to be said.
        if not isinstance(sys.exc_info()[1], OSError):
            self.faults.append(traceback.format_exc())


@contextmanager
def serving(grafana: Grafana, context: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serve it on a free port of loopback, with TLS if there is a context; yield its address."""
    server = _Server(grafana)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    with answering(server) as address:
        scheme = "http:" if context is None else "https:"
        yield address.replace("http:", scheme) + grafana.prefix
    assert not server.faults, "\n".join(server.faults)
