"""Memory of GPUs from pass to pass."""

from __future__ import annotations

import pytest

from ampwatch.host.fleet.gpus import (
    CAPABILITY_STATES,
    KNOWN_XIDS,
    MAX_FURTHER_XIDS,
    Feature,
    Gpu,
    Gpus,
    Pass,
    Reason,
    Xids,
)


def gpu(uuid: str, index: int = 0, **changes: object) -> Gpu:
    return Gpu(index, uuid, {"name": uuid}, {Feature.POWER: {"": 300.0}}, **changes)


def test_a_gpu_that_is_not_there_any_more_is_kept_as_gone() -> None:
    """With its name and number, without its values; it is a failure until it is back."""
    gpus = Gpus()

    fine = gpus.apply(Pass(Reason.OK, [gpu("GPU-a"), gpu("GPU-b", 1)]))
    missing = gpus.apply(Pass(Reason.OK, [gpu("GPU-a")]))
    a, b = gpus.all()
    back = gpus.apply(Pass(Reason.OK, [gpu("GPU-a"), gpu("GPU-b", 1)]))

    assert (fine, missing, back) == (True, False, True)
    assert (a.is_up, b.is_up, b.gone, b.facts["name"]) == (True, False, Reason.GPU_LOST, "GPU-b")
    assert b.number(Feature.POWER) is None


def test_a_driver_that_goes_away_is_a_failure_where_there_were_gpus() -> None:
    """Where there were none, it is a machine without a GPU."""
    never, before = Gpus(), Gpus()
    before.apply(Pass(Reason.OK, [gpu("GPU-a")]))

    assert never.apply(Pass(Reason.DRIVER_NOT_LOADED))
    assert not before.apply(Pass(Reason.DRIVER_NOT_LOADED))


@pytest.mark.parametrize(
    "host", [Reason.ERROR, Reason.VERSION_MISMATCH, Reason.NO_PERMISSION, Reason.DRIVER_NOT_LOADED]
)
def test_where_nvml_fails_its_reason_is_that_of_the_gpus(host: Reason) -> None:
    """Nobody has seen them fall off the bus."""
    gpus = Gpus()
    gpus.apply(Pass(Reason.OK, [gpu("GPU-a")]))

    gpus.apply(Pass(host))

    assert [g.gone for g in gpus.all()] == [host]


def test_a_gpu_without_a_name_is_a_failure() -> None:
    """It was lost before the daemon came."""
    assert not Gpus().apply(Pass(Reason.OK, [], {0: Reason.GPU_LOST}))


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({"a": 1.0, "b": 2.0}, {"clock": Reason.OK}),
        ({"a": Reason.NO_DATA, "b": Reason.NO_DATA}, {"clock": Reason.NO_DATA}),
        (
            {"a": Reason.NO_PERMISSION, "b": 0.0},
            {"clock": Reason.OK, "clock_a": Reason.NO_PERMISSION},
        ),
        (
            {"a": Reason.NO_PERMISSION, "b": Reason.NO_DATA},
            {"clock": Reason.NO_PERMISSION, "clock_b": Reason.NO_DATA},
        ),
    ],
)
def test_a_feature_is_reported_once_and_parts_that_differ_beside_it(
    parts: dict[str, float | Reason], expected: dict[str, Reason]
) -> None:
    """So that a GPU that has everything has a series per feature, not per number."""
    every = dict(Gpu(0, "GPU-a", {}, {Feature.CLOCK: parts}).capabilities())

    assert {k: v for k, v in every.items() if k.split("_")[0] == "clock" and "max" not in k} == (
        expected
    )
    assert {feature.value for feature in Feature} <= set(every)


def test_xids_have_a_counter_each_up_to_a_limit() -> None:
    """A broken GPU can invent codes; series stay bounded, and no error is lost."""
    xids = Xids.none_yet()
    invented = [1000 + i for i in range(MAX_FURTHER_XIDS + 5)]

    for code in (*invented, 79, 79, invented[0], invented[-1]):
        xids.add(code, now=code)

    assert len(xids.counts) == len(KNOWN_XIDS) + 1 + MAX_FURTHER_XIDS
    assert (xids.counts["79"], xids.counts["1000"], xids.counts["other"]) == (2, 2, 6)
    assert sum(xids.counts.values()) == len(invented) + 4
    assert (xids.seen["79"], xids.seen["other"]) == (79, invented[-1])


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_state_and_words(reason: Reason) -> None:
    """The label of the metric, and the sentence of the doctor and the page."""
    assert reason.state in CAPABILITY_STATES
    assert reason.text[0].islower()
    assert not reason.text.endswith(".")
