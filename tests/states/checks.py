"""One check for each way out: what it says of a state that is not so."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from ampwatch.numerics.written import scale_text
from ampwatch.report.words import number, percent, power_of_two
from tests.alerts.rules import alerts
from tests.states.asked import Shown
from tests.states.rules import Alert
from tests.states.score import Seen
from tests.states.series import Scraped
from tests.states.table import COLLAPSING, NEVER_TRUE, WORST, Root, Row
from tests.states.words import matches, strangers, visible

_shipped = cache(alerts)

MAX_LINE = 250
"""Characters of a line in the log, without the address of the page."""

_SEVERITIES = ("critical", "warning", "info")

LOST = 0.02
"""How far two shares of lost elements may be apart: they are of different samples."""


def _wrong(what: str, expected: Any, got: Any) -> str:
    return f"{what}: expected {expected!r}, got {got!r}"


# What is true, from the training itself.


def training_of(seen: Seen, row: Row) -> str:
    """Return the name of the training of a row: the second of two has a label of its own."""
    trainings = seen.played.act.trainings
    return trainings[-1 if row.run.endswith("~2") else 0].name


def findings_of(seen: Seen, row: Row, rank: int = 0) -> list[dict[str, Any]]:
    """Return ``watch.findings`` when somebody looks, or just before the end.

    Those of a rank that has ended by an exception are what was reported of them last.
    """
    training = training_of(seen, row)
    kept = [n["finding"] for n in seen.played.notes("findings", rank, training)]
    if kept:
        return kept
    newest = {_key(n["finding"]): n["finding"] for n in seen.played.notes("found", rank, training)}
    return list(newest.values())


def _key(finding: dict[str, Any]) -> str:
    return f"{finding['kind']}@{finding['where']}"


def truth_of(seen: Seen, row: Row, rank: int = 0) -> list[dict[str, Any]]:
    """Return what the training has counted itself, step by step."""
    return seen.played.notes("truth", rank, training_of(seen, row))


def _fits(root: Root, finding: dict[str, Any]) -> bool:
    return (
        finding["kind"] in root.kinds
        and root.where in (None, finding["where"])
        and finding["op"] == root.op
        and finding["first_step"] in root.since
    )


def _alarming_roots(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [f for f in found if f["root"] and f["severity"] != "info"]


def _roots(row: Row, found: list[dict[str, Any]]) -> Iterator[str]:
    """Complain about the roots among findings."""
    roots = _alarming_roots(found)
    named = [(f["kind"], f["where"], f["op"], f["first_step"]) for f in roots]
    if row.root is None:
        if roots:
            yield _wrong("root", None, named)
        return
    wanted = (row.root.kinds[0], row.root.where, row.root.op, row.root.since)
    if len(roots) != 1 or not _fits(row.root, roots[0]):
        yield _wrong("root", wanted, named)
    worst = max((f["severity"] for f in found), key=WORST.__getitem__, default="")
    if worst != row.root.severity:
        yield _wrong("worst severity", row.root.severity, worst)


def _sentences(row: Row, text: str, what: str) -> Iterator[str]:
    """Complain about sentences that are false in this state."""
    for found in matches(text, (*NEVER_TRUE, *row.denies)):
        yield f"{what}: must not say {found}"


def _says(row: Row, text: str, what: str) -> Iterator[str]:
    for pattern in row.says:
        if not re.search(pattern, text):
            yield f"{what}: expected a word of {pattern!r}, got {' '.join(text.split())[:160]!r}"


def _tells(row: Row, text: str, what: str) -> Iterator[str]:
    """Complain about a sentence of the root that leaves out what only it can tell."""
    for pattern in row.tells:
        if not re.search(pattern, text):
            yield f"{what}: expected {pattern!r} in {' '.join(text.split())[:240]!r}"


def _growth_interval(seen: Seen, text: str, what: str) -> Iterator[str]:
    """Complain about advice to set a growth interval that is no smaller than the one in use."""
    used = (seen.played.act.trainings[-1].scaler or {}).get("growth_interval", 2000)
    for advised in re.findall(r"growth_interval=(\d+)", text):
        if int(advised) >= used:
            yield f"{what}: advises growth_interval={advised} to a run that uses {used}"


def _known_numbers(seen: Seen, row: Row) -> list[float]:
    """Return the numbers that anybody could check: of findings, of steps, of what is exported."""
    known: list[float] = []
    for rank in range(seen.played.act.world_size):
        for finding in findings_of(seen, row, rank):
            evidence = {n: v for n, v in finding["evidence"].items() if isinstance(v, (int, float))}
            known += evidence.values()
            # A share is written in whole percent, and a time of less than a second in milliseconds.
            known += [float(f"{v:.2f}") for name, v in evidence.items() if name.endswith("_share")]
            known += [1e3 * v for name, v in evidence.items() if "_seconds" in name]
            known += [finding[name] for name in ("first_step", "last_step", "count")]
    truth = truth_of(seen, row)
    skipped = sum(not t["finite_gradients"] for t in truth)
    known += [len(truth), len(truth) - 1, skipped]
    known.append(seen.played.act.world_size)
    if seen.played.act.killed is not None:  # the others, which it has ended
        known.append(seen.played.act.world_size - 1)
    known += [t for last in truth[-1:] for t in (last["scale"], last["zeros"]) if t is not None]
    known += [
        v
        for s in seen.scraped.series.values()
        if _is_of(row, s.labels) and (v := s.values[-1]) is not None
    ]
    known += [65504.0, 1.0, 0.0]
    return [value for value in known if math.isfinite(value)]


def _is_of(row: Row, labels: dict[str, str]) -> bool:
    return labels.get("run") == row.run


# The ways out.


def findings(seen: Seen, row: Row) -> list[str]:
    """``watch.findings``."""
    found = findings_of(seen, row)
    truth = truth_of(seen, row)
    complaints = list(_roots(row, found))
    for finding in found:
        scale = finding["evidence"].get("loss_scale")
        # What is over is followed by newer numbers: those have a step of their own.
        step = int(finding["evidence"].get("newest_step", finding["last_step"]))
        if scale is None or step >= len(truth):
            continue
        # The scale after the step, or that which the step was taken with.
        then = [truth[s]["scale"] for s in (step, step - 1) if s >= 0]
        if scale not in then:
            complaints.append(_wrong(f"loss_scale of {_key(finding)} at step {step}", then, scale))
        if "lost_share" in finding["evidence"] and row.lost is not None:
            share = finding["evidence"]["lost_share"]
            if finding["last_step"] > len(truth) - 32 and abs(share - row.lost) > LOST:
                complaints.append(_wrong(f"lost_share of {_key(finding)}", row.lost, share))
    if row.root is not None:
        root = " ".join(f["summary"] for f in found if _fits(row.root, f))
        complaints += _tells(row, root, "the root")
    text = " ".join(f"{f['summary']} {f['advice']}" for f in found)
    complaints += _sentences(row, text, "a finding")
    complaints += _growth_interval(seen, text, "a finding")
    return complaints


def page(seen: Seen, row: Row) -> list[str]:
    """The state that the page is sent."""
    run = seen.played.page["runs"].get(row.run)
    if run is None:
        return [_wrong("run", row.run, list(seen.played.page["runs"]))]
    speaker = 0 if row.cause is None else row.cause[0]
    complaints = []
    if run["level"] != row.level:
        complaints.append(_wrong("level", row.level, run["level"]))
    if run["speaker"] != speaker:
        complaints.append(_wrong("speaker", speaker, run["speaker"]))
    of_rank = run["ranks"][str(speaker)]
    found = list(of_rank["findings"].values())
    complaints += _roots(row, found)
    if row.root is not None:
        told = [f["summary"].rstrip(".") for f in found if _fits(row.root, f)]
        if not any(summary in run["sentence"] for summary in told):
            complaints.append(_wrong("headline", told or row.root, run["sentence"]))
    complaints += _figures(row, of_rank["figures"])
    complaints += _four_lines(row, run["headline"])
    headline = f"{run['sentence']}. {run['advice']}"
    complaints += _says(row, headline, "headline")
    complaints += _tells(row, run["sentence"], "headline")
    complaints += _sentences(row, headline, "headline")
    complaints += _growth_interval(seen, headline, "headline")
    known = [*_known_numbers(seen, row), seen.played.act.later]
    known += [
        float(n.replace("\u202f", ""))
        for f in of_rank["figures"].values()
        for n in re.findall(r"\d[\d\u202f.]*", " ".join(f[:2]))
        if n.strip(".")
    ]
    complaints += [
        f"headline: {n} is none of the numbers beside it" for n in strangers(run["sentence"], known)
    ]
    shown = " ".join(f"{f['summary']} {f['advice']}" for f in found if f["current"])
    return complaints + list(_sentences(row, shown, "a current finding"))


def _four_lines(row: Row, lines: dict[str, Any]) -> Iterator[str]:
    """Complain about the four lines of the headline, as far as the table knows what they must say."""
    if not lines["state"].startswith(row.level):
        yield _wrong("state", row.level, lines["state"])
    text = " | ".join(lines[name] for name in ("state", "cause", "where", "remedy"))
    yield from _sentences(row, text, "four lines")
    if row.cause is not None and row.cause[1] not in lines["state"]:
        yield _wrong("state", row.cause[1], lines["state"])
    root = row.root
    # What is over may be told in the words of what it has left behind.
    if root is None or root.is_over:
        return
    if not any(f"since step {step}" in lines["state"] for step in root.since):
        yield _wrong("state", root.since, lines["state"])
    for words in filter(None, [root.op, root.place.removeprefix("module ")]):
        if words not in f"{lines['cause']} {lines['where']}":
            yield _wrong("cause", words, lines["cause"])


def _figures(row: Row, figures: dict[str, list[str]]) -> Iterator[str]:
    shown_scale = "none" if row.scale is None else power_of_two(row.scale) or number(row.scale)
    if figures["Loss scale"][0] != shown_scale:
        yield _wrong("tile Loss scale", shown_scale, figures["Loss scale"][0])
    if row.lost is None or row.scale is None:
        return
    shown = figures.get("Underflow share", [""])[0]
    near = {percent(row.lost)} if row.lost in (0.0, 1.0) else None
    if near is not None and shown not in near:
        yield _wrong("tile Underflow", percent(row.lost), shown)


def metrics(seen: Seen, row: Row) -> list[str]:
    """``/metrics``."""
    scraped, complaints = seen.scraped, []
    speaker = "0" if row.cause is None else str(row.cause[0])
    of = {"run": row.run, "rank": speaker}
    words = [
        dict(k)["health"] for k, v in scraped.now("ampwatch_run_health", **of).items() if v == 1
    ]
    if words != [row.label]:
        complaints.append(_wrong("ampwatch_run_health", row.label, words))
    roots = [dict(k) for k in scraped.now("ampwatch_root_info", run=row.run)]
    complaints += _root_info(row, roots)
    scale = scraped.one("ampwatch_loss_scale", **of)
    if scale != row.scale:
        complaints.append(_wrong("ampwatch_loss_scale", row.scale, scale))
    share = _lost_lately(scraped, of)
    if (
        row.lost is not None
        and row.scale is not None
        and (share is None or abs(share - row.lost) > LOST)
    ):
        complaints.append(_wrong("underflow of elements in the last two minutes", row.lost, share))
    failures = [dict(k) for k in scraped.now("ampwatch_rank_failure_info", run=row.run)]
    causes = [(int(f["rank"]), f["error"]) for f in failures if f["cause"] == "true"]
    wanted = [] if row.cause is None else [row.cause]
    if causes != wanted:
        complaints.append(_wrong("ampwatch_rank_failure_info", wanted, failures))
    return complaints


def _root_info(row: Row, roots: list[dict[str, str]]) -> Iterator[str]:
    if row.root is None or (row.root.is_over and not roots):
        if roots:
            yield _wrong("ampwatch_root_info", None, roots)
        return
    root = row.root
    if len(roots) != 1:
        yield _wrong("ampwatch_root_info", (root.kinds[0], root.place, root.op), roots)
        return
    (got,) = roots
    if got["kind"] not in root.kinds or got["op"] != root.op:
        yield _wrong("ampwatch_root_info", (root.kinds[0], root.place, root.op), got)
    elif root.where is not None and got["place"] != root.place:
        yield _wrong("place of ampwatch_root_info", root.place, got["place"])
    if int(got["first_step"]) not in root.since:
        yield _wrong("first_step of ampwatch_root_info", root.since, got["first_step"])
    if got["severity"] != root.severity and not root.is_over:
        yield _wrong("severity of ampwatch_root_info", root.severity, got["severity"])


def _lost_lately(scraped: Scraped, of: dict[str, str]) -> float | None:
    """Return the share that the counters say was lost in the last two minutes."""

    def risen(name: str) -> float:
        (series,) = (
            s
            for s in scraped.series.values()
            if s.name == name and all(s.labels[k] == v for k, v in of.items())
        )
        there = [v for v in series.values if v is not None]
        # A rank that hangs or has ended counts no more: the last two minutes that it has counted.
        moved = max((i for i in range(1, len(there)) if there[i] != there[i - 1]), default=0)
        last = max(moved, last_move.setdefault("at", moved))
        return there[last] - there[max(0, last - 8)]

    last_move: dict[str, int] = {}
    elements = risen("ampwatch_gradient_elements_total")
    return risen("ampwatch_gradient_underflow_elements_total") / elements if elements else None


def rules(seen: Seen, row: Row) -> list[str]:
    """Recording rules."""
    recorded = {
        name: [value for labels, value in samples if _is_of(row, labels)]
        for name, samples in seen.evaluated.recorded.items()
    }
    complaints = []
    collapsing = recorded.get("run_rank:ampwatch_loss_scale_collapsing:last", [])
    if collapsing and set(COLLAPSING) <= set(row.denies):
        complaints.append(_wrong("run_rank:ampwatch_loss_scale_collapsing:last", [], collapsing))
    forecast = recorded.get("run_rank:ampwatch_loss_scale_to_floor:seconds5m", [])
    if forecast and set(COLLAPSING) <= set(row.denies):
        complaints.append(_wrong("run_rank:ampwatch_loss_scale_to_floor:seconds5m", [], forecast))
    name = "run_rank:ampwatch_gradient_underflow_elements_per_gradient_elements:ratio_rate15m"
    shares = recorded.get(name, [])
    truth = truth_of(seen, row)
    # Of a run that hangs or has ended there is no rate.
    is_running = seen.played.act.look == "running"
    if row.lost in (0.0, 1.0) and row.scale is not None and is_running:
        true = sum(t["zeros"] / t["elements"] for t in truth) / len(truth)
        # Steps of which nothing is sampled are among the true ones.
        if len(shares) != 1 or abs(shares[0] - true) > 0.2:
            complaints.append(_wrong(name, true, shares))
    return complaints


def alerting(seen: Seen, row: Row) -> list[str]:
    """Alerts: which fire, and which somebody is told of."""
    told = {name: m for m in seen.messages if _is_about(row, m.alerts) for name in m.names}
    firing = {a.name for a in seen.evaluated.at(seen.played.looked_at) if _is_of(row, a.labels)}
    complaints = [
        _wrong("told", " or ".join(either), sorted(told))
        for either in row.fires
        if not told.keys() & set(either)
    ]
    complaints += [f"{name} fires" for name in row.silent if name in firing]
    if not row.pages:
        for alert in _first_of_each(seen, row):
            step = (alert.time - seen.played.act.time_of(-1)) / 2
            complaints.append(f"a false alarm: {alert.name} at {step:.0f} steps")
    severities = {m.severity for m in told.values()} - {"info"}
    worst = max(severities, key=WORST.__getitem__, default="")
    is_running = seen.played.act.look == "running"
    is_due = row.is_told and row.root is not None and not row.root.is_over
    if is_running and is_due and row.root is not None and worst != row.root.severity:
        complaints.append(_wrong("severity of alerts", row.root.severity, worst))
    return complaints


def _is_about(row: Row, alerts_in: list[dict[str, Any]]) -> bool:
    return any(_is_of(row, alert["labels"]) for alert in alerts_in)


def _first_of_each(seen: Seen, row: Row) -> list[Alert]:
    found: dict[str, Alert] = {}
    for alert in seen.evaluated.alerts:
        if alert.severity != "info" and _is_of(row, alert.labels):
            found.setdefault(alert.name, alert)
    return list(found.values())


def alert_texts(seen: Seen, row: Row) -> list[str]:
    """Alerts as they are read."""
    complaints: list[str] = []
    known = _known_numbers(seen, row)
    for samples in seen.evaluated.recorded.values():
        known += [value for labels, value in samples if _is_of(row, labels)]
    expected = {name for either in row.fires for name in either}
    for message in (m for m in seen.messages if _is_about(row, m.alerts)):
        text, what = f"{message.title}\n{message.text}", " and ".join(message.names)
        if row.run not in message.title:
            complaints.append(_wrong(f"run in the title of {what}", row.run, message.title))
        complaints += _sentences(row, text, what)
        complaints += _growth_interval(seen, text, what)
        if message.severity == "info":
            continue
        if re.search(r"\(several\)|\bon several\b", message.text):
            complaints.append(f"{what}: names a host 'several'")
        if not re.search(r"#run=", text):
            complaints.append(f"{what}: no link to the page")
        if expected & set(message.names):
            complaints += _says(row, text, what)
            if row.root is not None and row.root.place and row.root.place not in text:
                complaints.append(
                    _wrong(f"place in {what}", row.root.place, " ".join(message.text.split())[:200])
                )
        shipped = [_shipped()[name] for name in message.names]
        template = " ".join(text for each in shipped for text in each.annotations.values())
        odd = strangers(message.text, known, template)
        complaints += [f"{what}: {n} is a number of nothing that is exported" for n in odd]
    return complaints


def boards(seen: Seen, row: Row) -> list[str]:
    """Queries of the dashboards."""
    mine = [s for s in seen.shown if s.labels.get("run", row.run) == row.run]
    complaints = [*seen.untrue[row.run], *_tables_of_trouble(row, mine)]
    for shown in mine:
        place = f"{shown.board}: {shown.panel}"
        if _is_state(shown) and not shown.text.startswith(row.level):
            complaints.append(_wrong(f"{place}: State", row.level, shown.text))
        if shown.title == "Loss scale" and shown.panel == "Loss scale" and shown.value != row.scale:
            complaints.append(_wrong(place, row.scale, shown.value))
        if re.search(r"become infinite", shown.panel) and set(COLLAPSING) <= set(row.denies):
            complaints.append(
                f"{place}: forecasts {shown.value:.0f} s to a run that loses no steps"
            )
        if _is_lost(shown) and row.lost in (0.0, 1.0) and abs(shown.value - row.lost) > LOST:
            complaints.append(_wrong(f"{place} ({shown.labels})", row.lost, shown.value))
        is_finding = "kind" in shown.labels and shown.labels.get("severity") != "info"
        if is_finding and row.root is None and "Finding" in shown.panel:
            complaints.append(f"{place}: shows {shown.labels} of a run without findings")
    if not any(_is_state(s) for s in mine):
        complaints.append("no panel shows the state in a word")
    if row.lost == 1.0 and not any(_is_lost(s) for s in mine):
        complaints.append("no panel shows the share that is lost")
    return complaints


def _tables_of_trouble(row: Row, mine: list[Shown]) -> Iterator[str]:
    """Complain about the rows that say what broke, and whose end made the others end."""
    for board in ("overview", "run"):
        broke = (s for s in mine if s.board == board and s.panel.startswith("What broke"))
        yield from _root_info(row, [{"op": "", **s.labels} for s in broke])
    for board in ("ranks", "run"):
        ended = (s for s in mine if s.board == board and s.panel.startswith("Which rank made"))
        causes = [
            (int(s.labels["rank"]), s.labels["error"]) for s in ended if s.labels["cause"] == "true"
        ]
        wanted = [] if row.cause is None else [row.cause]
        if causes != wanted:
            yield _wrong(f"{board}: cause of the end", wanted, causes)


def _is_state(shown: Any) -> bool:
    """Return whether the panel says in a word how a run goes; that of a process is another thing."""
    is_of_runs = shown.panel in ("State", "Runs") or "ampwatch_run_health" in shown.written
    return bool(is_of_runs and "State" in shown.title and shown.text)


def _is_lost(shown: Any) -> bool:
    if "underflow_elements" in shown.written:
        return "increase" in shown.written or "rate" in shown.written
    return "module_gradient_underflow_ratio" in shown.written and shown.panel == "Lost to the dtype"


def log(seen: Seen, row: Row) -> list[str]:
    """The log of the training."""
    training = training_of(seen, row)
    lines = seen.played.notes("log", 0, training)
    warned = [line for line in lines if line["level"] not in ("INFO", "DEBUG")]
    found = [f for f in findings_of(seen, row) if f["severity"] != "info"]
    run = seen.played.act.trainings[-1].run_name
    complaints = [f"not on one line: {w['text'][:60]!r}" for w in warned if "\n" in w["text"]]
    complaints += [
        f"{len(w['text'])} characters: {w['text'][:60]!r}"
        for w in warned
        if len(w["text"].partition(" http")[0]) > MAX_LINE
    ]
    if not found and warned:
        complaints.append(_wrong("warnings", [], [w["text"][:80] for w in warned]))
    for finding in found:
        mine = [w for w in warned if finding["kind"] in w["text"]]
        if not mine and finding["root"]:
            complaints.append(f"no line about {_key(finding)}")
            continue
        for word in (run, "step"):
            if mine and word not in mine[-1]["text"]:
                complaints.append(
                    f"no {word!r} in the line about {_key(finding)}: {mine[-1]['text'][:80]!r}"
                )
        if mine and not any(re.search(rf"(?i)\b{finding['severity']}\b", w["text"]) for w in mine):
            complaints.append(f"never called {finding['severity']}: {_key(finding)}")
    complaints += [f"an error of its own: {w['error']}" for w in warned if w["error"]]
    text = " ".join(w["text"] for w in warned)
    if not any("127.0.0.1" in line["text"] for line in lines):
        complaints.append("the address of the page is not there")
    return complaints + [f"must not say {m}" for m in matches(text, NEVER_TRUE)]


def webhook(seen: Seen, row: Row) -> list[str]:
    """The user's webhook."""
    training = training_of(seen, row)
    bodies = seen.played.posted.get((training, 0), [])
    newest = {_key(b["finding"]): b for b in bodies}
    complaints = []
    for finding in findings_of(seen, row):
        if finding["severity"] == "info":
            continue
        body = newest.get(_key(finding))
        if body is None:
            if finding["root"]:
                complaints.append(f"nothing about {_key(finding)}")
            continue
        # Of a root that of its story: who was told that it is critical is not told again when the
        # root becomes as bad as what it explains.
        story = [f for f in findings_of(seen, row) if f["caused_by"] == _key(finding)]
        worst = min((f["severity"] for f in (finding, *story)), key=_SEVERITIES.index)
        # A root that was explained later was worse when it was posted.
        if _SEVERITIES.index(body["severity"]) > _SEVERITIES.index(worst):
            complaints.append(_wrong(f"severity of {_key(finding)}", worst, body["severity"]))
    complaints += list(_wrong_roots_posted(row, bodies))
    if not [f for f in findings_of(seen, row) if f["severity"] != "info"] and bodies:
        complaints.append(_wrong("posts", [], sorted(newest)))
    return complaints


def _wrong_roots_posted(row: Row, bodies: list[dict[str, Any]]) -> Iterator[str]:
    """Complain if the last word about a root is not the truth."""
    newest = {_key(b["finding"]): b["finding"] for b in bodies}
    if row.root is None:
        return
    posted = [b["finding"]["summary"] for b in bodies if _fits(row.root, b["finding"])]
    if not any(_fits(row.root, f) for f in newest.values()):
        yield _wrong("root among the posts", row.root.kinds, sorted(newest))
    else:
        # What comes first wakes somebody, and nobody waits for a second one.
        yield from _tells(row, posted[0], "the first post")


def report_text(seen: Seen, row: Row) -> list[str]:
    """``ampwatch report``."""
    if _is_first_of_two(seen, row):
        return []
    text = seen.played.report("text")
    return [*_report(seen, row, text), *_head_of_report(row, text), *_traceback(row, text)]


def _is_first_of_two(seen: Seen, row: Row) -> bool:
    # ``ampwatch report`` is about the run that was started last.
    return len(seen.played.act.trainings) > 1 and not row.run.endswith("~2")


def _report(seen: Seen, row: Row, text: str) -> Iterator[str]:
    flat = " ".join(text.split())
    if not re.search(rf"(?i)\b{row.level}\b", flat[:1500]):
        yield _wrong("state", row.level, flat[:200])
    yield from _says(row, flat, "the report")
    yield from _tells(row, flat, "the report")
    yield from _sentences(row, flat, "the report")
    yield from _growth_interval(seen, flat, "the report")
    if row.root is not None and row.root.place and row.root.place not in flat:
        yield f"the report: no {row.root.place!r}"
    if row.scale is not None:
        ways = {scale_text(row.scale), power_of_two(row.scale), number(row.scale)} - {""}
        if not any(way in flat for way in ways):
            yield _wrong("loss scale", scale_text(row.scale), flat[:200])


def _head_of_report(row: Row, text: str) -> Iterator[str]:
    """Complain about what comes first."""
    heads = re.findall(r"(?m)^(CRITICAL|WARNING)\s+(\w+)", text)
    if row.root is None:
        if heads:
            yield _wrong("findings", [], heads)
    elif not heads or heads[0][1] not in row.root.kinds or heads[0][0].lower() != row.root.severity:
        yield _wrong("first finding", (row.root.severity.upper(), row.root.kinds[0]), heads)


def _traceback(row: Row, text: str) -> Iterator[str]:
    if row.cause is None:
        return
    ranks = [int(n) for n in re.findall(r"Traceback \(rank (\d+)\)", text)]
    wanted = [] if row.cause[1] == "killed" else [row.cause[0]]
    if ranks != wanted:
        yield _wrong("traceback of rank", wanted, ranks)


def report_json(seen: Seen, row: Row) -> list[str]:
    """``ampwatch report --json``."""
    if _is_first_of_two(seen, row):
        return []
    document = json.loads(seen.played.report("json"))
    speaker = 0 if row.cause is None else row.cause[0]
    (rank,) = (r for r in document["ranks"] if r["identity"]["rank"] == speaker)
    complaints = list(_roots(row, rank["findings"]))
    last = rank["steps"]["rows"][-1][rank["steps"]["columns"].index("loss_scale")]
    if last != ("NaN" if row.scale is None else row.scale):
        complaints.append(_wrong("loss_scale", row.scale, last))
    verdict = document.get("verdict") or {}
    if verdict.get("level") != row.level:
        complaints.append(_wrong("level of the verdict", row.level, verdict.get("level")))
    complaints += _tells(row, str(verdict.get("sentence")), "the verdict")
    known = {_key(f): f["severity"] for f in findings_of(seen, row, speaker)}
    got = {_key(f): f["severity"] for f in rank["findings"]}
    if known != got:
        complaints.append(_wrong("findings", known, got))
    return complaints


def report_html(seen: Seen, row: Row) -> list[str]:
    """``ampwatch report --html``."""
    if _is_first_of_two(seen, row):
        return []
    return list(_report(seen, row, visible(seen.played.report("html"))))


def own_report(seen: Seen, row: Row) -> list[str]:
    """``watch.report()``, where the training can still be asked."""
    if seen.played.act.look == "ended":
        return []
    (kept,) = seen.played.notes("reports", 0, training_of(seen, row))
    text = kept["text"]
    # A run that hangs cannot say so itself.
    said = [] if seen.played.act.look == "silent" else list(_report(seen, row, text))
    return [*said, *_head_of_report(row, text)]


WAYS: dict[str, Callable[[Seen, Row], list[str]]] = {
    "findings": findings,
    "page": page,
    "metrics": metrics,
    "rules": rules,
    "alerts": alerting,
    "alert texts": alert_texts,
    "dashboards": boards,
    "log": log,
    "webhook": webhook,
    "watch.report": own_report,
    "report": report_text,
    "report json": report_json,
    "report html": report_html,
}
"""The check of each way out by its name."""
