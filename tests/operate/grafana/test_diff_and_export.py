"""`ampwatch grafana diff` and `export`: what is there, against what is shipped."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from tests.operate.grafana.conftest import PROMETHEUS, Said, small, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.operate.grafana.standin import Grafana

    Command = Callable[..., Said]


def test_no_difference_is_status_0(ampwatch: Command, grafana: Grafana) -> None:
    """After a push."""
    ampwatch("push", *PROMETHEUS)
    grafana.asked.clear()

    said = ampwatch("diff")

    assert (said.status, said.err, grafana.writes) == (0, "", [])
    assert said.out.splitlines()[-1] == "unchanged     dashboard ampwatch-run"


def test_a_difference_is_shown_and_status_1(
    ampwatch: Command, grafana: Grafana, dashboards: Path
) -> None:
    """From what Grafana has to what is shipped; nothing of what Grafana counts is in it."""
    ampwatch("push", *PROMETHEUS)
    write(dashboards, small("run", panels=[]))
    grafana.asked.clear()

    said = ampwatch("diff", "run")

    assert (said.status, grafana.writes) == (1, [])
    assert "--- ampwatch-run in Grafana\n+++ ampwatch-run as shipped\n" in said.out
    changed = re.findall(r"^[+-] .*", said.out, re.MULTILINE)
    assert changed[0] == '-  "panels": ['
    assert changed[-1] == '+  "panels": [],'
    assert '-      "title": "Is it well?"' in changed
    assert "would update  dashboard ampwatch-run" in said.out
    assert "overview" not in said.out


def test_before_the_first_push_everything_differs(ampwatch: Command) -> None:
    """Without a datasource, too."""
    said = ampwatch("diff")

    assert said.status == 1
    assert "would create  dashboard ampwatch-run" in said.out
    assert "would refuse  datasource ampwatch-prometheus: there is no datasource" in said.out


def test_trouble_is_status_2(ampwatch: Command) -> None:
    """A script can tell it from a difference."""
    assert ampwatch("diff", GRAFANA_TOKEN="glsa_wrong").status == 2
    assert ampwatch("diff", "nothing-of-that-name").status == 2


def test_an_export_is_the_file_that_was_pushed(
    ampwatch: Command, grafana: Grafana, dashboards: Path, tmp_path: Path
) -> None:
    """Byte by byte, also where Grafana hands out its keys in another order, and 1 for 1.0."""
    shipped = sorted(dashboards.iterdir())
    ampwatch("push", *PROMETHEUS)
    for uid, stored in grafana.dashboards.items():
        text = json.dumps(stored, sort_keys=True).replace("1.0", "1")
        grafana.dashboards[uid] = json.loads(text)

    said = ampwatch("export", str(tmp_path / "new" / "backup"))

    assert (said.status, said.err) == (0, "")
    files = sorted((tmp_path / "new" / "backup").iterdir())
    assert [file.name for file in files] == ["ampwatch-overview.json", "ampwatch-run.json"]
    assert [file.read_text() for file in files] == [file.read_text() for file in shipped]
    assert f"written {files[1]}" in said.out


def test_an_export_has_what_was_made_by_hand_and_can_be_pushed_again(
    ampwatch: Command, grafana: Grafana, tmp_path: Path
) -> None:
    """Changed dashboards of ours, and others of that folder; nothing of other folders."""
    ampwatch("push", *PROMETHEUS)
    grafana.by_hand("ampwatch-run", title="Mine")
    grafana.save({"uid": "own", "title": "Own", "id": None}, "ampwatch", "")
    grafana.save({"uid": "other", "title": "Other", "id": None}, "elsewhere", "")
    backup = tmp_path / "backup"
    ampwatch("export", str(backup))
    before = dict(grafana.dashboards)

    assert {file.stem for file in backup.iterdir()} == {"ampwatch-overview", "ampwatch-run", "own"}
    assert json.loads((backup / "own.json").read_text()) == {
        "uid": "own",
        "title": "Own",
        "id": None,
    }
    assert ampwatch("push", "--force").status == 0
    assert ampwatch("push", "--dashboards", str(backup), "--force").status == 0
    assert grafana.dashboards["ampwatch-run"]["title"] == before["ampwatch-run"]["title"] == "Mine"


def test_a_uid_that_is_no_name_of_a_file_is_left_out(
    ampwatch: Command, grafana: Grafana, tmp_path: Path
) -> None:
    """A server must not choose where on this machine something is written."""
    ampwatch("push", *PROMETHEUS)
    evil = {"uid": "../../escaped", "title": "No", "id": None}
    grafana.save(evil, "ampwatch", "")
    answer = json.dumps({"dashboard": evil, "meta": {}})
    for path in ("/api/escaped", "/api/dashboards/uid/../../escaped"):
        grafana.replies[path] = (200, "application/json", answer)

    assert ampwatch("export", str(tmp_path / "a" / "b")).status == 0
    assert list(tmp_path.rglob("escaped.json")) == []


def test_many_dashboards_come_page_by_page(
    ampwatch: Command, grafana: Grafana, tmp_path: Path
) -> None:
    """More than one request lists."""
    grafana.folders["ampwatch"] = "ampwatch"
    for index in range(501):
        grafana.save({"uid": f"own-{index}", "title": "Own", "id": None}, "ampwatch", "")

    assert ampwatch("export", str(tmp_path / "many")).status == 0
    assert len(list((tmp_path / "many").iterdir())) == 501


def test_what_cannot_be_exported_is_reported(
    ampwatch: Command, grafana: Grafana, tmp_path: Path
) -> None:
    """No folder, nothing in it, no place for the files."""
    backup = str(tmp_path / "backup")
    assert "expected a folder with the uid 'ampwatch', found none" in ampwatch("export", backup).err
    grafana.folders["ampwatch"] = "ampwatch"
    assert (
        "expected dashboards in the folder 'ampwatch', found none" in ampwatch("export", backup).err
    )
    ampwatch("push", *PROMETHEUS)
    (tmp_path / "file").touch()
    said = ampwatch("export", str(tmp_path / "file"))
    assert (said.status, "expected to write" in said.err) == (1, True)
