"""The report of a run as one HTML file: no script, no network, nothing beside it.

A report holds what a training recorded of itself, and is sent around: what it shows is text,
escaped where it is put in (``markup.py``), and the browser is asked to run and load nothing.
"""

from __future__ import annotations

import math
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import asdict, replace

from ampwatch.numerics.exponents import nearest_exponent
from ampwatch.numerics.written import scale_text
from ampwatch.report import accounts, pictures
from ampwatch.report.glossary import terms_in
from ampwatch.report.headline import headline
from ampwatch.report.judged_boxes import judge_boxes, state_of
from ampwatch.report.line_change import change_of
from ampwatch.report.markup import Markup, element, joined
from ampwatch.report.pages import more_about
from ampwatch.report.pictures import NARROW, WIDE
from ampwatch.report.report import failed_box, iterations, one_line, shown_box
from ampwatch.report.step_times import breakdown_of, notes
from ampwatch.report.words import percent, step_time
from ampwatch.state.facts import FACTS
from ampwatch.version import __version__
from ampwatch.wire.blackbox.culprit import about
from ampwatch.wire.records import WITHOUT_C, Severity, SkipClass, StepRecord

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ampwatch.report.incidents import Incident
    from ampwatch.report.verdict import RunVerdict
    from ampwatch.wire.blackbox import Box
    from ampwatch.wire.records import Finding, RangeRecord

STYLE = Path(__file__).with_name("report.css")

POLICY = "default-src 'none'; style-src 'unsafe-inline'"

MAX_ROWS = 96
"""Steps in the table of a rank; the JSON report has all there are."""

MAX_RANKS = 64


def render_html(boxes: Sequence[Box]) -> str:
    """Return the report of the ranks of one run as a page.

    Args:
        boxes: At least one, all of one run.
    """
    verdict = judge_boxes(boxes)
    shown = verdict.incidents
    by_rank = {box.identity.rank: box for box in boxes}
    body = element(
        "main",
        element("p", "ampwatch report", class_="wordmark"),
        element("h1", f"Run {boxes[0].identity.run}: {verdict.level.value}"),
        element("p", accounts.sentence(verdict.sentence), class_="lead"),
        element("p", headline(verdict).first, class_="lead"),
        *[element("p", one_line(box, verdict.cause)) for box in boxes[:MAX_RANKS]],
        *[element("p", note, class_="muted") for note in boxes[0].notes],
        _traceback(boxes, verdict),
        *[_article(incident, by_rank[incident.ranks[0]]) for incident in shown],
        _step_times(shown_box(boxes, verdict)),
        _terms(shown),
        element("h3", "Everything else"),
        *[_rank_details(box) for box in boxes[:MAX_RANKS]],
        _footer(boxes),
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}"/>'),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"ampwatch report: {boxes[0].identity.run}"),
        element("style", Markup(STYLE.read_text(encoding="utf-8"))),
    )
    return f"<!doctype html>\n{element('html', head, element('body', body), lang='en')}\n"


def _article(incident: Incident, box: Box) -> Markup:
    f = incident.finding
    more = more_about(f.kind)
    first, *others = accounts.parts(incident)
    change = "\n".join(change_of(f))
    changes = [("The change", element("pre", f"{f.source}\n\n{change}"))] if change else []
    lists = [
        joined(
            element("dt", name),
            element("dd", text, class_="advice" if name == first[0] else None),
        )
        for name, text in [first, *changes, *others]
        if text
    ]
    return element(
        "article",
        element("p", f"{incident.severity.value} ", element("code", f.kind), class_="tag"),
        element("h2", accounts.sentence(f.summary)),
        _path(f),
        element("dl", *lists, class_="parts"),
        _history(f, box),
        _exponents(f, box),
        _symptoms(incident),
        _numbers(incident),
        element("p", "More: ", element("code", more), class_="terms") if more else None,
        class_=incident.severity.value,
    )


def _path(finding: Finding) -> Markup | None:
    names = accounts.path(finding)
    if not names:
        return None
    items = [element("li", element("span", name)) for name in names]
    return element("ol", *items, class_="path", aria_label="Where in the model")


def _history(finding: Finding, box: Box) -> Markup | None:
    if finding.severity is Severity.INFO:
        return None
    near = pictures.around(box.steps, finding)
    drawn = [pictures.history_picture(near, width, finding.first_step) for width in (WIDE, NARROW)]
    if drawn[0] is None:
        return None
    classes = sorted({s.skip_class for s in near if s.skip_class is not SkipClass.NONE})
    keys = [element("span", f"skipped, {c.label}", class_=c.label) for c in classes]
    legend = element("p", *keys, class_="legend") if keys else None
    caption = "Loss scale, skipped steps and loss around the time it began."
    return element("figure", element("figcaption", caption), *drawn, legend)


def _exponents(finding: Finding, box: Box) -> Markup | None:
    record = about(finding, box.ranges)
    if record is None:
        return None
    fmt = pictures.limits_of(record, finding, box.facts)
    shown = _before_flushing(record)
    drawn = [pictures.exponents(shown, fmt, w) for w in (WIDE, NARROW)]
    if drawn[0] is None:
        return None
    caption = _of_record(shown, "" if fmt is None else fmt.name)
    if shown is not record:
        share = percent(record.flushed / record.histogram.binned)
        caption += (
            f" {share} of them are zero at step {record.step} only because of the format: what became"
            f" zero is drawn as it was in step {record.before_step}, at the loss scale of step {record.step}."
        )
    return element("figure", element("figcaption", caption), *drawn)


def _before_flushing(record: RangeRecord) -> RangeRecord:
    """Return a measurement as it would be had its format flushed nothing, at its own loss scale.

    The measurement itself where nothing was flushed, or nothing is known of what that was.
    """
    if record.before is None or record.flushed <= 0 or not record.histogram.binned:
        return record
    if not 0.0 < record.loss_scale < math.inf:
        return record
    return replace(record, histogram=record.before.shifted(nearest_exponent(record.loss_scale)))


def _of_record(record: RangeRecord, limits: str) -> str:
    """Say what a histogram shows."""
    h = record.histogram
    what = (
        f"{record.topic.label.replace('_', ' ')}s" if record.topic.label != "update" else "updates"
    )
    module = "all modules" if record.module == "*" else record.module or "the model itself"
    scaled = (
        f", multiplied by the loss scale {scale_text(record.loss_scale)}"
        if record.loss_scale != 1
        else ""
    )
    held = f"in {record.dtype}" if record.dtype != "mixed" else "of several dtypes"
    sample = f"; a sample of {h.binned}" if h.is_subsample else ""
    against = f", against the limits of {limits}" if limits else ""
    nonfinite = f", {h.nonfinite} NaN or infinite" if h.nonfinite else ""
    whole = h.binned + h.nonfinite
    zeros = f", {percent(h.zeros / whole)} zero" if whole and h.zeros else ""
    return (
        f"Magnitudes of the {what} of {module} at step {record.step}, {held}{scaled}{against}."
        f" {h.numel} elements{sample}{zeros}{nonfinite}, the largest finite {accounts.figure(h.amax)}."
    )


def _symptoms(incident: Incident) -> Markup | None:
    shown = [symptom.finding for symptom in incident.symptoms]
    if not shown:
        return None
    items = [
        element(
            "li",
            element("code", f.kind),
            f" in {accounts.place(f)}, since step {f.first_step}. {accounts.sentence(f.summary)}",
        )
        for f in shown
    ]
    return joined(element("h3", "It explains"), element("ul", *items, class_="symptoms"))


def _numbers(incident: Incident) -> Markup | None:
    shown = [(s.finding, accounts.evidence(s.finding)) for s in incident.members]
    rows = []
    for finding, numbers in shown:
        if numbers and finding is not incident.finding:
            rows.append(element("tr", element("th", f"of {finding.kind}", colspan=2)))
        rows += [element("tr", *[element("td", cell) for cell in row]) for row in numbers]
    if not rows:
        return None
    return joined(element("h3", "The numbers"), element("table", *rows, class_="numbers"))


def _terms(shown: Sequence[Incident]) -> Markup | None:
    terms = terms_in(*accounts.explained(shown))
    if not terms:
        return None
    lines = [
        element("p", element("dfn", term.name), f": {accounts.sentence(term.meaning)}")
        for term in terms
    ]
    return joined(element("h3", "Terms used above"), element("div", *lines, class_="terms"))


def _traceback(boxes: Sequence[Box], verdict: RunVerdict) -> Markup | None:
    box = failed_box(boxes, verdict)
    if box is None:
        return None
    caption = f"Traceback of rank {box.identity.rank}"
    return element("details", element("summary", caption), element("pre", box.traceback), open="")


def _step_times(box: Box) -> Markup | None:
    breakdown = breakdown_of(box)
    if breakdown is None:
        return None
    of = f" of rank {box.identity.rank}" if box.identity.world_size > 1 else ""
    rows = [
        element(
            "tr",
            element("td", phase.words),
            element("td", step_time(seconds)),
            element("td", percent(share)),
        )
        for phase, seconds, share in breakdown.shares
    ]
    return joined(
        element("h3", f"Where the time of a step{of} goes"),
        element("p", f"{step_time(breakdown.seconds)} a step, {breakdown.source}.", class_="muted"),
        element("table", *rows, class_="numbers"),
        *[element("p", note, class_="muted") for note in notes(box, breakdown)],
    )


def _rank_details(box: Box) -> Markup:
    who, state = box.identity, state_of(box)
    numbers = {
        "iterations": iterations(box),
        "optimizer steps attempted": state.attempted,
        **{f"skipped, {c.label}": n for c, n in state.skips.items()},
        "growths of the scale": FACTS["amp/growths"].read(state),
        "backoffs of the scale": FACTS["amp/backoffs"].read(state),
        "iterations with a NaN or infinite loss": FACTS["amp/nonfinite_losses"].read(state),
    }
    origin = asdict(who) | {"started": when(who.started_ns)}
    return element(
        "details",
        element("summary", f"Rank {who.rank}: totals, versions, settings, the steps around"),
        _table(numbers, "what", "total"),
        _table(origin, "origin", "value"),
        _table(box.facts, "fact", "value"),
        _table(box.settings, "setting", "value"),
        _steps(box),
    )


def _table(rows: Mapping[str, object], name: str, value: str) -> Markup | None:
    if not rows:
        return None
    head = element("tr", element("th", name), element("th", value))
    body = [
        element("tr", element("td", key), element("td", "" if item is None else str(item)))
        for key, item in rows.items()
    ]
    return element("table", head, *body)


def _steps(box: Box) -> Markup | None:
    if not box.steps:
        return None
    alarms = [f.first_step for f in box.findings if f.severity is not Severity.INFO]
    middle = min(alarms, default=box.steps[-1].step)
    shown = [s for s in box.steps if abs(s.step - middle) <= MAX_ROWS // 2] or box.steps[-MAX_ROWS:]
    names = StepRecord.__struct_fields__
    head = element("tr", *[element("th", name.replace("_", " ")) for name in names])
    body = [element("tr", *[element("td", _cell(getattr(s, n))) for n in names]) for s in shown]
    return element("div", element("table", head, *body, class_="steps"), class_="scroll")


def _cell(value: object) -> str:
    if isinstance(value, SkipClass):
        return value.label
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, tuple):
        return " ".join(accounts.figure(part) for part in value)
    return accounts.figure(value) if isinstance(value, float) else str(value)


def _footer(boxes: Sequence[Box]) -> Markup:
    box = max(boxes, key=lambda box: box.written_ns)
    by = {"training": "the training itself", "daemon": "the daemon of its machine"}
    caption = (
        f"Written {when(box.written_ns)} by {by.get(box.written_by, 'ampwatch report')}; the run was"
        f" watched by ampwatch {box.identity.version}"
        f"{', without its C part' if WITHOUT_C in box.facts else ''}, this page made by {__version__}."
    )
    return element("footer", caption)


def when(time_ns: int) -> str:
    """Write a Unix time in nanoseconds as date and time in UTC."""
    try:
        moment = datetime.fromtimestamp(time_ns // 1_000_000_000, tz=timezone.utc)
    except (OverflowError, ValueError, OSError):
        return "at an unknown time"
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
