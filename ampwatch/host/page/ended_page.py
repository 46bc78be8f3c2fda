"""The page of runs that have ended: the list, and two of them side by side. Without a script.

What runs have recorded of themselves is text here, escaped where it is put in (``markup.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from ampwatch.host.page.reading import ENDED, framed
from ampwatch.report import accounts
from ampwatch.report.html_report import when
from ampwatch.report.judged_boxes import judge_boxes, state_of
from ampwatch.report.markup import Markup, element, joined
from ampwatch.report.report import shown_box
from ampwatch.report.run_list import row_of
from ampwatch.report.words import memory, number, percent, plural, quantity, scale, step_time
from ampwatch.report.words import time_span as span
from ampwatch.state.facts import FACTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ampwatch.report.run_list import RunRow
    from ampwatch.state.facts import Fact
    from ampwatch.wire.blackbox import Box

SYMBOLS = {
    **dict.fromkeys(("failing", "broken", "failed"), "✖"),
    **dict.fromkeys(("calibrating", "starting"), "◔"),
    "stale": "◌",
    "needs attention": "▲",
    "healthy": "✓",
    "finished": "■",
}
"""Symbol of each state, as in ``words.js``: never by colour alone."""

PICKED = "run"
"""The field of the query that has the key of a run."""

MAX_PROBLEMS = 8
"""Files that cannot be read, of which the page says why."""

UNKNOWN = "-"

LEFT_OUT = frozenset({"amp/step", "amp/skipped", "amp/sample_step"})
"""Figures of one iteration that say nothing about a run that has ended."""

HEADS = ("Run", "Started", "Ran", "Steps", "State", "What is wrong")


def refused_html(why: str) -> str:
    """Return the page of a daemon that shows no reports.

    Args:
        why: The reason, in sentences.
    """
    return _framed(element("p", _code(why)))


def list_html(
    rows: Sequence[RunRow],
    *,
    directory: str,
    days: int,
    num_left_out: int = 0,
    problems: Sequence[str] = (),
    picked: Sequence[str] = (),
    compared: Sequence[Sequence[Box]] = (),
) -> str:
    """Return the list as a page.

    Args:
        rows: The runs, the newest first.
        directory: Where their reports are.
        days: How long ago a report may have been written.
        num_left_out: Runs and files for which there is no room.
        problems: Why a file cannot be read, in sentences.
        picked: The keys that the request names.
        compared: What the ranks of two runs have left, to be shown side by side; else nothing.

    Cost:
        Some 20 us a row, and some 5 ms for a comparison.
    """
    about = [
        f"Runs whose reports were written in the last {days} days, the newest first. Their directory is ",
        element("code", directory or "not known"),
        ". A run without findings leaves no report. A run with another ",
        element("code", "report_dir"),
        " is not listed: ",
        element("code", "ampwatch report PATH"),
        " shows it.",
    ]
    body = [element("p", *about)]
    if num_left_out:
        body.append(element("p", f"{plural(num_left_out, 'older report')} had no room."))
    if len(compared) == 2:
        body.append(_comparison(*compared))
    elif picked:
        text = (
            "Choose two runs of the list to compare them; a run that you have chosen may have gone."
        )
        body.append(element("p", text, role="alert"))
    body.append(_table(rows, picked) if rows else element("p", "There is no such report."))
    if problems:
        lines = [element("li", text) for text in problems[:MAX_PROBLEMS]]
        more = len(problems) - len(lines)
        lines += [element("li", f"and {plural(more, 'more')}")] if more > 0 else []
        body += [element("h2", "Files that cannot be read"), element("ul", *lines)]
    return _framed(*body)


def _framed(*body: Markup) -> str:
    return framed(ENDED.title, ENDED.route, joined(element("h1", ENDED.title), *body))


def _code(text: str) -> Markup:
    """Return text in which what stands between backticks is code."""
    parts = text.split("`")
    return joined(*(element("code", part) if i % 2 else part for i, part in enumerate(parts)))


def _table(rows: Sequence[RunRow], picked: Sequence[str]) -> Markup:
    heads = [element("th", element("span", "Compare", class_="unseen"), scope="col")]
    heads += [element("th", head, scope="col") for head in HEADS]
    table = element(
        "table",
        element("thead", element("tr", *heads)),
        element("tbody", *[_row(row, picked) for row in rows]),
        class_="ended",
    )
    button = element("button", "Compare the two chosen", type="submit", class_="small")
    return element("form", element("p", button), table, method="get", action="./")


def _row(row: RunRow, picked: Sequence[str]) -> Markup:
    ranks = f" ({row.ranks} ranks)" if row.ranks > 1 else ""
    name = f"{row.run}, started {when(row.started_ns)}"
    box = element(
        "input",
        type="checkbox",
        name=PICKED,
        value=row.key,
        aria_label=f"compare {name}",
        checked="" if row.key in picked else None,
    )
    cells = (
        joined(element("a", row.run, href=_report(row)), ranks),
        when(row.started_ns),
        span(row.seconds),
        number(row.iterations),
        _level(row.level, row.state),
        row.cause if row.has_ended else f"{row.cause}. It has not said how it ended.",
    )
    shown_cells = [
        element("td", cell, data_head=head) for head, cell in zip(HEADS, cells, strict=True)
    ]
    return element("tr", element("td", box), *shown_cells)


def _report(row: RunRow) -> str:
    return f"report?{PICKED}={quote(row.key, safe='')}"


def _level(level: str, words: str) -> Markup:
    return element("span", f"{SYMBOLS[level]} {words}", class_="level", data_level=level)


def _comparison(first: Sequence[Box], second: Sequence[Box]) -> Markup:
    jobs = (first, second)
    rows = [row_of(job) for job in jobs]
    verdicts = [judge_boxes(job) for job in jobs]
    shown_boxes = [shown_box(job, verdict) for job, verdict in zip(jobs, verdicts, strict=True)]
    heads = [
        element(
            "th",
            element("a", row.run, href=_report(row)),
            f", {when(row.started_ns)}, rank {box.identity.rank}",
            scope="col",
        )
        for row, box in zip(rows, shown_boxes, strict=True)
    ]
    general: dict[str, Sequence[str]] = {
        "state": [_level(row.level, row.state) for row in rows],
        "what is wrong": [row.cause for row in rows],
        "ran": [span(row.seconds) for row in rows],
        "ranks": [number(row.ranks) for row in rows],
    }
    states = [state_of(box) for box in shown_boxes]
    figures = {
        key.removeprefix("amp/").replace("_", " "): [
            _written(fact, fact.read(state)) for state in states
        ]
        for key, fact in FACTS.items()
        if key not in LEFT_OUT
    }
    found = [
        {
            f"{member.finding.kind} in {accounts.place(member.finding)}": f"{member.severity.value}, since step"
            f" {member.first_step}, in {plural(member.finding.count, 'step')}{_on(member.ranks, len(job))}"
            for incident in verdict.incidents
            for member in incident.members
        }
        for job, verdict in zip(jobs, verdicts, strict=True)
    ]
    set_up = [{**box.facts, **box.settings} for box in shown_boxes]
    names = dict.fromkeys(name for one in set_up for name in one)
    other = {name: [str(one.get(name, UNKNOWN)) for one in set_up] for name in names}
    keys = dict.fromkeys(key for one in found for key in one)
    findings = {key: [one.get(key, "not found") for one in found] for key in keys}
    table = element(
        "table",
        element("thead", element("tr", element("td"), *heads)),
        *_part("", general),
        *_part("Figures", {k: v for k, v in figures.items() if set(v) != {UNKNOWN}}),
        *_part("Findings", findings),
        *_part("Facts and settings that differ", {k: v for k, v in other.items() if v[0] != v[1]}),
        class_="compared",
    )
    legend = "A row that begins with ≠ differs. Figures are of the newest iteration of that rank."
    return joined(element("h2", "Two runs compared"), element("p", legend), table)


def _part(title: str, rows: Mapping[str, Sequence[str]]) -> Iterable[Markup]:
    if not rows:
        return
    head = element("tr", element("th", title, colspan=3, scope="rowgroup"), class_="part")
    lines = []
    for name, cells in rows.items():
        differs = cells[0] != cells[1]
        lines.append(
            element(
                "tr",
                element("th", "≠ " if differs else "", name, scope="row"),
                *[element("td", cell) for cell in cells],
                class_="differs" if differs else None,
            )
        )
    yield element("tbody", head if title else None, *lines)


def _on(ranks: Sequence[int], of: int) -> str:
    return f", on {accounts.ranks(ranks)}" if of > 1 else ""


def _written(fact: Fact, value: float | None) -> str:
    """Write a number of ``state/facts.py`` in its unit, as the page of a run does."""
    if value is None:
        return UNKNOWN
    if fact.key.endswith("_share"):
        return percent(value)
    if fact.unit == "B":
        return memory(int(value))
    if fact.unit == "s":
        return step_time(value)
    return scale(value) if fact.key == "amp/loss_scale" else quantity(value)
