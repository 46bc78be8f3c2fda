"""A gate for CI: whether the numbers of a run keep to limits, as ``ampwatch report --check`` asks."""

from __future__ import annotations

import operator
import re
from typing import TYPE_CHECKING, NamedTuple

from ampwatch.errors import SettingsError, did_you_mean
from ampwatch.report.judged_boxes import state_of
from ampwatch.report.words import number, percent, plain, plural
from ampwatch.state.facts import FACTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.state.facts import Fact
    from ampwatch.wire.blackbox import Box

SHORT = {
    "skips": "amp/skipped_share",
    "scale": "amp/loss_scale",
    "findings": "amp/alarms",
    "critical": "amp/critical_findings",
    "nonfinite": "amp/nonfinite_losses",
}
"""Short names of the keys that most gates ask for."""

HOLDS = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
}

_CHECK = re.compile(
    r"(?P<name>[\w/]+)\s*(?P<op>[<>=!]=?)\s*(?P<limit>[-+]?\d+(\.\d*)?(e[-+]?\d+)?)\s*(?P<unit>%?)"
)


class Check(NamedTuple):
    """One limit.

    Attributes:
        text: How it was written.
        fact: The number.
        op: How both are compared, a key of ``HOLDS``.
        limit: The limit, in the unit of the number.
        is_percent: Whether the limit was given in percent.
    """

    text: str
    fact: Fact
    op: str
    limit: float
    is_percent: bool

    def holds(self, value: float | None) -> bool:
        """Return whether ``value`` keeps to the limit: NaN and a number that is not known never do."""
        return value is not None and value == value and HOLDS[self.op](value, self.limit)  # noqa: PLR0124 - NaN

    def written(self, value: float | None) -> str:
        """Return ``value`` as the limit was written."""
        if value is None:
            return "not known"
        return plain(percent(value) if self.is_percent else number(value))


def parse(expression: str) -> list[Check]:
    """Return the checks of an expression such as ``skips<1%, scale>=1024, findings=0``.

    Raises:
        SettingsError: If it is none.
    """
    return [_parse_one(text.strip()) for text in expression.split(",")]


def _parse_one(text: str) -> Check:
    match = _CHECK.fullmatch(text)
    if match is None or match["op"] not in HOLDS:
        msg = f"expected checks as skips<1%, separated by commas, got {text!r}; write a name, one of {' '.join(HOLDS)}, and a number"
        raise SettingsError(msg)
    key = SHORT.get(match["name"], match["name"])
    if key not in FACTS:
        near = did_you_mean(key, [*SHORT, *FACTS], "docs/loggers.md lists the keys")
        msg = f"expected one of {', '.join(SHORT)} or a key of a logger, got {key!r}{near}"
        raise SettingsError(msg)
    is_percent = bool(match["unit"])
    limit = float(match["limit"]) / (100 if is_percent else 1)
    return Check(text, FACTS[key], match["op"], limit, is_percent)


def gate(checks: Sequence[Check], boxes: Sequence[Box]) -> tuple[bool, str]:
    """Return whether each check holds on each rank of a run, and a text with a line for each.

    Args:
        checks: The limits.
        boxes: What the ranks of one run have left; at least one.
    """
    states = [state_of(box) for box in boxes]
    lines, failed = [], 0
    width = max(len(check.text) for check in checks)
    for check in checks:
        values = [check.fact.read(state) for state in states]
        bad = [place for place, value in enumerate(values) if not check.holds(value)]
        shown = check.written(values[bad[0] if bad else 0])
        if bad and len(boxes) > 1:
            shown += f" on rank {boxes[bad[0]].identity.rank}"
            shown += f" and {plural(len(bad) - 1, 'other rank')}" if len(bad) > 1 else ""
        failed += bool(bad)
        lines.append(f"  {'failed' if bad else 'ok':8}{check.text:{width}}  {shown}\n")
    outcome = f"{failed} of {plural(len(checks), 'check')} failed" if failed else "all checks hold"
    return not failed, "".join([f"run {boxes[0].identity.run}: {outcome}\n", *lines])
