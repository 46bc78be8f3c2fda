"""`ampwatch grafana diff` and `export`: what is there, against what is shipped."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.host.daemon.parts import ROOT
from tests.operate.grafana.conftest import PROMETHEUS, Command, small, write
from tests.operate.grafana.standin import Grafana


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
