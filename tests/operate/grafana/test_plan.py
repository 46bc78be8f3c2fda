"""Without a Grafana and without its client: what a push plans, and what it refuses at once."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from ampwatch.cli import main
from ampwatch.errors import GrafanaError
from ampwatch.operate.grafana.server import GrafanaServer
from ampwatch.operate.grafana.work import Wishes, as_text, difference, plan_board
from tests.operate.grafana.conftest import small
from tests.operate.grafana.standin import TOKEN

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BOARD, OLDER = small("run"), small("run", title="ampwatch / Old")


def pushed(board: dict[str, Any]) -> str:
    """Return the message of the version in which a push saves ``board``."""
    message: str = plan_board(board, None, [], Wishes()).request[1]["message"]
    return message


@pytest.mark.parametrize(
    ("there", "message", "meta", "outcome", "forced"),
    [
        (BOARD, pushed(BOARD), {}, "unchanged", "unchanged"),
        (BOARD, "", {}, "unchanged", "unchanged"),
        (BOARD, None, {}, "unchanged", "unchanged"),
        # Rewritten by Grafana in storing, for the message is that of this very board.
        (OLDER, pushed(BOARD), {}, "unchanged", "unchanged"),
        (OLDER, pushed(OLDER), {}, "update", "update"),
        (OLDER, "", {}, "refuse", "update"),
        (OLDER, None, {}, "refuse", "update"),
        (OLDER, "Restored from version 2", {}, "refuse", "update"),
        (OLDER, f"{pushed(OLDER)} and more", {}, "refuse", "update"),
        (None, None, {}, "refuse", "update"),
        (BOARD, pushed(BOARD), {"folderUid": "x"}, "refuse", "update"),
        (OLDER, pushed(OLDER), {"provisioned": True}, "refuse", "refuse"),
        (BOARD, "", {"provisioned": True}, "unchanged", "unchanged"),
        (OLDER, pushed(OLDER), {"canSave": False}, "refuse", "refuse"),
    ],
)
def test_a_dashboard_is_replaced_only_where_nobody_but_a_push_has_saved_it(
    there: dict[str, Any] | None,
    message: str | None,
    meta: dict[str, Any],
    outcome: str,
    forced: str,
) -> None:
    """Without force, and with it."""
    stored = {"meta": {"folderUid": "ampwatch", "canSave": True} | meta}
    stored["dashboard"] = there and {**there, "id": 12, "version": 5}
    versions = [{"version": 6, "message": "x"}]
    versions += [] if message is None else [{"version": 5, "message": message}]

    plain = plan_board(BOARD, stored, versions, Wishes())
    with_force = plan_board(BOARD, stored, versions, Wishes(force=True))

    assert (plain.outcome, with_force.outcome) == (outcome, forced)
    assert plain.request[1]["dashboard"].get("version") == (5 if there else None)
    assert (plain.request[1]["overwrite"], with_force.request[1]["overwrite"]) == (False, True)


def test_what_grafana_counts_and_how_it_writes_numbers_makes_no_difference() -> None:
    """JSON knows one kind of number, and Grafana writes 1.0 as 1; 1.5 stays."""
    board = {"uid": "x", "title": "X", "panels": [{"w": 1.0, "h": 1.5}]}
    there = {"version": 3, "id": 7, "panels": [{"h": 1.5, "w": 1}], "title": "X", "uid": "x"}

    assert difference(there, board) == ""
    assert as_text(there) == as_text(board)
    assert '"h": 1.5,\n      "w": 1\n' in as_text(board)


@pytest.fixture
def refusal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], dashboards: Path
) -> Callable[..., str]:
    """What a push with these options says that is refused."""
    monkeypatch.setenv("GRAFANA_URL", "http://localhost:3000")
    monkeypatch.setenv("GRAFANA_TOKEN", TOKEN)

    def run(*options: str) -> str:
        assert main(["grafana", "push", "--dashboards", str(dashboards), *options]) == 1
        return capsys.readouterr().err

    return run


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--url", "localhost:3000"), "an address like http://localhost:3000"),
        (("--url", "http://grafana:port"), "an address like http://localhost:3000"),
        (("--url", "http://grafana/?orgId=1"), "without a user, `?` and `#`"),
        (("--url", "http://admin:hunter2@grafana"), "without a user, `?` and `#`"),
        (("--url", "admin:hunter2@grafana"), "without a user, `?` and `#`"),
        (("--timeout", "nan"), "`--timeout`: expected seconds above 0"),
        (("--org-id", "0"), "`--org-id`: expected the number of an organization"),
        (("--ca-file", "/nowhere/ca.pem"), "a PEM file with certificates, got '/nowhere/ca.pem'"),
        (("--token-file", "/nowhere/token"), "No such file or directory: '/nowhere/token'"),
        (("--scrape-interval", "15"), "`--scrape-interval`: expected a duration"),
        (("--datasource", "a/b"), "`--datasource`: expected a uid"),
        (("--folder", ""), "`--folder`: expected a uid"),
        (("--prometheus-url", "prometheus:9090"), "`--prometheus-url`: expected an address"),
        (("--prometheus-url", "http://u:hunter2@p"), "`--prometheus-url`: expected an address"),
        (("--dashboards", "/nowhere"), "JSON files in '/nowhere', found none"),
        (("ampwatch-rum",), "expected ampwatch-rum among the JSON files in"),
    ],
)
def test_what_is_not_usable_is_reported(
    options: tuple[str, ...], told: str, refusal: Callable[..., str]
) -> None:
    """Words name it; a password in it is not repeated."""
    said = refusal(*options)

    assert told in said
    assert "hunter2" not in said


@pytest.mark.parametrize(
    "content", ["", "e", "glsa_a\nglsa_b\n", "glsa_\u00fcbcd", "Bearer glsa_x"]
)
def test_no_token_is_reported(content: str, refusal: Callable[..., str], tmp_path: Path) -> None:
    """None, a letter, two lines, another alphabet, another word."""
    (tmp_path / "token").write_text(content, encoding="utf-8")

    said = refusal("--token-file", str(tmp_path / "token"))

    assert "expected the token of a service account and nothing else" in said
    assert "Service accounts" in said
    assert "glsa_" not in said


@pytest.mark.parametrize("content", ["{", "[]", '{"title": "x", "uid": "other"}'])
def test_no_board_is_reported(content: str, refusal: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "ampwatch-bad.json").write_text(content)

    said = refusal("--dashboards", str(tmp_path))

    assert "expected the JSON of a dashboard, with a title and the uid 'ampwatch-bad'" in said


def test_without_the_client_the_command_says_how_to_get_it(refusal: Callable[..., str]) -> None:
    """In an environment of its own, not in this one, which trains."""
    assert importlib.util.find_spec("grafana_client") is None, "it would replace urllib3 here"

    said = refusal()

    assert "expected the package grafana-client, which is not installed here" in said
    assert "uvx --from 'ampwatch[grafana]' ampwatch grafana" in said
    assert "takes the place of urllib3" in said


def test_whatever_the_client_raises_the_token_is_in_no_chain() -> None:
    """A traceback shows causes and contexts, and theirs hold requests."""

    def fail(_: str) -> None:
        try:
            {}[TOKEN]
        except KeyError as error:
            msg = f"Authorization: Bearer {TOKEN}"
            raise RuntimeError(msg) from error

    server = object.__new__(GrafanaServer)
    server._url, server._token, server._timeout_s = "http://g", TOKEN, 1.0
    server._api = SimpleNamespace(client=SimpleNamespace(GET=fail))
    with pytest.raises(GrafanaError) as caught:
        server.check()

    assert (caught.value.__cause__, caught.value.__context__) == (None, None)
    assert TOKEN not in f"{caught.value!r} {server!r}"
