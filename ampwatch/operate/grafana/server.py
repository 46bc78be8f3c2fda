"""A Grafana over HTTP, through grafana-client. What goes wrong there comes out as a GrafanaError.

Nothing of the client's exceptions is passed on: their texts and chains hold requests, and these
the token.
"""

from __future__ import annotations

import importlib.util
import json
import ssl
from functools import partial
from http import HTTPStatus
from itertools import count
from typing import TYPE_CHECKING, Any

from ampwatch import __version__
from ampwatch.errors import GrafanaError
from ampwatch.operate.grafana.boards import UID
from ampwatch.operate.grafana.plan import Stored
from ampwatch.operate.grafana.trouble import Doing, explain, no_grafana, too_old

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ampwatch.operate.grafana.place import GrafanaPlace

PAGE = 500
"""Dashboards listed by one request."""


class GrafanaServer:
    """A Grafana.

    Raises:
        GrafanaError: If grafana-client is not installed.
    """

    def __init__(self, place: GrafanaPlace) -> None:
        if importlib.util.find_spec("grafana_client") is None:
            msg = (
                "expected the package grafana-client, which is not installed here. It brings a package that takes the"
                " place of urllib3, so give it an environment of its own, not the one that trains:\n"
                "  uvx --from 'ampwatch[grafana]' ampwatch grafana ...\n"
                "  pipx install 'ampwatch[grafana]'"
            )
            raise GrafanaError(msg)
        from grafana_client import GrafanaApi  # noqa: PLC0415 - an extra, in an environment of its own

        self._place = place
        self._api = GrafanaApi(
            place.token,
            protocol=place.scheme,
            host=place.host,
            port=place.port,
            url_path_prefix=place.path,
            verify=place.verify,
            timeout=place.timeout_s,
            organization_id=place.org_id,
            user_agent=f"ampwatch/{__version__}",
        )
        # A redirected POST becomes a GET, and a token must not travel on to where it points.
        self._api.client.s.max_redirects = 0

    def check(self) -> str:
        """Return the version, empty if Grafana keeps it to itself.

        Raises:
            GrafanaError: If it is not reached, is no Grafana, or an old one.
        """
        doing = Doing("say that it is well")
        health = self._ask(doing, lambda: self._api.client.GET("/health"))
        if not isinstance(health, dict) or "database" not in health:
            raise self._error(no_grafana(health, self._place.url))
        version = health.get("version")
        if not version:
            build = self._ask(Doing("tell its version"), self._api.health.check)
            version = build.get("version") if isinstance(build, dict) else None
        if not isinstance(version, str):
            return ""
        if trouble := too_old(version, self._place.url):
            raise self._error(trouble)
        return version

    def has_folder(self, uid: str) -> bool:
        """Return whether there is a folder."""
        doing = Doing(f"tell whether there is a folder {uid!r}", "folders:read")
        return self._find(doing, lambda: self._api.folder.get_folder(uid)) is not None

    def create_folder(self, body: dict[str, Any]) -> None:
        """Make a folder; that somebody else has just done so is no error."""
        doing = Doing(f"make the folder {body['uid']!r}", "folders:create")
        there = (HTTPStatus.CONFLICT, HTTPStatus.PRECONDITION_FAILED)
        self._ask(doing, lambda: self._api.folder.create_folder(body["title"], body["uid"]), there)

    def datasource(self, uid: str) -> dict[str, Any] | None:
        """Return a datasource, ``None`` if there is none, an empty one if the token may not read it."""
        doing = Doing(f"show the datasource {uid!r}", "datasources:read")
        get = self._api.datasource.get_datasource_by_uid
        found: dict[str, Any] | None = self._find(doing, lambda: get(uid), HTTPStatus.FORBIDDEN)
        return found

    def datasources(self) -> list[dict[str, Any]]:
        """Return those that the token may see."""
        doing = Doing("list its datasources", "datasources:read")
        listed = self._ask(doing, self._api.datasource.list_datasources, (HTTPStatus.FORBIDDEN,))
        return [one for one in listed or [] if isinstance(one, dict)]

    def create_datasource(self, body: dict[str, Any]) -> None:
        """Make a datasource."""
        doing = Doing(f"make the datasource {body['uid']!r}", "datasources:create")
        self._ask(doing, lambda: self._api.datasource.create_datasource(body))

    def update_datasource(self, body: dict[str, Any]) -> None:
        """Change a datasource."""
        doing = Doing(f"change the datasource {body['uid']!r}", "datasources:write")
        update = self._api.datasource.update_datasource_by_uid
        self._ask(doing, lambda: update(body["uid"], body))

    def datasource_trouble(self, uid: str) -> str:
        """Return what is wrong with a datasource as Grafana itself tries it, empty if nothing is."""
        remedy = "check its address as Grafana sees it, and that Prometheus runs there"
        doing = Doing(
            f"reach Prometheus through the datasource {uid!r}", "datasources:query", remedy
        )
        try:
            health = self._ask(doing, lambda: self._api.datasource.health(uid))
        except GrafanaError as error:
            return str(error)
        if isinstance(health, dict) and health.get("status") == "OK":
            return ""
        return (
            f"expected {self._place.url} to {doing.what}, got {json.dumps(health)[:200]}; {remedy}"
        )

    def dashboard(self, uid: str, *, history: bool = True) -> Stored | None:
        """Return a dashboard, ``None`` if there is none; its message only with ``history``."""
        doing = Doing(f"show the dashboard {uid!r}", "dashboards:read")
        get = self._api.dashboard.get_dashboard
        found = self._find(doing, lambda: get(uid), HTTPStatus.NOT_ACCEPTABLE)
        if found is None:
            return None
        dashboard = found.get("dashboard")
        meta = found.get("meta") or {}
        if not isinstance(dashboard, dict):
            return Stored(None, meta, None)
        words = self._message(uid, dashboard.get("version")) if history else None
        return Stored(dashboard, meta, words)

    def _message(self, uid: str, version: Any) -> str | None:
        """Return what was written when ``version`` was saved, ``None`` if that cannot be had."""
        doing = Doing(f"show the history of the dashboard {uid!r}", "dashboards:write")
        get = self._api.dashboard_versions.get_dashboard_versions_by_uid
        hidden = (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND)
        listed = self._ask(doing, lambda: get(uid), hidden)
        # Grafana 11 and older answer with the list itself.
        versions = listed.get("versions") if isinstance(listed, dict) else listed
        for one in versions or []:
            if isinstance(one, dict) and one.get("version") == version:
                return str(one.get("message") or "")
        return None

    def save_dashboard(self, body: dict[str, Any]) -> Any:
        """Save a dashboard and return the version it is in now."""
        uid = body["dashboard"]["uid"]
        doing = Doing(f"save the dashboard {uid!r}", "dashboards:write")
        answer = self._ask(doing, lambda: self._api.dashboard.update_dashboard(body))
        if not isinstance(answer, dict):
            raise self._error(no_grafana(answer, self._place.url))
        return answer.get("version")

    def dashboards_in(self, folder: str) -> Iterator[str]:
        """Iterate over the uids of the dashboards of a folder."""
        doing = Doing(f"list the dashboards of the folder {folder!r}", "dashboards:read")
        search = self._api.search.search_dashboards
        for page in count(1):
            listed = self._ask(
                doing,
                partial(search, type_="dash-db", folder_uids=folder, limit=PAGE, page=page),
            )
            if not isinstance(listed, list):
                raise self._error(no_grafana(listed, self._place.url))
            uids = [str(one.get("uid")) for one in listed if isinstance(one, dict)]
            # They become names of files.
            yield from (uid for uid in uids if UID.fullmatch(uid))
            if len(listed) < PAGE:
                return

    def _find(self, doing: Doing, request: Callable[[], Any], *hidden: int) -> Any:
        """Return an object, ``None`` if there is none, an empty one for a status in ``hidden``."""
        found = self._ask(doing, request, (HTTPStatus.NOT_FOUND, *hidden), report_status=True)
        if isinstance(found, int):
            return None if found == HTTPStatus.NOT_FOUND else {}
        if not isinstance(found, dict):
            raise self._error(no_grafana(found, self._place.url))
        return found

    def _ask(
        self,
        doing: Doing,
        request: Callable[[], Any],
        expected: tuple[int, ...] = (),
        *,
        report_status: bool = False,
    ) -> Any:
        """Return the answer; for a status in ``expected`` that status if ``report_status``, else ``None``."""
        from grafana_client.client import GrafanaException, GrafanaTimeoutError  # noqa: PLC0415
        from niquests.exceptions import RequestException  # noqa: PLC0415

        url = self._place.url
        try:
            return request()
        except GrafanaTimeoutError:
            trouble = f"expected an answer of {url} within {self._place.timeout_s:g} s, got none; give more with --timeout, or look whether it is well"
        except GrafanaException as error:
            if error.status_code in expected:
                return error.status_code if report_status else None
            trouble = explain(doing, error.status_code, _said(error), url)
        except (RequestException, OSError, ValueError, AttributeError) as error:
            # AttributeError: the client takes some answers apart without checking them.
            trouble = self._unreached(error)
        # Outside of the `except`, so that no chain leads to the request and its headers.
        raise self._error(trouble)

    def _unreached(self, error: BaseException) -> str:
        url = self._place.url
        if type(error).__name__ == "TooManyRedirects":
            return f"expected a Grafana at {url}, got a redirect to another address; give that one, with its sub-path"
        if isinstance(error, ValueError | AttributeError) and not isinstance(
            error, ConnectionError
        ):
            return no_grafana("", url)
        reason = _innermost(error)
        if isinstance(reason, ssl.SSLCertVerificationError):
            return f"expected a certificate that is trusted at {url}, got: {reason.verify_message}; name its authority with --ca-file"
        if isinstance(reason, ssl.SSLError):
            why = reason.reason or "no TLS"
            return f"expected TLS at {url}, got: {why}; is it http:// there?"
        why = getattr(reason, "strerror", None) or str(reason)
        return f"expected a Grafana at {url}, got no connection: {why}; check the address, and that it runs"

    def _error(self, text: str) -> GrafanaError:
        return GrafanaError(self._place.without_secrets(text))


def _said(error: Any) -> str:
    """Return what the server said."""
    answer = error.response
    if isinstance(answer, dict):
        return str(answer.get("message") or answer)
    return str(answer or "")


def _innermost(error: BaseException) -> BaseException:
    """Return what an exception comes from in the end."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return error
