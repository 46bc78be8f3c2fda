"""The table: what is true in each state, and so has to be said by every way out.

The values are known from the scripts, not from ampwatch; what a row says of the loss scale and of
lost gradients is compared with what the training itself has counted (``test_the_table``).
"""

from __future__ import annotations

from dataclasses import dataclass

LABELS = {"needs attention": "attention"}
"""Words of a level in metrics, where they differ from those that are read."""

NEVER_TRUE = (
    r"true gradients are too large",
    r"halved 0 times",
    r"no scale would change anything",
    r"[Tt]ensor cores? idle",
    r"\bNone\b(?! of|:)",
    r"<nil>|<no value>|%!",
    r"\bnan\b",
    r"\b\w+@\w[\w.:]*",
    r"\bparam:",
    r"\boptimizer:\d",
)
"""Sentences that are false in every state here, and notations that nobody is to read."""

COLLAPSING = (r"is collapsing", r"becomes infinite in", r"At this pace")
"""Sentences that are true only while steps are skipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """A root cause.

    Attributes:
        kinds: Kinds that name it rightly.
        where: Place as a finding has it; ``None`` where several are right.
        place: The same in words.
        op: The op; empty where there is none.
        since: First step, and up to how much later it may be noticed.
        severity: Worst of its story.
        is_over: It is not current: it may be named, and need not be.
    """

    kinds: tuple[str, ...]
    where: str | None
    place: str
    op: str
    since: range
    severity: str
    is_over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The truth about one run in one state.

    Attributes:
        run: Label of the run; that of its name unless there are two of it.
        level: The word for the state.
        root: The root cause.
        lost: Share of the gradient elements that the format loses; ``None`` where nobody can say.
        scale: The loss scale; ``None`` without one.
        cause: Rank whose end made the others end, and its error.
        fires: Alerts that somebody is told of; one of each tuple.
        silent: Alerts that do not fire when somebody looks.
        pages: Whether any alert of severity warning or critical may ever have fired.
        is_told: Whether an alert about the root is due: some wait longer than a state lasts.
        says: Patterns that page, alerts and report have each.
        tells: Patterns of what only a whole sentence tells: the summary of the root and what shows
            it have each. An alert has the kind and the place of the root, and not its sentence.
        denies: Patterns that none of them may have.
    """

    run: str
    level: str
    root: Root | None = None
    lost: float | None = 0.0
    scale: float | None = 32768.0
    cause: tuple[int, str] | None = None
    fires: tuple[tuple[str, ...], ...] = ()
    silent: tuple[str, ...] = ()
    pages: bool = True
    is_told: bool = True
    says: tuple[str, ...] = ()
    tells: tuple[str, ...] = ()
    denies: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The word for the state in metrics."""
        return LABELS.get(self.level, self.level)


def _gate(since: int) -> Root:
    return Root(
        kinds=("forward_overflow",),
        where="encoder.gate",
        place="module encoder.gate",
        op="exp",
        since=range(since, since + 1),
        severity="critical",
    )


def _flushed(since: range) -> Root:
    # All parameters at once: which of them is named first does not matter.
    return Root(
        kinds=("grad_underflow",), where=None, place="", op="", since=since, severity="critical"
    )


def _diverged() -> Root:
    return Root(
        kinds=("forward_overflow",),
        where="loss",
        place="the loss, outside the model",
        op="mse_loss",
        since=range(101, 102),
        severity="critical",
    )


_BURST = (r"\bexp in module encoder\.gate, since step 60\b",)
"""What has brought the scale down, in the sentence about a scale that was left low."""

_SCALE_ALERTS = (
    "AmpwatchLossScaleCollapsed",
    "AmpwatchLossScaleUnhealthy",
    "AmpwatchLossScaleLeftLow",
)
_CRITICAL = ("AmpwatchLossScaleCollapsed", "AmpwatchRunBroken")


def _broken_weight(run: str, since: int, *silent: str) -> Row:
    root = Root(
        kinds=("param_nonfinite",),
        where=None,
        place="",
        op="",
        since=range(since, since + 1),
        severity="critical",
    )
    return Row(
        run=run,
        level="failing",
        root=root,
        lost=None,
        scale=None,
        fires=(("AmpwatchParametersNotFinite",),),
        silent=(*_SCALE_ALERTS, *silent),
    )


TABLE: dict[str, tuple[Row, ...]] = {
    "healthy": (Row(run="healthy", level="healthy", pages=False, denies=COLLAPSING),),
    "calibrating": (
        Row(
            run="calibrating",
            level="calibrating",
            # Its gradients are infinite: how many would be lost nobody can say.
            lost=None,
            scale=2.0**21,
            pages=False,
            denies=COLLAPSING,
        ),
    ),
    "saw_tooth": (
        Row(run="saw-tooth", level="healthy", scale=2.0**16, pages=False, denies=COLLAPSING),
    ),
    "storm": (
        Row(
            run="storm",
            level="failing",
            root=_gate(60),
            scale=2.0**-6,
            fires=(_CRITICAL,),
            says=(r"encoder\.gate", r"\bexp\b"),
        ),
    ),
    "collapsed_and_left": (
        Row(
            run="collapsed-and-left",
            level="failing",
            # The burst is over. What is wrong now, and is to be changed, is the scale. All gradients
            # are lost alike: which parameter is named does not matter.
            root=Root(
                kinds=("scale_stuck_low",),
                where=None,
                place="",
                op="",
                since=range(104, 105),
                severity="critical",
            ),
            lost=1.0,
            scale=2.0**-29,
            fires=(("AmpwatchLossScaleLeftLow",),),
            # The losses are finite again, and one alert says what there is to do.
            silent=("AmpwatchLossScaleCollapsed", "AmpwatchRunBroken"),
            says=(r"scale is stuck|scale_stuck_low",),
            tells=(*_BURST, r"\b65536\b"),
            denies=(*COLLAPSING, r"has recovered"),
        ),
    ),
    "recovering": (
        Row(
            run="recovering",
            level="needs attention",
            # No gradient is lost any more: the place is that of the scale.
            root=Root(
                kinds=("scale_stuck_low",),
                where="optimizer:0",
                place="optimizer 0",
                op="",
                since=range(90, 91),
                severity="critical",
                is_over=True,
            ),
            scale=32.0,
            tells=_BURST,
            silent=(
                "AmpwatchLossScaleCollapsed",
                "AmpwatchLossScaleLeftLow",
                "AmpwatchRunBroken",
            ),
            denies=(*COLLAPSING, r"is stuck"),
        ),
    ),
    "all_flushed": (
        Row(
            run="all-flushed",
            level="failing",
            root=_flushed(range(100, 107)),
            lost=1.0,
            fires=(("AmpwatchUnderflowHigh", "AmpwatchRunBroken"),),
            silent=_SCALE_ALERTS,
            denies=COLLAPSING,
        ),
    ),
    "never_learnt": (
        Row(
            run="never-learnt",
            level="failing",
            root=_flushed(range(3)),
            lost=1.0,
            scale=2.0**-26,
            fires=(
                (
                    "AmpwatchLossScaleLeftLow",
                    "AmpwatchLossScaleUnhealthy",
                    "AmpwatchRunBroken",
                ),
            ),
            silent=("AmpwatchLossScaleCollapsed",),
            denies=COLLAPSING,
        ),
    ),
    "never_applied": (
        Row(
            run="never-applied",
            level="failing",
            root=_gate(0),
            lost=None,
            scale=0.0,
            fires=(_CRITICAL,),
            says=(r"encoder\.gate", r"\bexp\b"),
            denies=(r"becomes infinite in",),
        ),
    ),
    "diverged_and_finished": (
        Row(
            run="diverged-and-finished",
            level="broken",
            root=_diverged(),
            lost=None,
            scale=None,
            fires=(("AmpwatchParametersNotFinite",),),
            silent=_SCALE_ALERTS,
            says=(r"mse_loss",),
        ),
    ),
    "diverged_and_killed": (
        Row(
            run="diverged-and-killed",
            # Broken is what comes to its end: this one did not, and its root stays beside that.
            level="failed",
            root=_diverged(),
            lost=None,
            scale=None,
            cause=(0, "killed"),
            # The page of while it went on stays: its end is neither AmpwatchRunEndedBroken nor AmpwatchRunFailed.
            fires=(("AmpwatchParametersNotFinite",),),
            silent=_SCALE_ALERTS,
            says=(r"mse_loss",),
        ),
    ),
    "one_rank_dead": (
        Row(
            run="one-rank-dead",
            level="failed",
            cause=(2, "killed"),
            fires=(("AmpwatchRunFailed",),),
            silent=_SCALE_ALERTS,
            says=(r"[Rr]ank 2\b", r"killed"),
            denies=(r"ranks alike",),
        ),
    ),
    "one_rank_raised_of_eight": (
        Row(
            run="one-rank-raised-of-eight",
            level="failed",
            cause=(3, "ValueError"),
            fires=(("AmpwatchRunFailed",),),
            silent=_SCALE_ALERTS,
            says=(r"[Rr]ank 3\b", r"ValueError"),
            denies=(r"ranks alike", r"out of memory"),
        ),
    ),
    "two_nodes": (
        Row(
            run="two-nodes",
            level="failed",
            fires=(("AmpwatchRunFailed",),),
            silent=_SCALE_ALERTS,
            denies=(r"\brank 3\b", r"[Rr]ead the traceback", r"out of memory"),
        ),
    ),
    "stale": (
        Row(
            run="stale",
            level="stale",
            fires=(("AmpwatchTrainingStalled",),),
            silent=_SCALE_ALERTS,
        ),
    ),
    "two_runs_of_one_name": (
        Row(run="twins", level="healthy", denies=COLLAPSING),
        Row(
            run="twins~2",
            level="failing",
            root=_gate(240),
            lost=None,
            scale=2.0**-42,
            fires=(("AmpwatchLossScaleCollapsed",),),
            says=(r"encoder\.gate", r"\bexp\b"),
        ),
    ),
    # Whose death was paged before; now nothing of it is left.
    "restarted": (
        Row(run="restarted", level="healthy", silent=("AmpwatchRunFailed",), denies=COLLAPSING),
    ),
    "resumed": (_broken_weight("resumed", 190, "AmpwatchRunFailed"),),
    "broken_weight": (_broken_weight("broken-weight", 100),),
    "ended_unseen": (
        Row(
            run="ended-unseen",
            level="broken",
            root=_diverged(),
            lost=None,
            scale=None,
            fires=(("AmpwatchParametersNotFinite",),),
            silent=_SCALE_ALERTS,
            says=(r"mse_loss",),
        ),
    ),
    "bf16": (Row(run="bf16", level="healthy", scale=None, pages=False, denies=COLLAPSING),),
    "waiting_for_data": (
        Row(
            run="waiting-for-data",
            level="needs attention",
            root=Root(
                kinds=("input_bound",),
                where="step",
                place="the steps",
                op="",
                since=range(16, 64),
                severity="warning",
            ),
            # Ranges are not measured here; the alert waits a quarter of an hour.
            lost=None,
            is_told=False,
            scale=2.0**16,
            silent=_SCALE_ALERTS,
            says=(r"input_bound|waits? for data",),
            denies=COLLAPSING,
        ),
    ),
    "daemon_restarted": (
        Row(
            run="daemon-restarted",
            level="healthy",
            scale=2.0**16,
            pages=False,
            denies=COLLAPSING,
        ),
    ),
}
"""The truth by state; two runs where two are trained."""

WORST = {"critical": 2, "warning": 1, "info": 0, "": -1}

AT_EACH_COMMIT = "collapsed_and_left"
"""The state that is played at each commit."""

IN_TURN = ("healthy", "recovering", "one_rank_dead")
"""States of which one is played at most commits: all is well, it was not, and of one rank it is not."""
