"""One page of results: Markdown to read, JSON to keep."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from benchmarks.gpu.steps import GREEN, MODULE, RED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.gpu.steps import Outcome

FACTS = ("gpu", "driver", "cuda", "torch", "triton", "python", "ampwatch")


def command_alone(name: str, device: str) -> str:
    """Return the command that shows one step alone."""
    more = "" if device == "cuda" else f" --device {device}"
    return f"python3 -m {MODULE} --only {name}{more}"


def as_json(outcomes: Sequence[Outcome], date: str, device: str) -> dict[str, Any]:
    """Return everything that was found."""
    return {
        "date": date,
        "device": device,
        "facts": dict(facts(outcomes)),
        "steps": [asdict(outcome) for outcome in outcomes],
    }


def facts(outcomes: Sequence[Outcome]) -> Mapping[str, Any]:
    """Return what the first step has said of the machine."""
    rows = [outcome.rows for outcome in outcomes if outcome.step.name == "machine"]
    return rows[0][0] if rows and rows[0] else {}


def as_markdown(outcomes: Sequence[Outcome], date: str, device: str) -> str:
    """Return the page: what ran where, what is red and how to see it alone, and all figures."""
    known = facts(outcomes)
    counts = {state: sum(o.state == state for o in outcomes) for state in (GREEN, RED)}
    words = [f"{name} {known[name]}" for name in FACTS if known.get(name)]
    rehearsal = (
        "" if device == "cuda" else " A rehearsal without a GPU: no figure here means anything."
    )
    parts = [
        f"# A run on a GPU, {date}",
        f"{', '.join(words) or 'unknown machine'}.{rehearsal}",
        f"{counts[GREEN]} green, {counts[RED]} red, {len(outcomes) - sum(counts.values())} left out.",
        table(
            [
                {
                    "step": o.step.name,
                    "": o.state,
                    "s": f"{o.seconds:.1f}",
                    "question": o.step.question,
                    "answer": o.said,
                }
                for o in outcomes
            ]
        ),
    ]
    reds = [o for o in outcomes if o.state == RED]
    if reds:
        parts.append("## Red")
    for outcome in reds:
        lines = "\n".join(f"- {_cell(red)}" for red in outcome.reds)
        parts.append(f"`{command_alone(outcome.step.name, device)}`\n\n{lines}")
    for outcome in outcomes:
        if outcome.rows:
            aim = f" (aim: {outcome.step.aim})" if outcome.step.aim else ""
            parts.append(f"## {outcome.step.name}{aim}\n\n{table(outcome.rows)}")
    return "\n\n".join(parts) + "\n"


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as a Markdown table; a row may lack a column."""
    heads = list(dict.fromkeys(head for row in rows for head in row))
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    lines += [f"| {' | '.join(_cell(row.get(head, '')) for head in heads)} |" for row in rows]
    return "\n".join(lines)


def _cell(value: object) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return " ".join(text.replace("|", "\\|").split())
