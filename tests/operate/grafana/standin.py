"""Plays the part of a Grafana's HTTP API, after its documentation: keeps state, records requests.

No Grafana runs in these tests. It answers in the forms of Grafana 10.4, 12 and 13 as far as they
differ in what is used here, and takes only requests that Grafana would take.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
import traceback
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator

TOKEN = "glsa_a-secret-of-the-tests"

EVERYTHING = frozenset(
    [
        "folders:read",
        "folders:create",
        "datasources:read",
        "datasources:create",
        "datasources:write",
        "datasources:query",
        "dashboards:read",
        "dashboards:write",
    ]
)


class Asked(NamedTuple):
    """A request that came in."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: Any


class RefusalError(Exception):
    """An answer with an error."""

    def __init__(self, code: int, message: str, /, **more: Any) -> None:
        super().__init__(message)
        self.status, self.body = code, {"message": message, **more}


class Grafana:
    """Contents of a Grafana, and how it answers.

    Attributes:
        version: What it says it is; empty to hide it from those without a token.
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
        self.allowed = EVERYTHING
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

    def save(self, dashboard: dict[str, Any], folder: str, message: str, **meta: Any) -> int:
        """Store a version, as the API and people at the page do."""
        uid = dashboard["uid"]
        versions = self.history.setdefault(uid, [])
        version = len(versions) + 1
        if self.rewrites:
            dashboard = {**dashboard, "schemaVersion": 42, "preload": False}
        self.dashboards[uid] = {**dashboard, "id": 7, "version": version}
        title = self.folders.get(folder, "")
        where = {"folderUid": folder, "folderTitle": title, "provisioned": False, "canSave": True}
        self.meta[uid] = {**where, "updated": "2026-10-01T12:30:00Z", "updatedBy": "ada", **meta}
        versions.insert(0, {"uid": uid, "version": version, "message": message})
        return version

    def by_hand(self, uid: str, **changes: Any) -> None:
        """Somebody opens the dashboard, changes it and saves."""
        self.save({**self.dashboards[uid], **changes}, self.meta[uid]["folderUid"], "")

    def answer(self, asked: Asked) -> Any:
        """Return the body of a success.

        Raises:
            RefusalError: Otherwise.
        """
        if (asked.method, asked.path) == ("GET", "/api/health"):
            told = {"version": self.version} if self.version else {}
            return {"database": "ok", **told}
        if asked.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise RefusalError(401, "Invalid API key")
        for method, pattern, permission, handler in ROUTES:
            if method == asked.method and (match := re.fullmatch(pattern, asked.path)):
                if permission not in {"", *self.allowed}:
                    text = f"You'll need additional permissions to perform this action. Permissions needed: {permission}"
                    raise RefusalError(403, text, title="Access denied")
                kind = asked.headers.get("Content-Type", "")
                if method != "GET" and not kind.startswith("application/json"):
                    raise RefusalError(400, "bad request data")
                return handler(self, asked, *match.groups())
        raise RefusalError(404, "Not found")

    def _settings(self, _: Asked) -> Any:
        return {"buildInfo": {"version": self.version or "12.0.0"}}

    def _folder(self, _: Asked, uid: str) -> Any:
        if uid not in self.folders:
            raise RefusalError(404, "folder not found", status="not-found")
        return {"uid": uid, "title": self.folders[uid]}

    def _new_folder(self, asked: Asked) -> Any:
        if asked.body["uid"] in self.folders:
            raise RefusalError(412, "the folder has been changed by someone else")
        self.folders[asked.body["uid"]] = asked.body["title"]
        return asked.body

    def _datasources(self, _: Asked) -> Any:
        return list(self.datasources.values())

    def _datasource(self, _: Asked, uid: str) -> Any:
        if uid not in self.datasources:
            raise RefusalError(404, "Data source not found")
        return self.datasources[uid]

    def _new_datasource(self, asked: Asked) -> Any:
        if asked.body["name"] in {one["name"] for one in self.datasources.values()}:
            raise RefusalError(409, "data source with the same name already exists")
        kept = {"id": 1, "orgId": 1, "readOnly": False, "typeName": "Prometheus", **asked.body}
        self.datasources[asked.body["uid"]] = kept
        return {"datasource": kept, "message": "Datasource added"}

    def _changed_datasource(self, asked: Asked, uid: str) -> Any:
        assert not {"id", "orgId", "readOnly", "typeName"} & set(asked.body)
        self.datasources[uid].update(asked.body)
        return {"message": "Datasource updated"}

    def _health(self, asked: Asked, uid: str) -> Any:
        self._datasource(asked, uid)
        if not self.healthy:
            raise RefusalError(400, "dial tcp 10.0.0.7:9090: connect: refused", status="ERROR")
        return {"status": "OK", "message": "Successfully queried the Prometheus API."}

    def _dashboard(self, _: Asked, uid: str) -> Any:
        if uid not in self.dashboards:
            raise RefusalError(404, "Dashboard not found")
        if self.meta[uid].get("format") == "v2":
            raise RefusalError(406, "dashboard api version not supported")
        return {"dashboard": self.dashboards[uid], "meta": self.meta[uid]}

    def _versions(self, _: Asked, uid: str) -> Any:
        listed = self.history[uid]
        old = self.version.startswith("1") and int(self.version.split(".")[0]) < 12
        return listed if old else {"continueToken": "", "versions": listed}

    def _save(self, asked: Asked) -> Any:
        self.before_save()
        assert set(asked.body) == {"dashboard", "folderUid", "message", "overwrite"}
        dashboard, folder = asked.body["dashboard"], asked.body["folderUid"]
        uid = dashboard["uid"]
        assert dashboard["id"] is None
        if folder not in self.folders:
            raise RefusalError(400, "folder not found")
        there = self.dashboards.get(uid)
        if there and self.meta[uid]["provisioned"]:
            raise RefusalError(400, "Cannot save provisioned dashboard")
        if there and not asked.body["overwrite"] and dashboard.get("version") != there["version"]:
            text = "The dashboard has been changed by someone else"
            raise RefusalError(412, text, status="version-mismatch")
        version = self.save(dashboard, folder, asked.body["message"])
        return {"status": "success", "uid": uid, "version": version, "url": f"/d/{uid}/x"}

    def _search(self, asked: Asked) -> Any:
        assert asked.query["type"] == ["dash-db"]
        folder, limit = asked.query["folderUIDs"], int(asked.query["limit"][0])
        page = int(asked.query["page"][0]) - 1
        found = [
            {"uid": u, "type": "dash-db"}
            for u in self.meta
            if [self.meta[u]["folderUid"]] == folder
        ]
        return found[page * limit : (page + 1) * limit]


ROUTES: list[tuple[str, str, str, Callable[..., Any]]] = [
    ("GET", "/api/frontend/settings", "", Grafana._settings),
    ("GET", "/api/folders/([^/]+)", "folders:read", Grafana._folder),
    ("POST", "/api/folders", "folders:create", Grafana._new_folder),
    ("GET", "/api/datasources", "datasources:read", Grafana._datasources),
    ("POST", "/api/datasources", "datasources:create", Grafana._new_datasource),
    ("GET", "/api/datasources/uid/([^/]+)", "datasources:read", Grafana._datasource),
    ("PUT", "/api/datasources/uid/([^/]+)", "datasources:write", Grafana._changed_datasource),
    ("GET", "/api/datasources/uid/([^/]+)/health", "datasources:query", Grafana._health),
    ("GET", "/api/dashboards/uid/([^/]+)", "dashboards:read", Grafana._dashboard),
    ("GET", "/api/dashboards/uid/([^/]+)/versions", "dashboards:write", Grafana._versions),
    ("POST", "/api/dashboards/db", "dashboards:write", Grafana._save),
    ("GET", "/api/search", "dashboards:read", Grafana._search),
]


class _Handler(BaseHTTPRequestHandler):
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

    def log_message(self, *_: Any) -> None:
        pass


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
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        scheme = "http" if context is None else "https"
        yield f"{scheme}://127.0.0.1:{server.server_port}{grafana.prefix}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert not server.faults, "\n".join(server.faults)
