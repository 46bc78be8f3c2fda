"""The map of a model as the page gets it."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from ampwatch.host.fleet import Fleet
from ampwatch.host.page.map_codes import CODES, LEGEND
from ampwatch.host.page.map_state import MAX_IN_WORDS, MAX_KNOWN, MapAnswer, Maps
from ampwatch.numerics.units.ops import Fallback, OpKind
from ampwatch.settings import Settings
from ampwatch.wire.records import SkipClass, Topic
from tests.workshop.clocks import START, Clock
from tests.workshop.fleets import put
from tests.workshop.records import (
    FACTS,
    census,
    finding,
    histogram,
    identity,
    op_row,
    ranges,
    sampling,
    step,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.wire.records import RangeRecord, Record

NOW = Clock(START + 20)
FINE = histogram(-8, 1000)


def sent(answer: MapAnswer | None) -> dict[str, Any]:
    assert answer is not None
    state: dict[str, Any] = json.loads(gzip.decompress(answer.packed), parse_constant=pytest.fail)
    return state


class Mapped:
    """A fleet of one rank, whose map is asked for."""

    def __init__(self, *records: Record) -> None:
        self.fleet = Fleet(Settings(), NOW)
        self.maps = Maps(self.fleet)
        self.put(FACTS, *records)

    def put(self, *records: Record) -> None:
        put(self.fleet, "/a.ring", identity(), records)

    def sample(
        self, index: int, *records: RangeRecord, skip: SkipClass = SkipClass.NONE, **totals: Any
    ) -> None:
        self.put(*records, sampling(step=index, **totals), step(index, skip_class=skip))

    @property
    def state(self) -> dict[str, Any]:
        return sent(self.maps.answer("gpt", "0"))

    def rows(self) -> dict[str, str]:
        state = self.state
        return dict(zip(state["modules"], state["rows"], strict=True))

    def reasons(self, module: str) -> list[str]:
        by_letter = {code["letter"]: code["reason"] for code in self.state["codes"]}
        return [by_letter[letter] for letter in self.rows()[module]]


def output(module: str, index: int = 0, **of: Any) -> RangeRecord:
    return ranges(module, Topic.ACTIVATION, histogram(-8, 1000, **of), step=index, dtype="float16")


def gradient(module: str, index: int = 0, lost: int = 0, **of: Any) -> RangeRecord:
    exponents = histogram(-30, lost, *[0] * 20, 1000 - lost, **of) if lost else FINE
    return ranges(module, Topic.GRADIENT, exponents, step=index)


def test_a_cell_is_the_worst_that_was_seen_in_its_steps() -> None:
    """As in the table of modules: non-finite, lost, near the end, updates that miss."""
    nans = histogram(-8, 1, nans=1)
    bad = [
        ranges("fc", Topic.UPDATE, histogram(-12, 10, zeros=90)),
        output("fc", amax=40000.0),
        gradient("fc", lost=20),
        ranges("fc", Topic.ACTIVATION_GRADIENT, nans),
        ranges("fc", Topic.WEIGHT, nans),
    ]
    reasons = ["unchanged", "activation_headroom", "lost", "nonfinite_gradient", "nonfinite"]
    for number, reason in enumerate(reasons):
        mapped = Mapped()
        mapped.sample(0, *bad[: number + 1])
        assert mapped.reasons("fc") == [reason]

    mapped = Mapped()
    for index, record in enumerate(bad):
        mapped.sample(index, record)
    mapped.sample(5, output("other"))
    mapped.sample(6, output("fc"))
    assert mapped.reasons("fc") == [*reasons, "none", "quiet"]


def test_after_a_collapse_what_only_follows_is_told_apart_from_where_it_began() -> None:
    """From the culprit's step on, where no other finding has its root."""
    names = [f"blocks.{i}" for i in range(5)]
    mapped = Mapped(
        finding("forward_overflow", "blocks.1", first_step=3, last_step=6),
        finding("forward_overflow", "blocks.4", first_step=5, last_step=6),
        finding("scale_collapse", "optimizer:0", root=False, caused_by="forward_overflow@blocks.1"),
    )
    for index in range(6):
        broken = {"blocks.0": index < 1, "blocks.1": index >= 3}
        mapped.sample(
            index,
            *(
                output(n, index, nans=9 * broken.get(n, index >= 3))
                for n in names
                if index < 5 or n != "blocks.1"
            ),
        )
    mapped.sample(6, output("blocks.1", 6), output("blocks.2", 6, nans=9))

    quiet, bad = ["quiet"], ["nonfinite"]
    assert mapped.reasons("blocks.0") == bad + 5 * quiet + ["none"]
    assert mapped.reasons("blocks.1") == 3 * quiet + 2 * bad + ["none"] + quiet
    assert mapped.reasons("blocks.2") == 3 * quiet + 4 * ["follows"]
    assert mapped.reasons("blocks.4") == 3 * quiet + 3 * bad + ["none"]
    assert [m for m, *_ in mapped.state["worst"]["modules"]] == ["blocks.1", "blocks.0", "blocks.4"]
    assert mapped.state["sentence"] == (
        "5 modules measured; 3 in trouble at some time; the fault is in blocks.1, 2 others follow from it"
    )


def test_nothing_follows_a_culprit_that_is_finite_itself() -> None:
    mapped = Mapped(finding("grad_underflow", "a", first_step=0, last_step=0))
    mapped.sample(0, gradient("a", lost=500), output("b", nans=5))

    assert (mapped.reasons("a"), mapped.reasons("b")) == (["lost"], ["nonfinite"])


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([gradient("fc", lost=5)], "underflow: under 1 % of the gradient"),
        ([gradient("fc", lost=30)], "underflow: 1 % of the gradient or more"),
        ([output("fc", amax=65504 / 3)], "near overflow: under 2 bits of headroom"),
        ([output("fc", amax=65504 / 1.5)], "near overflow: 1 bit of headroom or less"),
        ([output("fc", nans=1)], "non-finite: under 1 % of the elements"),
        ([output("fc", nans=4000)], "non-finite: 50 % of the elements or more"),
        (
            [ranges("fc", Topic.UPDATE, histogram(-9, 40, zeros=60))],
            "updates lost: over 50 % of the weights stay as they are",
        ),
        (
            [ranges("fc", Topic.UPDATE, histogram(-9, 4, zeros=96))],
            "updates lost: 90 % of the weights or more stay as they are",
        ),
        ([output("fc")], "nothing notable"),
    ],
)
def test_a_letter_says_how_bad_it_is(records: Sequence[RangeRecord], words: str) -> None:
    """The words that a reader of a cell gets."""
    mapped = Mapped()
    mapped.sample(0, *records)

    by_letter = {code["letter"]: code["words"] for code in mapped.state["codes"]}
    assert by_letter[mapped.rows()["fc"]] == words


def test_every_letter_is_one_code_of_a_reason_in_the_legend() -> None:
    """The worst come last among the codes and first in the legend, in the same order."""
    order = [reason.key for reason in LEGEND][::-1]

    assert len({code.letter for code in CODES}) == len(CODES)
    for code, worse in pairwise(CODES):
        assert (order.index(code.reason), code.grade) < (order.index(worse.reason), worse.grade)
    assert {code.reason for code in CODES} == set(order)
    # A sign and a word each: nothing is said by colour alone.
    signs = [reason.sign for reason in LEGEND if reason.sign]
    assert len(set(signs)) == len(signs) == 7


def test_overflow_while_a_scale_is_sought_is_no_trouble() -> None:
    """It is drawn, for it happened, and no module is in trouble for it."""
    mapped = Mapped()
    overflowed = histogram(4, 9, positive_infs=9)
    mapped.sample(0, ranges("fc", Topic.GRADIENT, overflowed), skip=SkipClass.CALIBRATING)

    assert mapped.reasons("fc") == ["expected"]
    assert mapped.state["worst"] == {"modules": [], "more": 0}
    assert mapped.state["sentence"] == "1 module measured; none in trouble"


def test_modules_stand_in_the_order_of_the_model() -> None:
    """As they are called, numbered ones by number, and what is in a module beside it."""
    called = ["stem.conv", "blocks.0.a", "blocks.0.b", "blocks.2.a", "blocks.10.a", "head"]
    mapped = Mapped()
    # Gradients come first in a sample, and in an order of their own.
    mapped.sample(0, *map(gradient, ["head", "blocks", *reversed(called[:-1]), ""]))
    assert mapped.state["modules"][-1] == "stem.conv"

    mapped.sample(1, *(output(name, 1) for name in called))
    assert mapped.state["modules"] == [
        "",
        "stem.conv",
        "blocks",
        *("blocks.0.a", "blocks.0.b", "blocks.2.a", "blocks.10.a"),
        "head",
    ]


def test_the_modules_in_trouble_are_told_in_words_worst_first() -> None:
    """For those who cannot see the picture: what, since when or until when, and how bad."""
    mapped = Mapped()
    mapped.sample(10, gradient("a", 10, lost=500), output("b", 10), output("c", 10, nans=10))
    mapped.sample(20, gradient("a", 20, lost=250), output("b", 20, amax=40000.0))
    mapped.sample(30, gradient("a", 30), output("b", 30, amax=30000.0), output("c", 30))

    assert mapped.state["worst"]["modules"] == [
        ["c", "nonfinite", "non-finite in step 10, in 1 of 2 columns; at worst about 1 % of the elements"],
        ["a", "lost", "underflow in steps 10 to 20, in 2 of 3 columns; at worst about 50 % of the gradient"],
        ["b", "activation_headroom", "near overflow since step 20, in 2 of 3 columns; at worst 0.71 bits of headroom"],
    ]  # fmt: skip
    assert mapped.state["sentence"] == "3 modules measured; 3 in trouble at some time"


def test_the_culprit_is_told_first() -> None:
    """What was broken before may look worse, and may stand before it in the model."""
    mapped = Mapped()
    mapped.sample(0, output("a", nans=1000), output("c", nans=1))
    mapped.sample(1, output("b", 1, nans=5))
    mapped.put(finding("forward_overflow", "b", first_step=1, last_step=1))

    in_words = [module for module, _, _ in mapped.state["worst"]["modules"]]
    assert in_words == ["b", "a", "c"]


def test_more_modules_than_are_told_are_counted() -> None:
    """A list of thousands helps nobody, and one that hides its end misleads."""
    mapped = Mapped()
    mapped.sample(0, *(output(f"m{i}", nans=1) for i in range(MAX_IN_WORDS + 5)))

    assert len(mapped.state["worst"]["modules"]) == MAX_IN_WORDS
    assert mapped.state["worst"]["more"] == 5


def test_what_is_left_out_is_counted() -> None:
    """The training hands out the worst modules only."""
    mapped = Mapped()
    mapped.sample(0, output("fc"), modules_left_out=1872)

    assert "1\u202f872 modules left out of the newest sample" in mapped.state["sentence"]


@pytest.mark.parametrize(
    ("where", "module"),
    [
        ("blocks.1.fc", "blocks.1.fc"),
        ("param:blocks.1.fc.weight", "blocks.1.fc"),
        ("param:scale", ""),
        ("", ""),
        ("optimizer:0", None),
        ("env", None),
    ],
)
def test_the_culprit_is_the_module_that_the_verdict_names(where: str, module: str | None) -> None:
    """It has its row even where it was never measured."""
    mapped = Mapped()
    mapped.sample(0, output("fc"))
    mapped.put(finding("forward_overflow", where, first_step=0, last_step=0))

    state = mapped.state
    assert state.get("culprit", {}).get("module") == module
    if module is not None:
        assert state["rows"][state["modules"].index(module)] == "."
        assert state["culprit"]["words"].startswith("forward_overflow in ")
    assert sorted(state["modules"]) == sorted({"fc"} | ({module} - {None}))


def test_a_float32_island_is_a_mark_of_its_row() -> None:
    """Arithmetic, not what autocast runs in float32 without any."""
    rows = [
        op_row("", "float32", module="a", fallback=Fallback.DISABLED_REGION, flops=3000),
        op_row("", "float16", module="a", flops=1000),
        op_row("", "float16", module="b"),
        op_row("", "float32", OpKind.OTHER, module="c", fallback=Fallback.FP32_LIST),
        op_row("mm", "float32", fallback=Fallback.DISABLED_REGION),
    ]
    mapped = Mapped(census(rows=tuple(rows)))

    assert mapped.state["islands"] == {
        "a": "75 % of its FLOPs in float32: inside autocast(enabled=False)"
    }


def test_a_module_has_its_exponents_over_time_and_the_limits_of_its_formats() -> None:
    """Gradients in float32 have to fit the format of autocast."""
    mapped = Mapped()
    mapped.sample(0, output("fc"), gradient("fc"))
    mapped.sample(5, output("fc", 5, amax=2.0**-3))
    history = sent(mapped.maps.answer("gpt", "0", "fc"))

    assert history["columns"] == [[0, 0], [5, 5]]
    outputs, gradients = history["charts"]
    assert outputs["ends"] == [[-8, -8], [-8, -3]]
    assert gradients["ends"] == [[-8, -8], None]
    assert outputs["format"] == gradients["format"] == "float16"
    limits = dict(outputs["limits"])
    assert limits["overflow"] == pytest.approx(16, abs=0.001)  # 65520 and more round to infinity
    assert limits["smallest normal"] == -14
    assert limits["flush to zero"] == -25


def test_a_map_follows_what_is_new_and_what_was_merged() -> None:
    """Columns are kept ready; one that has changed is made again."""
    mapped = Mapped()
    for index in range(300):
        mapped.sample(index, output("fc", index, nans=5 * (index == 7)))
        if index % 40 == 0:
            assert len(mapped.rows()["fc"]) == len(mapped.state["columns"])
    fresh = Maps(mapped.fleet).answer("gpt", "0")

    assert mapped.maps.answer("gpt", "0") == fresh
    assert mapped.reasons("fc").count("nonfinite") == 1


def test_the_ranks_that_were_asked_for_last_are_kept_ready() -> None:
    """One more takes the place of the oldest; what is new of a rank takes its own."""
    mapped = Mapped()
    for rank in range(MAX_KNOWN + 1):
        of_rank = FACTS, output("fc"), sampling(step=0), step(0)
        put(mapped.fleet, f"/{rank}.ring", identity(rank=rank, world_size=16), of_rank)
    first = [mapped.maps.answer("gpt", str(rank)) for rank in range(MAX_KNOWN)]
    put(
        mapped.fleet,
        "/0.ring",
        identity(rank=0, world_size=16),
        (output("fc", 1), sampling(step=1), step(1)),
    )
    assert mapped.maps.answer("gpt", "0") is not first[0]

    mapped.maps.answer("gpt", str(MAX_KNOWN))
    again = [mapped.maps.answer("gpt", str(rank)) for rank in range(2, MAX_KNOWN)]
    assert all(new is old for new, old in zip(again, first[2:], strict=True))
    assert mapped.maps.answer("gpt", "1") is not first[1]
