"""Answers of a real Prometheus to Overview, Run and Ranks are what the run was given.

That each query has an answer at all is the business of tests/integration/test_dashboards_answer.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.dashboards import asking
from tests.dashboards.asking import panel
from tests.dashboards.conftest import RANKS
from tests.dashboards.documents import FILES, drawn, load
from tests.integration.prometheus import Prometheus
from tests.workshop.history import PER_MACHINE, instance

pytestmark = [pytest.mark.nightly, pytest.mark.services]


FURTHER_CHOICES: dict[str, dict[str, set[str]]] = {
    "ampwatch-layers": {"module": {"(root)", "head"}},
    "ampwatch-gpu": {"gpu": {"0", "1", "2", "3"}},
}
"""Variables that one dashboard has, and what it offers beyond the others."""


def rows(found: list[dict[str, Any]], *labels: str) -> dict[tuple[str, ...], float]:
    """Values of an instant answer, by the labels that tell its rows apart."""
    return {tuple(s["metric"][name] for name in labels): float(s["value"][1]) for s in found}


def test_critical_alerts_are_one_band_for_each_run(history: tuple[Prometheus, float]) -> None:
    """Those about a whole run, which are of several instances whichever is chosen, are in it."""
    server, now = history
    document = load(next(f for f in FILES if f.stem == "ampwatch-run"))
    annotations = {a["name"]: a for a in document["annotations"]["list"]}
    target = {"expr": annotations["Critical alerts"]["expr"], "instant": True}

    def shown(**chosen: str) -> list[dict[str, str]]:
        return [s["metric"] for s in asking.answer(server, target, now, **chosen)]

    assert shown() == [{"run": "gpt"}]
    assert shown(instance=instance(1)) == [{"run": "gpt"}]
    assert shown(run="bert") == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_variable_offers_what_there_is(history: tuple[Prometheus, float], file: Path) -> None:
    """The choice of a variable is what the queries can be filtered by."""
    server, now = history
    machines = {instance(machine) for machine in range(RANKS // PER_MACHINE)}

    offered = {
        variable["name"]: asking.values_of(server, variable, now)
        for variable in load(file)["templating"]["list"]
        if variable["type"] == "query"
    }

    assert offered == {
        **FURTHER_CHOICES.get(file.stem, {}),
        "job": {"ampwatch"},
        "instance": machines,
        "run": {"gpt", "bert"},
        "rank": {str(rank) for rank in range(RANKS)},
    }


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_columns_of_a_table_can_be_joined(
    history: tuple[Prometheus, float], file: Path
) -> None:
    """Grafana merges rows whose labels are the same: those that the keys name, and no others."""
    server, now = history

    for table in (p for p in drawn(load(file)) if p["type"] == "table"):
        renamed = table["transformations"][1]["options"]["renameByName"]
        keys = {name for name in renamed if not name.startswith("Value")}
        for target in table["targets"]:
            for series in asking.answer(server, target, now):
                labels = {name for name, value in series["metric"].items() if value}
                assert labels <= keys, (table["title"], target["refId"])
                assert "__name__" not in labels


def test_a_run_is_one_row_with_its_worst_rank(history: tuple[Prometheus, float]) -> None:
    """A run in which something critical goes on, and a rank hangs, and one that has failed."""
    server, now = history
    table = panel("overview", 107)
    titles = table["transformations"][1]["options"]["renameByName"]

    shown = {
        titles[f"Value #{target['refId']}"]: rows(asking.answer(server, target, now), "run")
        for target in table["targets"]
    }

    assert shown["State"] == {("gpt",): 9, ("bert",): 7}
    assert shown["Ranks up"] == {("gpt",): RANKS - 1, ("bert",): 0}
    assert shown["Stale or failed"] == {("gpt",): 1, ("bert",): 1}
    assert shown["Loss scale"] == {("gpt",): 16384}
    assert shown["Worst finding"][("gpt",)] == 3
    assert shown["Loss"] == {("gpt",): 1, ("bert",): 0}
    assert shown["Finding seen"].keys() == {("gpt",)}
    (critical,) = panel("overview", 104)["targets"]
    assert [asking.newest(s) for s in asking.answer(server, critical, now)] == [1]


def test_the_heatmap_gets_buckets_that_grafana_can_sort(
    history: tuple[Prometheus, float],
) -> None:
    """One series for each upper bound, that of infinity last and largest."""
    server, now = history
    heatmap = panel("run", 301)
    (target,) = heatmap["targets"]

    found = asking.answer(server, target, now)

    newest = {float(s["metric"]["le"]): float(s["values"][-1][1]) for s in found}
    counts = [newest[bound] for bound in sorted(newest)]
    assert (target["format"], target["legendFormat"]) == ("heatmap", "{{le}}")
    assert all(set(s["metric"]) == {"le"} for s in found)
    assert max(newest) == float("inf")
    assert counts == sorted(counts)
    assert counts[-1] > 0


def test_limits_move_with_the_loss_scale(history: tuple[Prometheus, float]) -> None:
    """Gradients are shown without the scale, so the limits of float16 are divided by it."""
    server, now = history
    shown = panel("run", 302)

    limits = {
        target["legendFormat"]: float(asking.answer(server, target, now)[0]["values"][-1][1])
        for target in shown["targets"]
        if target["legendFormat"].startswith("float16")
    }

    smallest_scale = 32768 / 2
    assert limits == {
        "float16 largest {{run}}": 65504 / smallest_scale,
        "float16 smallest normal {{run}}": 2**-14 / smallest_scale,
        "float16 smallest subnormal {{run}}": 2**-24 / smallest_scale,
    }


def test_the_rank_that_differs_is_named(history: tuple[Prometheus, float]) -> None:
    """Slower, hanging, with a scale and a loss of its own: each panel has it first."""
    server, now = history
    last = str(RANKS - 1)

    def largest(number: int) -> str:
        (found, *_) = (
            asking.answer(server, target, now) for target in panel("ranks", number)["targets"]
        )
        top = max(found, key=lambda s: float(s["values"][-1][1]))
        return str(top["metric"]["rank"])

    def tile(number: int, **chosen: str) -> float:
        (target,) = panel("ranks", number)["targets"]
        return asking.newest(asking.answer(server, target, now, **chosen)[0])

    assert largest(202) == last
    assert tile(105, run="gpt") == pytest.approx(3)
    assert tile(106) == 2
    assert (tile(101), tile(102), tile(103)) == (RANKS - 1, 1, 1)


def test_the_rank_that_others_wait_for_is_named_by_its_own_part_of_a_step(
    history: tuple[Prometheus, float],
) -> None:
    """By the clock of its device, which waits 0.13 s of 0.25 s for data where the others wait 0.05 s."""
    server, now = history

    def at_end(number: int) -> dict[str, float]:
        (target,) = panel("ranks", number)["targets"]
        found = asking.answer(server, target, now, run="gpt")
        return {s["metric"]["rank"]: asking.newest(s) for s in found}

    last = str(RANKS - 1)
    for number, share in ((502, 0.08 / 0.25), (503, 0.13 / 0.25)):
        shown = at_end(number)
        assert max(shown, key=lambda rank: shown[rank]) == last
        assert shown[last] == pytest.approx(share, rel=0.01)


def test_the_parts_of_a_step_add_up_to_it(history: tuple[Prometheus, float]) -> None:
    """Of all ranks together, as the device of each tells it."""
    server, now = history
    (target,) = panel("run", 701)["targets"]

    parts = {
        s["metric"]["phase"]: asking.newest(s)
        for s in asking.answer(server, target, now, run="gpt")
    }

    (mean,) = (
        asking.newest(s)
        for t in panel("run", 501)["targets"]
        if t["legendFormat"].startswith("mean")
        for s in asking.answer(server, t, now, run="gpt")
    )
    assert sum(parts.values()) == pytest.approx(mean)
    assert parts["forward"] == pytest.approx(0.2 * mean)  # 0.05 s of 0.25 s


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_no_panel_has_a_line_for_each_rank(history: tuple[Prometheus, float], file: Path) -> None:
    """A thousand lines are no picture: ranks are bands, counts and a few names."""
    server, now = history

    for shown in drawn(load(file)):
        for target in shown.get("targets", ()):
            expr = asking.filled(target["expr"])
            found = asking.get(server, "query", query=expr, time=now)["result"]
            assert len({s["metric"].get("rank") for s in found}) <= 20, (shown["title"], expr)
