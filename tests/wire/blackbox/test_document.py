"""The file: what goes in comes out, and nothing else is taken for it; the user's exception in words."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from ampwatch.errors import ReportError
from ampwatch.wire.blackbox.box import joined
from ampwatch.wire.blackbox.document import from_json, to_json
from ampwatch.wire.blackbox.exception import MAX_CHARACTERS, MAX_WORDS, traceback_of, words_of
from ampwatch.wire.records import NO_PHASES, RunState
from tests.workshop.boxes import box
from tests.workshop.records import alarm, device_phases, failure, histogram, step


def refuse_constant(name: str) -> float:
    message = f"{name} is no JSON"
    raise AssertionError(message)


def document() -> dict[str, Any]:
    return json.loads(to_json([box()]))


def test_what_was_written_is_read() -> None:
    """Every field, NaN and infinities included (which equal themselves as text only)."""
    (read,) = from_json(to_json([box()]), "a file")

    assert repr(read) == repr(box())


def test_what_not_every_run_has_is_written_where_there_is_any() -> None:
    """What a gradient was before it was flushed, failures of sensors, what a device has timed.

    Without the loss scale exponents may be beyond those that are measured.
    """
    given = box()
    assert {"failures", "device_phases"}.isdisjoint(document()["ranks"][0])
    before = histogram(-300, 1, 2, amax=1e-89, amin=1e-90)
    given.ranges = [structs.replace(given.ranges[0], flushed=3, before_step=7, before=before)]
    given.failures = [failure("scale", 7, 40, "KeyError: 'x'")]
    given.device_phases = [device_phases(7, 9, (*NO_PHASES[1:], 0.5))]
    (read,) = from_json(to_json([given]), "a file")

    assert read.ranges == given.ranges
    assert read.failures == given.failures
    assert read.device_phases == given.device_phases
    assert joined(read, box()).device_phases == given.device_phases


def test_any_reader_of_json_can_read_it() -> None:
    """NaN and Infinity are no JSON; here they are strings."""
    read = json.loads(to_json([box()]), parse_constant=refuse_constant)
    rank = read["ranks"][0]
    first = dict(zip(rank["steps"]["columns"], rank["steps"]["rows"][0], strict=True))

    assert (read["format"], read["version"]) == ("ampwatch-report", 1)
    assert first["loss_scale"] == "NaN"
    assert rank["findings"][0]["advice"].startswith(
        "Tried on the batch of step 6: bfloat16 instead"
    )
    assert rank["findings"][1]["evidence"] == {
        "loss_scale": 2.0**-15,
        "steps_to_floor": "Infinity",
    }


def test_members_of_a_newer_release_are_passed_over() -> None:
    """Within a version there may be more, never less."""
    given = document()
    rank = given["ranks"][0]
    rank["mood"] = rank["identity"]["mood"] = rank["findings"][0]["mood"] = "calm"
    rank["steps"]["columns"].append("mood")
    for row in rank["steps"]["rows"]:
        row.append("calm")

    assert repr(from_json(json.dumps(given), "a file")) == repr([box()])


@pytest.mark.parametrize("version", [2, 0, "1", None, True])
def test_another_version_says_what_to_do(version: object) -> None:
    """It is not guessed at."""
    with pytest.raises(ReportError, match="expected a report of version 1 to 1 in a file, got"):
        from_json(json.dumps(document() | {"version": version}), "a file")


def damage(*way: str | int, value: object) -> Callable[[dict[str, Any]], None]:
    def apply(given: Any) -> None:
        for key in way[:-1]:
            given = given[key]
        given[way[-1]] = value

    return apply


@pytest.mark.parametrize(
    "change",
    [
        damage("ranks", value={}),
        damage("ranks", 0, "state", value="dancing"),
        damage("ranks", 0, "identity", "rank", value=-1),
        damage("ranks", 0, "identity", "run", value="a\nb"),
        damage("ranks", 0, "findings", 0, "count", value=10**30),
        damage("ranks", 0, "findings", 0, "evidence", value={"a": "b"}),
        damage("ranks", 0, "findings", 0, "tried", 0, value=["bfloat16", "", 0, True]),
        damage("ranks", 0, "findings", 0, "tried", 0, "measure", value="magic"),
        damage("ranks", 0, "findings", 0, "tried", value=[{}]),
        damage("ranks", 0, "steps", "rows", 0, value=[1, 2]),
        damage("ranks", 0, "steps", "rows", 0, 0, value=[]),
        damage("ranks", 0, "steps", "columns", 0, value="nothing"),
        damage("ranks", 0, "ranges", 0, "topic", value=["gradient"]),
        damage("ranks", 0, "ranges", 0, "histogram", "counts", value=[1] * 1000),
        damage("ranks", 0, "optimizers", "rows", 0, 4, value=[1, 2]),
        damage("ranks", 0, "settings", value={"level": None}),
    ],
)
def test_what_is_damaged_is_refused(change: Callable[[dict[str, Any]], None]) -> None:
    """With our error, whatever stands there."""
    given = document()
    change(given)

    with pytest.raises(ReportError, match="expected a whole report in a file, got one that is"):
        from_json(json.dumps(given), "a file")


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", '"x"', "[" * 100_000, b"\xff\xfe", to_json([])[:-9]]
)
def test_what_is_no_report_is_refused(text: str | bytes) -> None:
    """A file that was cut short, or something else altogether."""
    with pytest.raises(ReportError, match="expected a report of ampwatch in a file"):
        from_json(text, "a file")


def test_text_is_made_harmless_for_a_terminal() -> None:
    """Escape sequences and marks that turn the direction of text."""
    hostile = replace(alarm(), summary="\x1b[2Jgone \u202e txt", source="\udcff.py")
    given = box()
    given.findings = [hostile]
    (read,) = from_json(to_json([given]), "a file")

    assert read.findings[0].summary == "\ufffd[2Jgone \ufffd txt"
    assert read.findings[0].source == "?.py"


def test_two_boxes_of_a_rank_say_together_what_each_knows() -> None:
    """The training knows its settings, the ring how it went on."""
    own, later = box(), box()
    later.settings, later.traceback, later.notes = {}, "", []
    later.steps = [step(20)]
    later.findings = [replace(own.findings[0], count=77)]
    later.state, later.reason = RunState.FAILED, "killed"
    own.failures = [failure("scale", 1, 3, ""), failure("ops", 1, 4, "")]
    later.failures = [failure("scale", 2, 9, "")]
    both = joined(own, later)

    assert (both.settings, both.traceback) == (own.settings, own.traceback)
    assert [s.step for s in both.steps] == [*range(10), 20]
    assert [f.count for f in both.findings] == [77, 4]
    assert (both.state, both.reason) == (RunState.FAILED, "killed")
    assert {f.sensor: f.errors for f in both.failures} == {"scale": 2, "ops": 1}


class Mute(Exception):  # noqa: N818 - it says nothing
    def __str__(self) -> str:
        raise ZeroDivisionError


class Batch:
    """Something large that a frame holds."""


def raised(error: BaseException) -> BaseException:
    try:
        raise error  # noqa: TRY301 - it is only to be caught
    except BaseException as caught:  # noqa: BLE001 - that is the purpose
        return caught


def test_the_line_that_raised_is_in_it() -> None:
    """The text is as Python would print it."""
    text = traceback_of(raised(ValueError("no")))

    assert text.startswith("Traceback (most recent call last):\n")
    assert "raise error" in text
    assert text.endswith("ValueError: no\n")


def test_an_ordinary_end_has_none() -> None:
    """Neither has one that somebody asked for."""
    assert [traceback_of(e) for e in (None, SystemExit(1), KeyboardInterrupt())] == ["", "", ""]


def test_an_exception_that_cannot_say_its_text_is_named() -> None:
    """Nothing is raised in the place of the user's own."""
    assert words_of(Mute()) == "Mute: (its text could not be had: ZeroDivisionError)"
    assert "Mute" in traceback_of(raised(Mute()))


def test_a_long_one_is_cut_at_its_beginning() -> None:
    """The end of a long text is kept: it says what happened."""
    text = traceback_of(raised(ValueError("x" * 100_000 + "the end")))

    assert len(text) < MAX_CHARACTERS + 10
    assert text.endswith("the end\n")
    assert len(words_of(ValueError("x" * 100_000))) < MAX_WORDS + 10


def test_nothing_of_the_frames_is_kept() -> None:
    """They may hold gigabytes."""

    def train() -> None:
        batch = Batch()
        kept.append(weakref.ref(batch))
        raise ValueError

    kept: list[weakref.ref[Batch]] = []
    try:
        train()
    except ValueError as error:
        text = traceback_of(error)
    gc.collect()

    assert "in train" in text
    assert kept[0]() is None
