"""`ampwatch grafana push` and what it needs: a datasource, and the permissions of the token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.operate.grafana.conftest import PROMETHEUS, Said
from tests.operate.grafana.standin import EVERYTHING, Grafana

if TYPE_CHECKING:
    from collections.abc import Callable

    Command = Callable[..., Said]


def test_a_datasource_that_is_there_is_what_the_dashboards_open_on(
    ampwatch: Command, grafana: Grafana
) -> None:
    """It is only read and tried."""
    grafana.datasources["P8E8"] = {"uid": "P8E8", "name": "Mimir", "type": "prometheus"}

    assert ampwatch("push", "--datasource", "P8E8").status == 0

    variable = grafana.dashboards["ampwatch-run"]["templating"]["list"][0]
    assert variable["current"] == {"selected": False, "text": "Mimir", "value": "P8E8"}
    assert {one.path for one in grafana.writes} == {"/api/folders", "/api/dashboards/db"}
    assert "/api/datasources/uid/P8E8/health" in [one.path for one in grafana.asked]


def test_a_datasource_gets_another_address_and_keeps_the_rest(
    ampwatch: Command, grafana: Grafana
) -> None:
    """Contents that are not ours stay; what changes is reported."""
    ampwatch("push", *PROMETHEUS)
    kept = grafana.datasources["ampwatch-prometheus"]
    kept["jsonData"]["tlsSkipVerify"] = True
    grafana.asked.clear()

    said = ampwatch("push", "--prometheus-url", "http://mimir/prometheus")

    assert (
        "updated       datasource ampwatch-prometheus: url http://prometheus:9090 -> http://mimir/prometheus"
        in said.out
    )
    (changed,) = grafana.writes
    assert (changed.method, changed.path) == ("PUT", "/api/datasources/uid/ampwatch-prometheus")
    assert changed.body["url"] == "http://mimir/prometheus"
    assert changed.body["jsonData"]["tlsSkipVerify"] is True


def test_a_wrong_datasource_is_reported_before_anything_is_written(
    ampwatch: Command, grafana: Grafana
) -> None:
    """Not there, of another kind, or from a file."""
    grafana.datasources["P8E8"] = {"uid": "P8E8", "name": "Mimir", "type": "prometheus"}
    grafana.datasources["L0K1"] = {"uid": "L0K1", "name": "Logs", "type": "loki"}
    grafana.datasources["F11E"] = {
        "uid": "F11E",
        "name": "File",
        "type": "prometheus",
        "readOnly": True,
    }

    missing = ampwatch("push")
    assert "there is no datasource of that uid" in missing.err
    assert "P8E8 (Mimir), F11E (File): name one with --datasource UID" in missing.err
    loki = ampwatch("push", "--datasource", "L0K1")
    assert "of type loki, not prometheus" in loki.err
    file = ampwatch("push", "--datasource", "F11E", *PROMETHEUS)
    assert (
        "it is provisioned from a file, where this has to be changed: url unset -> http" in file.err
    )
    assert {missing.status, loki.status, file.status} == {1}
    assert grafana.writes == []


def test_a_datasource_that_reaches_no_prometheus_is_reported(
    ampwatch: Command, grafana: Grafana
) -> None:
    """The dashboards are in place by then, for Prometheus may only be late."""
    grafana.healthy = False

    said = ampwatch("push", *PROMETHEUS)

    assert said.status == 1
    assert "the dashboards are in place, but will be empty" in said.err
    assert (
        "dial tcp 10.0.0.7:9090: connect: refused; check its address as Grafana sees it" in said.err
    )
    assert set(grafana.dashboards) == {"ampwatch-overview", "ampwatch-run"}


def test_a_token_that_may_not_read_datasources_can_still_try_one(
    ampwatch: Command, grafana: Grafana
) -> None:
    """An editor's, in Grafana without its enterprise parts."""
    grafana.datasources["P8E8"] = {"uid": "P8E8", "name": "Mimir", "type": "prometheus"}
    grafana.allowed = EVERYTHING - {"datasources:read"}

    assert ampwatch("push", "--datasource", "P8E8").status == 0
    missing = ampwatch("push", "--datasource", "nope")
    assert (missing.status, "Data source not found" in missing.err) == (1, True)
    assert "the token may not read datasources" in ampwatch("push", *PROMETHEUS).err


@pytest.mark.parametrize(
    "permission",
    ["folders:read", "folders:create", "datasources:create", "dashboards:read", "dashboards:write"],
)
def test_a_permission_that_is_missing_is_named(
    ampwatch: Command, grafana: Grafana, permission: str
) -> None:
    """With what Grafana said, and a role that has it."""
    grafana.allowed = EVERYTHING - {permission}

    said = ampwatch("push", *PROMETHEUS)

    assert said.status == 1
    assert f"Permissions needed: {permission}" in said.err
    assert f"the role Editor (Admin for datasources) or the permission {permission}" in said.err
