"""The numbers of Layers, Precision and GPU are those that the made-up run was given."""

from __future__ import annotations

import math

import pytest

from ampwatch.host.fleet import RankView
from ampwatch.report.op_shares import flops_per_iteration, low_precision_share, tensor_share
from tests.dashboards import asking
from tests.dashboards.asking import newest, panel
from tests.dashboards.conftest import RANKS
from tests.integration.prometheus import Prometheus
from tests.workshop.fleets import made_up_fleet

pytestmark = [pytest.mark.nightly, pytest.mark.services]

MIB = 1 << 20
Answers = dict[tuple[str, ...], float]


def shown(
    history: tuple[Prometheus, float], topic: str, number: int, ref: str, *labels: str
) -> Answers:
    """The newest values of one query of a panel, by labels that tell its series apart."""
    server, now = history
    target = next(t for t in panel(topic, number)["targets"] if t["refId"] == ref)
    found = asking.answer(server, target, now)
    return {tuple(s["metric"].get(name, "") for name in labels): newest(s) for s in found}


def column(history: tuple[Prometheus, float], topic: str, number: int, title: str) -> Answers:
    """One column of a table, by all labels of its rows in alphabetical order."""
    server, now = history
    table = panel(topic, number)
    titles = table["transformations"][1]["options"]["renameByName"]
    value = next(name for name, shown in titles.items() if shown == title)
    ref = value.partition("#")[2] or "A"
    target = next(t for t in table["targets"] if t["refId"] == ref)
    found = asking.answer(server, target, now)
    return {tuple(s["metric"][name] for name in sorted(s["metric"])): newest(s) for s in found}


@pytest.fixture(scope="module")
def rank() -> RankView:
    """Return the daemon's view of a rank of the made-up run."""
    views = made_up_fleet().ranks()
    return next(view for view in views if (view.run, view.identity.rank) == ("gpt", 0))


def test_headroom_is_the_doublings_that_are_left(history: tuple[Prometheus, float]) -> None:
    """Outputs reach 4 in float16; gradients are as the scaler has scaled them."""
    outputs = column(history, "layers", 101, "Output headroom")
    gradients = column(history, "layers", 101, "Gradient headroom")

    assert outputs == pytest.approx({("head", "gpt"): math.log2(65504 / 4)})
    assert gradients[("head", "gpt")] == pytest.approx(math.log2(65504 / 2**-24))
    assert gradients[("(root)", "gpt")] == pytest.approx(math.log2(65504 / 2**-23))
    assert column(history, "layers", 101, "Output dtype") == {("head", "gpt"): 65504}


def test_a_module_is_as_bad_as_its_worst_rank(history: tuple[Prometheus, float]) -> None:
    """All ranks have the same numbers: shares stay what they are, counts add up."""
    lost = column(history, "layers", 301, "Lost to the dtype")
    elements = column(history, "layers", 201, "Elements")

    assert lost == pytest.approx({("head", "gpt"): 1 / 2, ("(root)", "gpt"): 1 / 7})
    assert elements[("nan", "head", "gpt")] == pytest.approx(RANKS * 3 / 2)
    assert elements[("inf", "head", "gpt")] == pytest.approx(RANKS * 4 / 2)
    assert elements[("nan", "(root)", "gpt")] == 0


def test_the_mix_of_dtypes_is_that_of_the_page(
    history: tuple[Prometheus, float], rank: RankView
) -> None:
    """Shares as the daemon's own page works them out."""
    low = low_precision_share(flops_per_iteration(rank.precision.census))
    assert low is not None

    assert shown(history, "precision", 101, "A", "run") == pytest.approx({("gpt",): low})
    by_dtype = shown(history, "precision", 107, "A", "dtype")
    assert by_dtype[("float16",)] == pytest.approx(low)
    assert sum(by_dtype.values()) == pytest.approx(1)


def test_the_band_of_tensor_cores_is_that_of_the_page(
    history: tuple[Prometheus, float], rank: RankView
) -> None:
    """At least what is certain, at most that and what no name tells."""
    window = rank.precision.window
    assert window is not None
    band = [*shown(history, "precision", 401, "A").values()]
    band += shown(history, "precision", 401, "B").values()

    assert band == pytest.approx(tensor_share(window))
    assert band == [
        pytest.approx(column(history, "precision", 402, end)[("gpt",)])
        for end in ("At least", "At most")
    ]


def test_what_the_ceiling_is_lost_to_are_its_factors(history: tuple[Prometheus, float]) -> None:
    """Busy 1.5 of 2 s; of 1.5 s of kernels 1.0 multiply; of those 0.6 on tensor cores."""
    factors = [shown(history, "precision", 503, ref, "run")[("gpt",)] for ref in "ABC"]

    assert factors == pytest.approx([1.5 / 2, 1.0 / 1.5, 0.6])


def test_a_rank_is_shown_with_its_gpu(history: tuple[Prometheus, float]) -> None:
    """Rank 0 computes on the second GPU of the first machine, with 12 GiB."""
    memory = column(history, "gpu", 107, "Memory of the rank")
    power = column(history, "gpu", 107, "Power of its limit")

    assert memory == {("1", "node-0:10917", "0", "gpt"): 12 * 1024 * MIB}
    assert power[("1", "node-0:10917", "0", "gpt")] == pytest.approx(641 / 700)


def test_cycles_are_preferred_to_looks(history: tuple[Prometheus, float]) -> None:
    """Both GPUs with GPM have counters; the look at the second says 0.54, its cycles 0.29."""
    exact = shown(history, "gpu", 201, "A", "gpu")

    assert exact[("1",)] == pytest.approx(4.935330801063372e13 / 1.724976e14, rel=1e-6)


def test_an_xid_of_a_program_is_no_fault_of_the_hardware(
    history: tuple[Prometheus, float],
) -> None:
    """The second GPU had an XID 31 just now: it is in the table, and not among the alarms."""
    assert shown(history, "gpu", 103, "A") == {(): 0}
    assert column(history, "gpu", 501, "Newest").keys() == {("1", "node-0:10917", "31")}
    assert column(history, "gpu", 501, "In the time range").keys() == {("1", "node-0:10917", "31")}
