"""The feed of the page: whole once, then only what has changed."""

from __future__ import annotations

import functools
import json
import math
import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from ampwatch.host.fleet import Fleet, History
from ampwatch.host.page.broadcast import merge_patch
from ampwatch.host.page.lines import Shown
from ampwatch.host.page.page import Feed
from ampwatch.host.page.rows import COLUMNS
from ampwatch.report.line_change import change_of
from ampwatch.settings import Settings
from ampwatch.wire.records import ALL_MODULES, FindingRecord, Measure, RunState, Severity, Tried
from tests.workshop.clocks import SECOND, START, Clock
from tests.workshop.fleets import fleet_of, made_up_fleet, put
from tests.workshop.records import (
    alarm,
    end,
    finding,
    histogram,
    identity,
    ranges,
    sampling,
    skipped_step,
    step,
)

if TYPE_CHECKING:
    from pathlib import Path

NOW = Clock(START + 20)


def sent(state: Any) -> Any:
    """State that arrives at a client that is sent ``state``; refuses what is not JSON."""
    return json.loads(json.dumps(state, allow_nan=False))


def merged(target: Any, patch: Any) -> Any:
    """Apply a merge patch: the algorithm of RFC 7396, section 2, word by word."""
    if not isinstance(patch, dict):
        return patch
    if not isinstance(target, dict):
        target = {}
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        else:
            target[name] = merged(target.get(name), value)
    return target


def rows_of(state: Any, run: str = "gpt", rank: str = "0") -> dict[int, dict[str, Any]]:
    series = state["runs"][run]["ranks"][rank]["series"]
    return {int(first): dict(zip(COLUMNS, row, strict=True)) for first, row in series.items()}


def test_the_full_state_is_json_and_holds_every_run_rank_and_problem() -> None:
    """Knowledge of the fleet is on the page."""
    state = sent(Feed(made_up_fleet(), NOW).full())

    assert {run: sorted(told["ranks"]) for run, told in state["runs"].items()} == {
        "bert": ["0"],
        "gpt": ["0", "1"],
    }
    assert state["problems"] == {"/old.ring": "layout 0"}
    assert state["runs"]["gpt"]["speaker"] == 0
    assert state["runs"]["bert"]["level"] == "failed"


def test_ranks_that_differ_are_counted_and_named() -> None:
    """A page of hundreds of ranks says it in two lines."""
    told = sent(Feed(made_up_fleet(), NOW).full())["runs"]["gpt"]

    assert told["counts"] == "1 starting, 1 failing (rank 0)"
    assert told["worst"] == f"rank 0 is failing: {told['ranks']['0']['sentence']}"


def test_a_run_says_whose_it_is_and_which_rank_has_a_finding() -> None:
    """The rank that speaks, where it has it: of the others a page need not know everything."""
    fleet = made_up_fleet()
    for rank in (1, 2):
        both = [finding(last_step=2), finding("headroom_low", "a.b", severity=Severity.INFO)]
        who = identity(rank=rank, world_size=3, host="other", started_ns=(START + 900) * SECOND)
        put(fleet, f"/big-{rank}.ring", replace(who, run="big"), both)

    told = sent(Feed(fleet, NOW).full())["runs"]

    assert told["gpt"]["hosts"] == ["node"]
    assert told["big"]["hosts"] == ["other"]
    assert told["big"]["found"] == {
        "scale_collapse@optimizer:0": [1, 2],
        "headroom_low@a.b": [1, 2],
    }
    assert told["gpt"]["found"]["scale_collapse@optimizer:0"] == [0, 1]


def test_the_series_holds_what_happened_in_each_step() -> None:
    """Scale, loss and duration as recorded, skips in the column of their class."""
    rows = rows_of(Feed(made_up_fleet(), NOW).full())

    assert [row["scale"] for row in rows.values()] == [65536.0, 32768.0, 16384.0, 32768.0]
    assert [row["storm"] for row in rows.values()] == [0, 1, 1, 0]
    assert [row["loss"] for row in rows.values()] == [2.0, 2.0, "Infinity", 2.0]
    assert [row["nonfinite_losses"] for row in rows.values()] == [0, 0, 1, 0]
    assert [row["seconds"] for row in rows.values()] == [None, 1.0, 1.0, 0.25]
    assert [row["ended"] - START for row in rows.values()] == [1, 2, 3, 4]


def test_numbers_that_json_does_not_know_are_reported_in_words() -> None:
    """NaN and the infinities are strings, an absent scale is null; other evidence is as charts write it."""
    fleet = made_up_fleet()
    odd = {"amax": math.inf, "amin": -math.inf, "mean": math.nan}
    evidence = {"loss_scale": 2.0**-44, "scale_before": 65536.0, "number": 65504.0, "least": 3e-8}
    past = {"steps_to_one": 0.0}
    put(fleet, "/gpt-0.ring", identity(), [finding(op="mul_", evidence=odd | evidence | past)])

    state = sent(Feed(fleet, NOW).full())

    told = state["runs"]["gpt"]["ranks"]["0"]["findings"]["scale_collapse@optimizer:0"]
    words = {"amax": "Infinity", "amin": "-Infinity", "mean": "NaN"}
    assert told["evidence"] == words | past | {n: float(f"{v:.6g}") for n, v in evidence.items()}
    assert told["evidence_words"] == {
        "largest magnitude": "infinity",
        "amin": "-infinity",
        "mean": "NaN",
        "loss scale": "2⁻⁴⁴",
        "scale before": "2¹⁶",
        "factor": "65\u202f504",
        "least": "3e-08 (about 2⁻²⁵)",
    }
    assert {row["scale"] for row in rows_of(state, "bert").values()} == {None}


def test_the_words_of_a_finding_are_explained_and_what_was_tried_is_marked() -> None:
    """Each word once for all findings; a finding names those that come up in it."""
    fleet = made_up_fleet()
    made = finding("forward_overflow", summary="exp overflowed.").finding
    made.tried = (Tried(Measure.BFLOAT16, "", 7, cures=True),)
    plain = alarm("headroom_low", summary="It is hot.", kind_advice="Wait.")
    for one in (made, plain):
        put(fleet, "/gpt-0.ring", identity(), [FindingRecord(one)])

    state = sent(Feed(fleet, NOW).full())

    found = state["runs"]["gpt"]["ranks"]["0"]["findings"]
    tried, other = (found[f"{k}@optimizer:0"] for k in ("forward_overflow", "headroom_low"))
    assert [(t["measure"], t["cures"]) for t in tried["tried"]] == [("bfloat16", True)]
    assert tried["advice"].startswith(
        "Use bfloat16 instead of float16 (tried on the batch of step 7"
    )
    assert tried["terms"] == ["overflow", "bfloat16"]
    assert (other["tried"], other["terms"]) == ([], [])
    assert state["glossary"]["overflow"].startswith("a result larger than the largest number")


def test_the_remedy_is_a_difference_of_the_line_where_its_file_is_the_users_own(
    tmp_path: Path,
) -> None:
    """As in reports, and as it was when it was found. Of a ring of somebody else no file is read."""
    file = tmp_path / "model.py"
    file.write_text("import torch\ndef forward(self, x):\n    x = self.up(x)\n")
    made = finding("forward_overflow", "net.up", source=f"{file}:3", op="addmm").finding
    made.tried = (Tried(Measure.MODULE_IN_FLOAT32, "net.up", 7, cures=True),)
    fleet = Fleet(Settings(), Clock(START + 20))
    for run, uid in (("own", os.geteuid()), ("other", os.geteuid() + 1)):
        put(fleet, f"/{run}.ring", identity(run=run), [FindingRecord(made)], uid=uid)
    feed = Feed(fleet, NOW)

    def changes() -> list[list[str]]:
        runs = sent(feed.full())["runs"]
        return [runs[run]["ranks"]["0"]["findings"][made.key]["change"] for run in ("own", "other")]

    assert changes() == [list(change_of(made)), []]
    file.unlink()
    assert changes() == [
        [
            "- x = self.up(x)",
            "+ with torch.autocast(x.device.type, enabled=False):",
            "+     x = self.up(x.float())",
        ],
        [],
    ]


def test_when_nothing_has_changed_only_the_time_is_sent() -> None:
    """A page at rest costs a few bytes a second."""
    clock = Clock(START + 20)
    feed = Feed(made_up_fleet(), clock)
    cursor = feed.full()
    clock.now += 0.25

    patch = merge_patch(cursor, feed.full())

    assert patch == {"now": START + 20.25}


def test_a_state_is_made_anew_when_the_clock_was_set_back() -> None:
    """Else pages would stand still until it has caught up."""
    clock = Clock(START + 20)
    feed = Feed(made_up_fleet(), clock)
    made = feed.full()
    clock.now -= 3600.0

    assert feed.full(0.5) is not made


LINE = {"level", "sentence", "state", "started", "last_seen", "step"}


def whole_ranks(state: Any) -> set[tuple[str, str]]:
    """Runs and ranks of which there is more than a line."""
    ranks = [(run, rank, told) for run, of in state["runs"].items() for rank, told in of["ranks"].items()]  # fmt: skip
    assert all("series" in told or told.keys() <= LINE for _, _, told in ranks)
    return {(run, rank) for run, rank, told in ranks if "series" in told}


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (Shown(), {("gpt", "0")}),  # the run that is worst off
        (Shown("bert"), {("bert", "0")}),  # the rank that speaks for it
        (Shown("gpt", "1"), {("gpt", "1")}),
        (Shown("gpt", "7"), {("gpt", "0")}),
        (Shown("gone", "1"), {("gpt", "1")}),
        (Shown("gpt", "1", ("bert", "0")), {("gpt", "1"), ("bert", "0")}),
        (Shown("gpt", "1", ("bert", "7")), {("gpt", "1")}),
        (Shown("gpt", "1", ("gone", "0")), {("gpt", "1")}),
        (Shown("gpt", "1", ("gpt", "0")), {("gpt", "1"), ("gpt", "0")}),
    ],
)
def test_a_page_is_sent_what_somebody_looks_at_and_a_line_of_the_rest(
    shown: Shown, expected: set[tuple[str, str]]
) -> None:
    """Where the page does not say, it is what the page itself would show first."""
    feed = Feed(made_up_fleet(), NOW)
    state, full = feed.shown(shown), feed.full()

    assert whole_ranks(state) == expected
    for run, told in state["runs"].items():
        for rank, line in told["ranks"].items():
            assert line.items() <= full["runs"][run]["ranks"][rank].items()
        assert told | {"ranks": None} == full["runs"][run] | {"ranks": None}
    for run, rank in expected:
        assert state["runs"][run]["ranks"][rank] == full["runs"][run]["ranks"][rank]


def test_pages_that_show_different_ranks_share_what_is_about_all() -> None:
    """One verdict on all ranks for all of them, and each rank made whole once."""
    clock = Clock(START + 20)
    fleet = made_up_fleet()
    feed = Feed(fleet, clock)
    one = feed.shown(Shown("gpt", "0", ("bert", "0")))
    clock.now += 0.4
    other = feed.shown(Shown("bert", "0"), 0.5)

    assert other["runs"]["gpt"]["ranks"]["1"] is one["runs"]["gpt"]["ranks"]["1"]
    assert other["runs"]["bert"]["ranks"]["0"] is one["runs"]["bert"]["ranks"]["0"]
    assert feed.shown(Shown("bert", "0"), 0.5) is other
    clock.now += 0.1
    assert feed.shown(Shown("bert", "0"), 0.5)["now"] == START + 20.5


def test_whoever_is_shown_the_same_ranks_shares_their_state() -> None:
    """Whatever was asked for: names that there are not cost nothing of their own."""
    fleet = made_up_fleet()
    feed = Feed(fleet, NOW)

    first = feed.shown(Shown("gpt", "0"))

    for asked in (Shown(), Shown("gpt"), Shown("gpt", "9"), Shown("gpt", "0", ("gone", "0"))):
        assert feed.shown(asked, 0.5) is first


def test_a_rank_that_was_not_looked_at_for_a_while_is_whole_at_once() -> None:
    """What has happened meanwhile is there too."""
    fleet = Fleet(Settings(), NOW)
    feed = Feed(fleet, NOW)
    for rank in (0, 1):
        put(fleet, f"/{rank}.ring", identity(rank=rank, world_size=2), [step(0)])
    feed.shown(Shown("gpt", "0"))
    put(fleet, "/0.ring", identity(rank=0, world_size=2), [step(i) for i in range(1, 50)])
    feed.shown(Shown("gpt", "1"))

    assert list(rows_of(feed.shown(Shown("gpt", "0")))) == list(range(50))


def test_one_more_step_of_a_long_run_costs_hundreds_of_bytes_and_not_the_history() -> None:
    """The change names the newest bucket and the figures, and nothing else."""
    fleet = fleet_of(*map(step, range(3000)))
    feed = Feed(fleet, NOW)
    cursor = feed.full()
    put(fleet, "/a.ring", identity(), [step(3000, loss=7.0)])

    patch = merge_patch(cursor, feed.full())

    (changed,) = rows_of(patch).values()
    assert changed["last_step"] == 3000
    assert len(json.dumps(patch)) < 1000 < len(json.dumps(cursor)) / 20


STEPS = st.tuples(st.just("step_on"), st.integers(0, 2), st.integers(1, 30), st.booleans())
FINDINGS = st.tuples(
    st.just("find"), st.integers(0, 2), st.integers(1, 3), st.sampled_from(list(Severity))
)
SAMPLES = st.tuples(
    st.just("sample"), st.integers(0, 2), st.integers(1, 12), st.sampled_from(["fc", "relu", ""])
)
OTHERS = st.tuples(
    st.sampled_from(["fail", "restart", "vanish", "break_ring", "mend_ring", "wait"]),
    st.integers(0, 2),
)


class Host:
    """A fleet to which things happen."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.fleet = Fleet(Settings(), self.clock)
        self.steps = [0, 0, 0]
        self.started = [START, START, START]

    def happen(self, what: str, rank: int, *how: Any) -> None:
        getattr(self, what)(rank, *how)

    def tell(self, rank: int, records: list[Any]) -> None:
        who = identity(rank=rank, started_ns=self.started[rank] * 10**9)
        put(self.fleet, f"/{rank}.ring", who, records)

    def step_on(self, rank: int, count: int, skipped: bool) -> None:  # noqa: FBT001 - drawn
        make = functools.partial(skipped_step, scale=2.0**-9) if skipped else step
        self.tell(rank, [make(self.steps[rank] + i) for i in range(count)])
        self.steps[rank] += count

    def find(self, rank: int, place: int, severity: Severity) -> None:
        where, last = f"layer.{place}", self.steps[rank]
        self.tell(rank, [finding(where=where, severity=severity, last_step=last)])

    def sample(self, rank: int, count: int, module: str) -> None:
        first = self.steps[rank]
        for i in range(first, first + count):
            exponents = histogram(-20, 1 + i, 2, zeros=i)
            parts = [ranges(name, exponents=exponents, step=i) for name in (module, ALL_MODULES)]
            self.tell(rank, [*parts, sampling(step=i, samples=(i, 0, 0, 0, 0, 0))])
        self.steps[rank] += count

    def fail(self, rank: int) -> None:
        self.tell(rank, [end(RunState.FAILED, "why")])

    def restart(self, rank: int) -> None:
        self.started[rank] += 1
        self.steps[rank] = 0
        self.tell(rank, [])

    def vanish(self, rank: int) -> None:
        self.fleet.forget(f"/{rank}.ring")

    def break_ring(self, rank: int) -> None:
        self.fleet.note_problem("/bad.ring", f"layout {rank}")

    def mend_ring(self, rank: int) -> None:
        self.fleet.forget("/bad.ring")

    def wait(self, rank: int) -> None:
        self.clock.now += 200 * (rank + 1)


@pytest.mark.rotating
@settings(max_examples=60)
@given(st.lists(st.lists(st.one_of(STEPS, FINDINGS, SAMPLES, OTHERS), max_size=5), max_size=8))
def test_a_client_that_followed_knows_what_a_new_one_gets(
    rounds: list[list[tuple[Any, ...]]],
) -> None:
    """Full and deltas together are the full state, whatever happens, thinning included."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ampwatch.host.fleet.gradients.MAX_COLUMNS", 8)
        patch.setattr("ampwatch.host.fleet.modules.MAX_MODULES", 2)
        patch.setattr("ampwatch.host.fleet.rank.History", functools.partial(History, max_buckets=8))
        host = Host()
        feed = Feed(host.fleet, host.clock)
        cursor = feed.full()
        client = sent(cursor)
        for events in rounds:
            for event in events:
                host.happen(*event)
            before, cursor = cursor, feed.full()
            client = merged(client, sent(merge_patch(before, cursor)))

            assert client == sent(Feed(host.fleet, host.clock).full())
