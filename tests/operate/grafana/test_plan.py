"""Plans, made from what is there and what should be: no HTTP, no client."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from ampwatch.errors import SettingsError
from ampwatch.operate.grafana import Board, BoardWishes, load
from ampwatch.operate.grafana.boards import as_shipped, bare, compared, with_datasource
from ampwatch.operate.grafana.plan import (
    Outcome,
    Stored,
    message,
    plan_board,
    plan_datasource,
)
from ampwatch.operate.grafana.trouble import too_old
from tests.operate.grafana.conftest import small, write

if TYPE_CHECKING:
    from pathlib import Path

BOARD = Board("ampwatch-run", bare(small("run")))
OLDER = Board("ampwatch-run", bare(small("run", title="ampwatch / Old")))
IN_PLACE = {"folderUid": "ampwatch", "folderTitle": "ampwatch", "canSave": True}


def stored(board: Board, words: str | None, **meta: Any) -> Stored:
    """Return ``board`` as a Grafana has it: numbered."""
    return Stored({**board.dashboard, "id": 12, "version": 5}, IN_PLACE | meta, words)


@pytest.mark.parametrize(
    ("there", "outcome", "forced"),
    [
        (None, Outcome.CREATE, Outcome.CREATE),
        (stored(BOARD, message(BOARD)), Outcome.KEEP, Outcome.KEEP),
        (stored(BOARD, ""), Outcome.KEEP, Outcome.KEEP),
        (stored(BOARD, None), Outcome.KEEP, Outcome.KEEP),
        # Rewritten by Grafana in storing, for the message is that of this very board.
        (stored(OLDER, message(BOARD)), Outcome.KEEP, Outcome.KEEP),
        (stored(OLDER, message(OLDER)), Outcome.UPDATE, Outcome.UPDATE),
        (stored(OLDER, ""), Outcome.REFUSE, Outcome.UPDATE),
        (stored(OLDER, None), Outcome.REFUSE, Outcome.UPDATE),
        (stored(OLDER, "Restored from version 2"), Outcome.REFUSE, Outcome.UPDATE),
        (stored(OLDER, f"{message(OLDER)} and more"), Outcome.REFUSE, Outcome.UPDATE),
        (stored(BOARD, message(BOARD), folderUid="x"), Outcome.REFUSE, Outcome.UPDATE),
        (stored(OLDER, message(OLDER), provisioned=True), Outcome.REFUSE, Outcome.REFUSE),
        (stored(BOARD, "", provisioned=True), Outcome.KEEP, Outcome.KEEP),
        (stored(OLDER, message(OLDER), canSave=False), Outcome.REFUSE, Outcome.REFUSE),
        (Stored(None, {}, None), Outcome.REFUSE, Outcome.UPDATE),
    ],
)
def test_a_dashboard_is_replaced_only_where_nobody_but_a_push_has_saved_it(
    there: Stored | None, outcome: Outcome, forced: Outcome
) -> None:
    """Without force, and with it."""
    plain = plan_board(BOARD, there, "ampwatch")
    with_force = plan_board(BOARD, there, "ampwatch", force=True)

    assert (plain.outcome, with_force.outcome) == (outcome, forced)
    assert (plain.body is None) == (plain.outcome in (Outcome.KEEP, Outcome.REFUSE))
    assert with_force.outcome is not Outcome.UPDATE or with_force.body["overwrite"]


def test_a_number_is_the_same_with_a_point_and_without() -> None:
    """JSON knows one kind of number, and Grafana writes 1.0 as 1."""
    there = json.loads(json.dumps(small("run")).replace("1.0", "1"))

    assert compared(there) == compared(BOARD.dashboard)
    assert Board("ampwatch-run", bare(there)).digest == BOARD.digest != OLDER.digest


def test_the_choice_of_a_datasource_comes_and_goes() -> None:
    """In with a push, out with an export; other variables and the original stay as they are."""
    other = {"type": "query", "name": "job", "current": {"value": "x"}}
    loki = {"type": "datasource", "name": "logs", "query": "loki", "current": {"value": "y"}}
    variable = small("run")["templating"]["list"][0]
    board = Board("ampwatch-run", bare(small("run", templating={"list": [loki, variable, other]})))

    chosen = with_datasource(board, "P8E8", "Mimir")

    kept, current, job = chosen.dashboard["templating"]["list"]
    assert (kept, job) == (loki, other)
    assert current["current"] == {"selected": False, "text": "Mimir", "value": "P8E8"}
    assert board.dashboard["templating"]["list"][1] == variable
    model = Board("ampwatch-run", bare(small("run")))
    pushed = with_datasource(model, "P8E8", "Mimir").dashboard
    assert as_shipped({**pushed, "version": 9}, model) == model.dashboard
    assert with_datasource(Board("x", {"title": "none"}), "a", "b").dashboard == {"title": "none"}


def test_a_datasource_is_changed_only_where_an_address_is_given() -> None:
    """Whatever it looks like otherwise; what Grafana answers with is not sent back."""
    there = {"uid": "d", "id": 1, "type": "prometheus", "url": "http://a", "typeName": "Prometheus"}

    assert plan_datasource("d", there, None, "15s").outcome is Outcome.KEEP
    change = plan_datasource("d", there, "http://b", "15s")
    assert change.outcome is Outcome.UPDATE
    assert (
        change.why
        == "url http://a -> http://b, httpMethod unset -> POST, timeInterval unset -> 15s"
    )
    assert not {"id", "typeName"} & set(change.body)
    settled = there | change.body
    assert plan_datasource("d", settled, "http://b", "15s").outcome is Outcome.KEEP
    assert plan_datasource("d", settled, "http://b", "1m").why == "timeInterval 15s -> 1m"


@pytest.mark.parametrize(
    ("version", "old"),
    [("9.5.21", True), ("10.3.9", True), ("10.4.0", False), ("12.1.0-89012pre", False),
     ("13.0.1", False), ("", False), ("next", False)],
)  # fmt: skip
def test_a_grafana_older_than_the_dashboards_are_made_for_is_known(
    version: str, *, old: bool
) -> None:
    """One that says nothing readable is taken as it is."""
    assert bool(too_old(version, "http://g")) == old


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "expected the JSON of a dashboard"),
        ("[]", "an object with a title"),
        ('{"title": "x", "uid": "other"}', "expected the uid 'ampwatch-bad'"),
    ],
)
def test_a_file_that_is_no_dashboard_is_reported(content: str, told: str, tmp_path: Path) -> None:
    """By name, before anything is sent."""
    (tmp_path / "ampwatch-bad.json").write_text(content)

    with pytest.raises(SettingsError) as caught:
        load(tmp_path)

    assert told in str(caught.value)
    assert "ampwatch-bad.json" in str(caught.value)


def test_a_directory_without_dashboards_is_reported(tmp_path: Path) -> None:
    """Instead of doing nothing with success."""
    with pytest.raises(SettingsError, match="found none"):
        load(tmp_path)


def test_dashboards_are_named_with_or_without_the_common_part(tmp_path: Path) -> None:
    """Each once."""
    for topic in ("overview", "run"):
        write(tmp_path, small(topic))

    names = ["run", "ampwatch-run", "ampwatch-overview.json"]
    assert [board.uid for board in load(tmp_path, names)] == ["ampwatch-run", "ampwatch-overview"]


@pytest.mark.parametrize(
    ("wishes", "told"),
    [
        ({"scrape_interval": "15"}, "`--scrape-interval`: expected a duration"),
        ({"datasource": "a/b"}, "`--datasource`: expected a uid"),
        ({"folder": ""}, "`--folder`: expected a uid"),
        ({"prometheus_url": "prometheus:9090"}, "`--prometheus-url`: expected an address"),
        ({"prometheus_url": "http://u:hunter2@p"}, "`--prometheus-url`: expected one without a"),
    ],
)
def test_a_wish_that_cannot_be_is_reported(wishes: dict[str, str], told: str) -> None:
    """By its option, without a password in it."""
    with pytest.raises(SettingsError) as caught:
        BoardWishes(**wishes)

    assert told in str(caught.value)
    assert "hunter2" not in str(caught.value)
