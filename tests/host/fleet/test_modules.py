"""Tests of which modules are kept, and which get series of their own."""

from collections.abc import Mapping

from ampwatch.host.fleet.modules import MAX_MODULES, Modules
from ampwatch.host.fleet.trouble import Trouble
from ampwatch.wire.records import RangeRecord, Topic
from tests.workshop.records import histogram, ranges


def judge(topics: Mapping[Topic, RangeRecord]) -> Trouble:
    """Judge by the smallest numbers alone: a quarter of them is notable."""
    gradient = topics[Topic.GRADIENT].histogram
    share = gradient.at_most(-25) / gradient.nonzero
    return Trouble(share, "lost" if share >= 0.25 else "")


def modules_of(troubles: dict[str, int], max_series: int) -> Modules:
    """Return modules of whose 16 gradient elements so many underflow."""
    modules = Modules(max_series)
    for name, lost in troubles.items():
        measure(modules, name, lost)
    return modules


def measure(modules: Modules, name: str, lost: int) -> None:
    modules.put(ranges(name, Topic.GRADIENT, histogram(-25, lost, 16 - lost)))


def test_a_small_model_has_series_for_all_its_modules() -> None:
    """Also for those without trouble, and for one that shows up later."""
    modules = modules_of({"a": 0, "b": 4}, max_series=3)
    modules.choose(judge)
    measure(modules, "c", 0)
    modules.choose(judge)

    assert modules.tracked == ["b", "a", "c"]
    assert modules.num_untracked == 0


def test_of_a_large_model_half_the_series_go_to_those_with_the_most_trouble() -> None:
    """The other half waits for modules whose trouble becomes notable later."""
    modules = modules_of({f"layer{i}": 0 for i in range(8)} | {"worst": 9, "bad": 5}, max_series=4)
    modules.choose(judge)
    assert modules.tracked == ["worst", "bad"]

    measure(modules, "layer4", 3)
    measure(modules, "layer5", 16)
    modules.choose(judge)

    assert modules.tracked == ["worst", "bad", "layer5"]
    assert modules.num_untracked == 7


def test_a_series_never_moves_to_another_module() -> None:
    """Chosen once, it stays, whatever becomes of the module."""
    modules = modules_of({"a": 9, "b": 8, "c": 7, "d": 6}, max_series=2)
    modules.choose(judge)
    for name in ("a", "b"):
        measure(modules, name, 0)
    for name in ("c", "d"):
        measure(modules, name, 16)
    modules.choose(judge)

    assert modules.tracked == ["a", "b"]


def test_without_series_none_is_chosen() -> None:
    """``module_series=0`` switches them off."""
    modules = modules_of({"a": 9}, max_series=0)
    modules.choose(judge)

    assert modules.tracked == []
    assert modules.num_untracked == 1


def test_many_modules_take_bounded_memory_and_tracked_ones_stay() -> None:
    """Modules measured longest ago are let go; the counters of a tracked one go on."""
    modules = modules_of({"tracked": 16, "old": 0}, max_series=1)
    modules.choose(judge)
    for index in range(2 * MAX_MODULES):
        measure(modules, f"layer{index}", 0)

    assert len(modules.by_name) == MAX_MODULES
    assert {"tracked", f"layer{2 * MAX_MODULES - 1}"} <= modules.by_name.keys()
    assert "old" not in modules.by_name
    assert modules.tracked == ["tracked"]
