"""What a notebook shows of a run and of a finding: the headline, and histories of loss scale and loss.

The words are those of ``headline``. Colours are attributes, not a style sheet: notebooks strip
style sheets where they do not trust an output, and one of them would hold for the whole page. Text
has the colour that the notebook gives it, so that it reads on light and dark.

IPython is asked, never imported: a training outside of a notebook does not load it.
"""

from __future__ import annotations

import re
import sys
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ampwatch.report import accounts
from ampwatch.report.headline import cause_of, first_remedy, headline
from ampwatch.report.judged_boxes import judge_boxes
from ampwatch.report.line_change import change_of
from ampwatch.report.markup import Markup, element
from ampwatch.report.pictures import history_picture
from ampwatch.report.report import WIDTH as TEXT_WIDTH
from ampwatch.report.short import LABELS, labelled
from ampwatch.report.verdict import Level
from ampwatch.report.words import plain
from ampwatch.wire.records import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ampwatch.wire.blackbox import Box
    from ampwatch.wire.records import StepRecord

    Bundle = dict[str, str]

MAX_STEPS = 240
"""Newest iterations of a picture: each of them has a place of its own on a laptop's screen."""

WIDTH = 640
"""Of the picture. Unit: px."""

BAD, WARN, GOOD, CALM = "#d13438", "#b8791c", "#2f855a", "#6b7280"
LINE = "#3b82d6"
"""Colours that stand out from white and from black by 3:1 at least."""

COLOURS = {
    Level.FAILING: BAD,
    Level.BROKEN: BAD,
    Level.FAILED: BAD,
    Level.STALE: WARN,
    Level.ATTENTION: WARN,
    Level.HEALTHY: GOOD,
    Level.FINISHED: GOOD,
}
SEVERITIES = {Severity.CRITICAL: BAD, Severity.WARNING: WARN}

_PAINT = {
    "panel": ' fill="none" stroke="#808080" stroke-opacity="0.35"',
    "scale": f' fill="none" stroke="{LINE}" stroke-width="1.6"',
    "loss": f' fill="none" stroke="{CALM}" stroke-width="1.6"',
    "nonfinite": f' fill="{BAD}"',
    **dict.fromkeys(("skip calibrating", "skip probe"), f' stroke="{CALM}" stroke-width="2"'),
    **dict.fromkeys(("skip unprovoked", "skip storm"), f' stroke="{BAD}" stroke-width="2"'),
}
"""What takes the place of a class of ``report.css``."""

MIN_SECONDS = 0.5
"""Shortest time between two pictures: more often a browser cannot draw them. Unit: s."""


def bundle_of(boxes: Sequence[Box]) -> Bundle:
    """Return a run as IPython displays it, by media type.

    Args:
        boxes: Those of its ranks; at least one, all of one run. The histories are those of the first.
    """
    verdict = judge_boxes(boxes)
    # Not how long ago anything was: a notebook is saved, and read another day.
    summary = headline(verdict)
    who = boxes[0].identity
    ranks = f", rank {who.rank} of {who.world_size}" if who.world_size > 1 else ""
    card = _card(
        COLOURS.get(verdict.level, CALM),
        f"{summary.state[:1].upper()}{summary.state[1:]}",
        f"ampwatch: run {who.run}{ranks}",
        dict(zip(LABELS, summary.lines[1:], strict=True)),
        _courses(boxes[0].steps[-MAX_STEPS:]),
    )
    text = "\n".join(map("".join, labelled(who.run, summary.lines, TEXT_WIDTH)))
    return {"text/plain": plain(text), "text/html": card}


def finding_card(finding: Finding) -> str:
    """Return a finding as IPython displays it, in HTML."""
    known = (finding.op, finding.dtype, finding.phase, finding.source)
    change = "\n".join(change_of(finding))
    return _card(
        SEVERITIES.get(finding.severity, CALM),
        f"{finding.severity.value.capitalize()}: {finding.kind}",
        f"ampwatch: {accounts.steps(finding)}",
        {
            LABELS[0]: finding.summary or cause_of(finding),
            LABELS[1]: ", ".join([accounts.place(finding), *filter(None, known)]),
            LABELS[2]: first_remedy(finding),
            "change": element("pre", change, style=_PRE) if change else "",
        },
        None,
    )


def _card(
    colour: str, title: str, who: str, lines: Mapping[str, str], histories: Markup | None
) -> Markup:
    rows = [
        element(
            "tr",
            element("th", label, scope="row", style=_TH),
            element("td", line, style=_TD),
            style="background:none",
        )
        for label, line in lines.items()
        if line
    ]
    return element(
        "div",
        element("div", who, style="font-size:12px;opacity:.75"),
        element("div", title, style="font-size:15px;font-weight:600;margin:1px 0 4px"),
        element("table", element("tbody", *rows), style="border-collapse:collapse;margin:0"),
        histories,
        style=f"{_FONT};border:1px solid rgba(128,128,128,.35);border-left:4px solid {colour};"
        "border-radius:6px;padding:8px 12px;max-width:700px;overflow-wrap:anywhere",
    )


_FONT = 'font:13px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,"Liberation Sans",sans-serif'
_PRE = "margin:0;white-space:pre-wrap"
_TH = "font-weight:400;opacity:.75;text-align:left;vertical-align:top;padding:1px 14px 1px 0;white-space:nowrap;border:0"
_TD = "text-align:left;vertical-align:top;padding:1px 0;border:0;white-space:normal"


def _courses(steps: Sequence[StepRecord]) -> Markup | None:
    """Return the picture of loss scale, skipped steps and loss that reports have, in colours of its own."""
    drawn = history_picture(steps, WIDTH)
    if drawn is None:
        return None
    painted = re.sub(r' class="([^"]*)"', lambda found: _PAINT.get(found[1], ""), drawn)
    return element("div", Markup(painted), style="margin-top:6px;fill:currentColor;font-size:11px")


class Live:
    """A card in the output of a cell, which is drawn again as the run goes on.

    Args:
        box: Returns the evidence as it is now.
        display: IPython's function of that name.
        every_seconds: Shortest time between two pictures. Unit: s.
        clock: A clock that never goes back. Unit: s.
    """

    def __init__(
        self,
        box: Callable[[], Box],
        display: Callable[..., Any],
        every_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._box = box
        self._every_seconds = max(every_seconds, MIN_SECONDS)
        self._clock = clock
        self._drawn_at = clock()
        self._handle = display(bundle_of([box()]), raw=True, display_id=True)

    def refresh(self) -> None:
        """Draw again, if it is time to."""
        if self._clock() - self._drawn_at >= self._every_seconds:
            self.draw()

    def draw(self) -> None:
        """Draw again."""
        self._handle.update(bundle_of([self._box()]), raw=True)
        # From its end: drawing must never be all that a training does.
        self._drawn_at = self._clock()


def live(box: Callable[[], Box], every_seconds: float) -> Live | None:
    """Return a card in the output of the cell that runs; ``None`` outside of a notebook.

    Args:
        box: Returns the evidence as it is now.
        every_seconds: Shortest time between two pictures. Unit: s.
    """
    shell = _shell()
    # A terminal would print the card anew each time instead of drawing over it.
    if shell is None or getattr(shell, "kernel", None) is None:
        return None
    return Live(box, import_module("IPython.display").display, every_seconds)


def teach() -> None:
    """Let IPython show findings as cards, if it runs this program. Idempotent."""
    shell = _shell()
    if shell is not None:
        shell.display_formatter.formatters["text/html"].for_type(Finding, finding_card)


def _shell() -> Any:
    """Return the shell of IPython that runs this program; ``None`` without one."""
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()
