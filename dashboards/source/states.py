"""States of runs and findings: as numbers that can be compared, and in words."""

from __future__ import annotations

import re

from ampwatch.diagnosis.kinds.registry import RELEASED
from dashboards.source.fields import BAD, GOOD, NEUTRAL, NOTE, WARN, words
from dashboards.source.links import DOCS, field, to_page
from dashboards.source.queries import having, of
from dashboards.source.tables import Column, Key

STATE_WORDS = words(
    {
        4: ("failed", BAD),
        3: ("stale", BAD),
        2: ("running", GOOD),
        1: ("finished", NOTE),
        0: ("unknown", NEUTRAL),
    }
)
"""The worse, the larger: the maximum over ranks is the state of a run."""

SEVERITY_WORDS = words(
    {3: ("critical", BAD), 2: ("warning", WARN), 1: ("info", NOTE), 0: ("none", GOOD)}
)


def state(by: str) -> str:
    """Return PromQL of the worst state, as the numbers of ``STATE_WORDS``.

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


def severity(by: str, seconds: int) -> str:
    """Return PromQL of how severe the worst finding is, as the numbers of ``SEVERITY_WORDS``.

    Args:
        by: The labels that tell the rows apart, with commas between them.
        seconds: How far back; what was last seen earlier counts as none.
    """
    seen = "ampwatch_finding_last_seen_timestamp_seconds"
    parts = (
        f"{number} * (max by ({by}) ({of(seen, having('severity', name))})"
        f" > bool time() - {seconds}) > 0"
        for name, number in {"critical": 3, "warning": 2, "info": 1}.items()
    )
    return f"({' or '.join(parts)} or 0 * max by ({by}) ({of('ampwatch_run_info')}))"


def _first_sentence(advice: str) -> str:
    return re.split(r"(?<=[a-z)0-9])\. (?=[A-Z])", advice)[0].rstrip(".") + "."


ADVICE_WORDS = words({row.slug: (_first_sentence(row.advice), NEUTRAL) for row in RELEASED})
"""The first sentence of the advice for each kind of finding; the page behind it has the rest."""

_PAGE = to_page("What it means and what to change", f"{DOCS}/diagnoses/{field('Finding')}.md")

_SEEN = of("ampwatch_finding_last_seen_timestamp_seconds")

FINDING_KEYS = (
    Key(label="kind", title="Finding", links=(_PAGE,), width=210),
    Key(label="severity", title="Severity", width=90),
    Key(label="root", title="Root cause", width=100),
)
"""Labels by which findings differ, beside the run."""

ADVICE_KEY = Key(label="advice", title="What to change", mappings=(ADVICE_WORDS,), wrap=True)


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
