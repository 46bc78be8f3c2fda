"""The shipped rules over the series of all scripts, evaluated once by promtool; what it got is read from it.

``promtool test rules`` prints what it got wherever that is not what was expected. Nothing is
expected here, so it prints everything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.alerts.promtool import promtool
from tests.alerts.rules import RULES, alerts, records
from tests.states.clock import START
from tests.states.played import SCRAPE_SECONDS
from tests.states.series import Scraped, for_promtool, labels_of

NOBODY = "Nobody"
"""Alert that there is none of."""

INTERVAL = f"{SCRAPE_SECONDS}s"


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert as it fires.

    Attributes:
        time: Unix time of the evaluation. Unit: s.
        labels: Its labels, the name included.
        annotations: Its texts.
    """

    time: float
    labels: dict[str, str]
    annotations: dict[str, str]

    @property
    def name(self) -> str:
        return self.labels["alertname"]

    @property
    def severity(self) -> str:
        return self.labels["severity"]


@dataclass
class Evaluated:
    """The outcome of the rules for one script.

    Attributes:
        alerts: All that fire, at each evaluation, the oldest first.
        recorded: Labels and value of each recorded series when somebody looks, by its name; and
            of the expressions of alerts.
    """

    alerts: list[Alert] = field(default_factory=list)
    recorded: dict[str, list[tuple[dict[str, str], float]]] = field(default_factory=dict)

    def at(self, time: float) -> list[Alert]:
        """Return those that fire at a time."""
        return [alert for alert in self.alerts if alert.time == time]

    def first(self, name: str) -> float | None:
        """Return when an alert has begun to fire. Unit: s."""
        return min((a.time for a in self.alerts if a.name == name), default=None)


def evaluate(all_scraped: Mapping[str, Scraped], directory: Path) -> dict[str, Evaluated]:
    """Return the outcome for each script, by its name."""
    shipped, recorded, tests = alerts(), records(), []
    for name, scraped in all_scraped.items():
        times = [time - START for time in scraped.times]
        tests.append(
            {
                "name": name,
                "interval": INTERVAL,
                "input_series": for_promtool(scraped),
                # What fails first in each: of an expression alone promtool does not say whose it is.
                "alert_rule_test": [
                    {"eval_time": "0s", "alertname": NOBODY, "exp_alerts": [{"exp_labels": {}}]},
                    *(
                        {"eval_time": f"{time:.0f}s", "alertname": alert, "exp_alerts": []}
                        for time in times
                        for alert in shipped
                    ),
                ],
                # The values of alerts as well, which are numbers in their texts.
                "promql_expr_test": [
                    {"expr": expr, "eval_time": f"{times[-1]:.0f}s", "exp_samples": []}
                    for expr in [*recorded, *(alert.expr for alert in shipped.values())]
                ],
            }
        )
    file = directory / "states.test.yml"
    groups = {"rule_files": [str(RULES)], "evaluation_interval": INTERVAL, "tests": tests}
    # JSON is YAML, and many times as fast to write.
    file.write_text(json.dumps(groups), encoding="utf-8")
    said = promtool("test", "rules", file)
    return _read(said.stdout + said.stderr, all_scraped)


_TIME = r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?"
_STATE = re.compile(r"^    name: (\w+),$")
_ALERT = re.compile(rf"^    alertname: (\w+), time: {_TIME}, ?$")
_EXPR = re.compile(r'^    expr: "(.*)", time: ')
_SAMPLE = re.compile(r'\{((?:\w+="(?:[^"\\]|\\.)*"(?:, )?)*)\} ([^,\s]+)')


def _read(said: str, all_scraped: Mapping[str, Scraped]) -> dict[str, Evaluated]:
    """Read what promtool got out of what it said."""
    found = {name: Evaluated() for name in all_scraped}
    current, time, name, record, labels = Evaluated(), 0.0, "", "", {}
    for line in said.splitlines():
        if state := _STATE.match(line):
            current = found[state[1]]
        elif alert := _ALERT.match(line):
            hours, minutes, seconds = (int(part or 0) for part in alert.groups()[1:])
            name = alert[1]
            time = START + 3600 * hours + 60 * minutes + seconds
        elif expr := _EXPR.match(line):
            name, record = "", expr[1]
        elif name == NOBODY:
            pass
        elif line.startswith("              Labels:"):
            labels = labels_of(line)
        elif line.startswith("              Annotations:"):
            current.alerts.append(Alert(time, labels, labels_of(line)))
        elif line.startswith("        got: {"):
            samples = [(labels_of(inner), float(value)) for inner, value in _SAMPLE.findall(line)]
            current.recorded[record] = samples
        else:
            # What else it may say is that a rule or a series cannot be read.
            assert not re.match(r"^    (?!name:|alertname:|expr:)\S", line), said[:2000]
    return found
