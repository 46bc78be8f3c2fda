"""State of GPUs that the page gets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ampwatch.host.fleet import Fleet
from ampwatch.host.fleet.gpus import Feature, Gpu, Pass, Reason
from ampwatch.host.page.broadcast import merge_patch
from ampwatch.host.page.gpu_state import gpu_state
from ampwatch.host.page.page import Feed
from ampwatch.settings import Settings
from tests.workshop.clocks import START, Clock
from tests.workshop.fleets import GIB, fleet_with_gpus, without_nvml


def nulls(state: Any, path: str = "") -> list[str]:
    """Return the places of values that a merge patch would take for deleted."""
    if not isinstance(state, dict):
        return []
    here = [f"{path}/{key}" for key, value in state.items() if value is None]
    return here + [p for key, value in state.items() for p in nulls(value, f"{path}/{key}")]


def test_a_gpu_is_reported_with_values_reasons_and_ranks() -> None:
    """By uuid: numbers by feature and part, why others are absent, who computes on it."""
    state = gpu_state(fleet_with_gpus())

    second, old = state["gpus"]["SYNTHETIC-1"], state["gpus"]["SYNTHETIC-3"]
    assert (second["index"], second["up"]) == (1, True)
    assert (second["name"], second["synthetic"]) == ("Synthetic GPU", True)
    assert second["values"]["memory"]["capacity"] == 80 * GIB
    assert set(second["values"]["tensor_active"]) == {"any", "hmma", "imma", "dmma", "dfma"}
    assert second["values"]["ecc"] == {"corrected": 0, "uncorrected": 0}
    assert second["users"] == [["gpt", 0, 12 * GIB]]
    assert second["xids"] == {"31": [1, pytest.approx(START + 660)]}
    assert "tensor_active" not in old["values"]
    assert old["capabilities"]["tensor_active"] == "not_supported"
    assert state["reasons"]["not_supported"]
    assert state["gpus"]["SYNTHETIC-2"]["instances"]["1"]["profiles"] == ["3g.40gb"]


def test_what_the_page_has_no_room_for_is_not_sent() -> None:
    """NVLink and PCIe are for Prometheus; what is sent of a GPU has a reason or a value."""
    gpu = gpu_state(fleet_with_gpus())["gpus"]["SYNTHETIC-0"]

    assert gpu["values"].keys() & {"tensor_cycles", "sm_cycles"} == set()
    assert gpu["values"].keys() - {"power_limit", "clock_max"} <= gpu["capabilities"].keys()


def test_a_machine_without_a_driver_has_a_sentence_instead() -> None:
    """Which says so."""
    state = gpu_state(without_nvml(Fleet(Settings())))

    assert state["gpus"] == {}
    assert state["host"] == "there is no NVIDIA driver here"


def test_the_state_survives_json_and_merge_patches() -> None:
    """No value is null, which would delete it; a change is what has changed."""
    clock = Clock()
    fleet = fleet_with_gpus()
    feed = Feed(fleet, clock)
    full = feed.full()
    assert nulls(full["gpus"]) == []
    assert json.loads(json.dumps(full["gpus"], allow_nan=False)) == full["gpus"]

    gpu = fleet.gpus.all()[0]
    answers = {**gpu.answers, Feature.POWER: {"": 123.0}}
    others = [Gpu(g.index, g.uuid, g.facts, g.answers) for g in fleet.gpus.all()[1:]]
    fleet.gpus.apply(Pass(Reason.OK, [Gpu(0, gpu.uuid, gpu.facts, answers), *others]))

    patch = merge_patch(full, feed.full())
    assert patch["gpus"]["gpus"]["SYNTHETIC-0"] == {"values": {"power": {"": 123}}}
