"""No alert speaks of a run because of what the last run of its name has left in the range of a rule.

Each alert about runs is asked by a test in which it fires: there the run is killed, and a healthy one is started
under its name, whose values go on in the series of the last one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.alerts.promtool import failures, promtool
from tests.alerts.rules import ALERTS, TESTS, groups, load, part_for, write
from tests.states.series import labels_of

Key = tuple[str, frozenset[tuple[str, str]]]
"""Name and labels of a series."""

RANK = ("job", "instance", "run", "rank")
HOST = ("job", "instance", "gpu", "uuid")
LASTS = 100
"""For how long the healthy run is looked at, which is until before its end. Unit: scrapes."""

AFTER_A_STEP = {
    "ampwatch_loss_scale",
    "ampwatch_loss_scale_min",
    "ampwatch_optimizer_steps_skipped_total",
}
"""What the first scrape of a run may lack."""

BY_A_SCALER = {
    "ampwatch_loss_scale_backoffs_total",
    "ampwatch_loss_scale_growths_total",
    "ampwatch_optimizer_steps_skipped_total",
    "ampwatch_gradient_nonfinite_elements_total",
}
"""Counters that are 0 in a healthy run without a GradScaler."""

FIRING: dict[str, tuple[dict[str, Any], str]] = {}
"""The first test in which each alert about runs fires, and when it does."""

for _file in TESTS:
    for _test in load(_file)["tests"]:
        for _case in _test.get("alert_rule_test", ()):
            if any("run" in expected["exp_labels"] for expected in _case.get("exp_alerts", ())):
                FIRING.setdefault(_case["alertname"], (_test, _case["eval_time"]))
del FIRING["AmpwatchRunCrashLoop"]  # it is about the starts before

_SAMPLES = re.compile(r"(_|stale|-?[\d.]+(?:e[+-]?\d+)?)([+-][\d.]+)?(?:x(\d+))?")


def seconds(time: str) -> int:
    parts = re.findall(r"(\d+)([hms])", time)
    return sum(int(number) * {"h": 3600, "m": 60, "s": 1}[unit] for number, unit in parts)


def samples(values: str) -> list[str]:
    """Return each sample of a series in the notation of promtool."""
    found: list[str] = []
    for part in values.split():
        match = _SAMPLES.fullmatch(part)
        assert match, part
        first, rise, times = match.groups()
        if first in {"_", "stale"}:
            found += [first] * int(times or 1)
        else:
            found += [repr(float(first) + float(rise or 0) * n) for n in range(int(times or 0) + 1)]
    return found


def key_of(written: str, left_out: tuple[str, ...] = ()) -> Key:
    labels = labels_of(written).items()
    return written.partition("{")[0], frozenset(item for item in labels if item[0] not in left_out)


def healthy(*, scaled: bool) -> tuple[dict[Key, list[str]], dict[Key, list[str]]]:
    """Return what is scraped of a healthy rank, in float16 with a GradScaler or in bfloat16, and of its host."""
    of_rank: dict[Key, list[str]] = {}
    of_host: dict[Key, list[str]] = {}
    for one in load(ALERTS / "healthy.test.yml")["tests"][0]["input_series"]:
        written, values = one["series"], samples(one["values"])[:LASTS]
        if 'rank="0"' in written:
            name, labels = key_of(
                written if scaled else written.replace("float16", "bfloat16"), RANK
            )
            if name in AFTER_A_STEP:
                values[0] = "stale"
            if scaled or "loss_scale" not in name or name in BY_A_SCALER:
                of_rank[name, labels] = (
                    values if scaled or name not in BY_A_SCALER else ["0"] * LASTS
                )
        elif "rank=" not in written:
            of_host[key_of(written, HOST)] = values
    return of_rank, of_host


def started_again(test: dict[str, Any], end: int, *, scaled: bool) -> Iterator[dict[str, str]]:
    """Yield the series of a test until a time, and then those of a healthy run on the same ranks and hosts."""
    ends = end // seconds(test["interval"]) + 1
    old = {key_of(one["series"]): samples(one["values"])[:ends] for one in test["input_series"]}
    of_rank, of_host = healthy(scaled=scaled)
    new: dict[Key, list[str]] = {}
    ranks = {}
    for name, labels in old:
        known = dict(labels)
        if "rank" in known:
            ranks[known["run"], known["rank"]] = {label: known[label] for label in RANK}
        else:
            own = frozenset(item for item in labels if item[0] not in HOST)
            new[name, labels] = of_host.get((name, own), ["stale"])
    for rank in ranks.values():
        for (name, labels), values in of_rank.items():
            new[name, labels.union(rank.items())] = values
        start = ("ampwatch_run_start_timestamp_seconds", frozenset(rank.items()))
        old.setdefault(start, ["0"] * ends)
        new[start] = [str(end + 1)] * LASTS
    for name, labels in old.keys() | new.keys():
        # The same GPU.
        stays = ["1"] * LASTS if name == "ampwatch_gpu_process_info" else ["stale"]
        before = old.get((name, labels), [])
        values = [*before, *["_"] * (ends - len(before)), *new.get((name, labels), stays)]
        written = ",".join(f"{label}={json.dumps(value)}" for label, value in labels)
        yield {"series": f"{name}{{{written}}}", "values": " ".join(values)}


def asked(alert: str, *, scaled: bool) -> dict[str, Any]:
    """Return a test of an alert that fires, and does not even wait to from the first scrape of the next run on."""
    test, time = FIRING[alert]
    step, end = seconds(test["interval"]), seconds(time)
    later = (end // step + LASTS) * step
    return {
        "interval": test["interval"],
        "input_series": list(started_again(test, end, scaled=scaled)),
        "promql_expr_test": [
            {
                "expr": f'group(ALERTS{{alertname="{alert}",alertstate="firing"}})',
                "eval_time": time,
                "exp_samples": [{"labels": "{}", "value": 1}],
            },
            {
                "expr": f'count_over_time(ALERTS{{alertname="{alert}"}}[{(LASTS - 1) * step}s])',
                "eval_time": f"{later}s",
            },
        ],
    }


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(False, id="bfloat16"),
        pytest.param(True, id="float16", marks=pytest.mark.nightly),
    ],
)
def speaking(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The alerts that speak of the healthy run, of those that a test is about."""
    directory, files = tmp_path_factory.mktemp("started_again"), []
    rules = groups()
    for rule in (rule for group in rules for rule in group["rules"]):
        rule.pop("keep_firing_for", None)  # an alert may go on by it, as that of any run that ends
    asking = (item for item in request.session.items if "speaking" in item.fixturenames)
    for alert in {item.callspec.params["alert"] for item in asking}:
        test = asked(alert, scaled=request.param)
        of_alert, file = directory / f"{alert}.rules.yml", directory / f"{alert}.test.yml"
        write(of_alert, {"groups": part_for(test, rules)})
        step = test["interval"]
        write(file, {"rule_files": [of_alert.name], "evaluation_interval": step, "tests": [test]})
        files.append(file)
    return failures(promtool("test", "rules", *files))


@pytest.mark.rotating
@pytest.mark.services
@pytest.mark.parametrize("alert", FIRING)
def test_a_healthy_run_is_not_told_of_for_what_the_last_of_its_name_has_done(
    alert: str, speaking: set[str]
) -> None:
    assert alert not in speaking
