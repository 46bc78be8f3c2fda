"""What a push plans and refuses at once, without a Grafana and its client; what is there, against what is shipped."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ampwatch.cli import main
from ampwatch.errors import GrafanaError
from ampwatch.operate.grafana.server import GrafanaServer
from ampwatch.operate.grafana.work import Wishes, as_text, difference, plan_board
from tests.host.daemon.parts import ROOT
from tests.operate.grafana.conftest import PROMETHEUS, Command, small, write
from tests.operate.grafana.standin import TOKEN, Grafana

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


def test_a_difference_is_shown(ampwatch: Command, grafana: Grafana, dashboards: Path) -> None:
    """From what Grafana has to what is shipped; nothing of what Grafana counts is in it."""
    before = ampwatch("diff")
    assert (before.status, "would create  dashboard ampwatch-run" in before.out) == (1, True)
    ampwatch("push", *PROMETHEUS)
    write(dashboards, small("run", panels=[]))
    grafana.asked.clear()

    said = ampwatch("diff", "run")

    assert (said.status, grafana.writes) == (1, [])
    assert "--- ampwatch-run in Grafana\n+++ ampwatch-run as shipped\n" in said.out
    changed = re.findall(r"^[+-] .*", said.out, re.MULTILINE)
    assert (changed[0], changed[-1]) == ('-  "panels": [', '+  "panels": [],')
    assert '-      "title": "Is it well?"' in changed
    assert "would update  dashboard ampwatch-run" in said.out
    assert "overview" not in said.out


def test_trouble_is_status_2(ampwatch: Command) -> None:
    """A script can tell it from a difference."""
    assert ampwatch("diff", GRAFANA_TOKEN="glsa_wrong").status == 2
    assert ampwatch("diff", "nothing-of-that-name").status == 2


def test_an_export_is_the_shipped_file(ampwatch: Command, grafana: Grafana, tmp_path: Path) -> None:
    """Byte by byte, also where Grafana hands out its keys in another order."""
    ampwatch("push", *PROMETHEUS, "--dashboards", str(ROOT / "dashboards"))
    for uid, stored in grafana.dashboards.items():
        grafana.dashboards[uid] = dict(reversed(stored.items()))
    backup = tmp_path / "new" / "backup"

    said = ampwatch("export", str(backup))

    shipped = {file.name: file.read_bytes() for file in (ROOT / "dashboards").glob("*.json")}
    assert (said.status, said.err, len(shipped)) == (0, "", 6)
    assert {file.name: file.read_bytes() for file in backup.iterdir()} == shipped
    assert f"written {backup / 'ampwatch-run.json'}" in said.out


def test_an_export_can_be_pushed(ampwatch: Command, grafana: Grafana, tmp_path: Path) -> None:
    """Changed dashboards of ours, and others of that folder; nothing of other folders."""
    ampwatch("push", *PROMETHEUS)
    grafana.by_hand("ampwatch-run", title="Mine")
    grafana.save({"uid": "own", "title": "Own"}, "ampwatch", "")
    grafana.save({"uid": "other", "title": "Other"}, "elsewhere", "")
    # A server must not choose where on this machine something is written.
    grafana.save({"uid": "../../escaped", "title": "No"}, "ampwatch", "")
    answer = json.dumps({"dashboard": grafana.dashboards["../../escaped"], "meta": {}})
    for path in ("/api/escaped", "/api/dashboards/uid/../../escaped"):
        grafana.replies[path] = (200, "application/json", answer)
    backup = tmp_path / "a" / "b"

    assert ampwatch("export", str(backup)).status == 0

    assert {file.stem for file in backup.iterdir()} == {"ampwatch-overview", "ampwatch-run", "own"}
    assert json.loads((backup / "own.json").read_text()) == {"uid": "own", "title": "Own"}
    assert list(tmp_path.rglob("escaped.json")) == []
    assert ampwatch("push", "--force").status == 0
    assert ampwatch("push", "--dashboards", str(backup), "--force").status == 0
    assert grafana.dashboards["ampwatch-run"]["title"] == "Mine"


def test_no_export_is_reported(ampwatch: Command, grafana: Grafana, tmp_path: Path) -> None:
    """Nothing in the folder, no place for the files, the newer format."""
    found_none = "expected dashboards in the folder 'ampwatch', found none to write"
    assert found_none in ampwatch("export", str(tmp_path / "backup")).err
    ampwatch("push", "run", *PROMETHEUS)
    (tmp_path / "file").touch()
    assert "expected to write" in ampwatch("export", str(tmp_path / "file")).err
    grafana.meta["ampwatch-run"]["format"] = "v2"
    said = ampwatch("export", str(tmp_path / "backup"))
    assert (said.status, found_none in said.err) == (1, True)
    assert "left out ampwatch-run: it is in Grafana's newer format (v2)" in said.out
