"""States of runs and findings: as numbers that can be compared, and in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.diagnosis.kinds.registry import RELEASED
from ampwatch.report.accounts import first_sentence
from ampwatch.report.verdict import Level
from dashboards.source.fields import BAD, GOOD, NEUTRAL, NOTE, WARN, words
from dashboards.source.links import DOCS, field, to_page
from dashboards.source.queries import any_of, having, of
from dashboards.source.tables import Column, Key

if TYPE_CHECKING:
    from collections.abc import Iterable

_COLORS = {
    Level.FAILING: BAD,
    Level.BROKEN: BAD,
    Level.FAILED: BAD,
    Level.STALE: WARN,
    Level.ATTENTION: WARN,
    Level.CALIBRATING: NOTE,
    Level.STARTING: NOTE,
    Level.HEALTHY: GOOD,
    Level.FINISHED: NEUTRAL,
}
"""Colours of the states of a run, as on the page of the daemon."""

_NUMBERS = {level: len(Level) - level.badness for level in Level}
"""The worse, the larger: the maximum over ranks is the state of a run."""

HEALTH_WORDS = words({_NUMBERS[level]: (level.value, _COLORS[level]) for level in Level})
"""The words of the page of the daemon, the worst first."""

TROUBLE = tuple(level for level in Level if level.badness <= Level.STALE.badness)
"""States in which a rank does not come to a good end by itself."""

STATE_WORDS = words(
    {
        4: ("failed", BAD),
        3: ("stale", WARN),
        2: ("running", GOOD),
        1: ("finished", NEUTRAL),
        0: ("unknown", NEUTRAL),
    }
)
"""What has become of the process of a rank, whatever its numbers are; the worse, the larger."""

SEVERITY_WORDS = words({3: ("critical", BAD), 2: ("warning", WARN), 0: ("none", GOOD)})


def state(by: str) -> str:
    """Return PromQL of the worst state of a process, as the numbers of ``STATE_WORDS``.

    Ranks are aggregated before the states are compared: with a thousand of them that is ten times
    as fast as the other way round.

    Args:
        by: The labels that tell the rows apart, with commas between them.
    """
    parts = (
        f"{number} * max by ({by}) ({of('ampwatch_run_state', having('state', name))}) > 0"
        for name, number in {"failed": 4, "stale": 3, "running": 2, "finished": 1}.items()
    )
    return f"({' or '.join(parts)})"


def health(by: str, levels: Iterable[Level] = Level) -> str:
    """Return PromQL of the state of the worst rank, as the numbers of ``HEALTH_WORDS``.

    Args:
        by: The labels that tell the rows apart, with commas between them.
        levels: The states that are asked for; a row in none of them is left out.
    """
    parts = (
        f"{_NUMBERS[level]} * max by ({by})"
        f" ({of('ampwatch_run_health', having('health', level.label))}) > 0"
        for level in levels
    )
    return f"({' or '.join(parts)})"


def severity(by: str) -> str:
    """Return PromQL of how severe what is wrong now is, as the numbers of ``SEVERITY_WORDS``.

    A run that ended broken or failed keeps what was wrong at its end.

    Args:
        by: The labels that tell the rows apart, with commas between them.
    """
    parts = (
        f"{number} * max by ({by}) ({of('ampwatch_root_info', having('severity', name))})"
        for name, number in {"critical": 3, "warning": 2}.items()
    )
    return f"({' or '.join(parts)} or 0 * max by ({by}) ({of('ampwatch_run_info')}))"


def critical(by: str) -> str:
    """Return PromQL of 1 for each run of which something critical is wrong, or was at its end.

    Args:
        by: The labels that tell the rows apart, with commas between them.
    """
    broken = of("ampwatch_run_health", any_of("health", Level.FAILING.label, Level.BROKEN.label))
    root = of("ampwatch_root_info", having("severity", "critical"))
    return f"(max by ({by}) ({root}) or max by ({by}) ({broken}) == 1)"


ADVICE_WORDS = words({row.slug: (first_sentence(row.advice), NEUTRAL) for row in RELEASED})
"""The first sentence of the advice for each kind of finding; the page behind it has the rest."""

_PAGE = to_page("What it means and what to change", f"{DOCS}/diagnoses/{field('Finding')}.md")

_SEEN = of("ampwatch_finding_last_seen_timestamp_seconds")

FINDING_KEYS = (
    Key(label="kind", title="Finding", links=(_PAGE,), width=210),
    Key(label="severity", title="Severity", width=90),
    Key(label="root", title="Root cause", width=100),
)
"""Labels by which findings differ, beside the run."""

ADVICE_KEY = Key(label="advice", title="What to change", mappings=(ADVICE_WORDS,))


def finding_columns(by: str) -> tuple[Column, ...]:
    """Return when findings were last seen, and on how many ranks at how many places.

    Args:
        by: The labels that tell the rows apart, with commas between them.
    """
    labelled = 'label_replace({}, "advice", "$1", "kind", "(.+)")'
    by = f"{by}, kind, severity, root"
    return (
        Column(
            title="Last seen",
            expr=labelled.format(f"time() - max by ({by}) ({_SEEN})"),
            unit="s",
            decimals=0,
            width=110,
        ),
        Column(
            title="Ranks", expr=labelled.format(f"count by ({by}) ({_SEEN})"), decimals=0, width=70
        ),
        Column(
            title="Places",
            expr=labelled.format(f"max by ({by}) ({of('ampwatch_findings')})"),
            decimals=0,
            width=80,
        ),
    )
