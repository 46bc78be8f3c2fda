"""Tables of what broke and which rank ended a run: what the daemon's verdict names, with the way to it."""

from __future__ import annotations

from dashboards.source.fields import BAD, NEUTRAL, WARN, described, words
from dashboards.source.links import MACHINE, field, to_daemon, to_dashboard
from dashboards.source.queries import having, of, one_of_each
from dashboards.source.tables import Column, Key, Table

MAX_ROOTS = 20
"""Rows of either severity: as many as are read at a glance. Ranks that say the same are one."""

MAX_ENDS = 20

_FINDING = "Finding"

_PAGE_OF_RANK = to_daemon(
    "Open the page of its daemon", f"#run={field('Run')}&rank={field('Rank')}"
)
_EXPLAINED = to_daemon("What it means and what to change", f"explain/{field(_FINDING)}")
_TO_RUN = to_dashboard("Why? Open this run", "ampwatch-run", run=field("Run"))
_TO_RANK = to_dashboard("This rank alone", "ampwatch-run", run=field("Run"), rank=field("Rank"))

_SEVERITIES = words({"critical": ("critical", BAD), "warning": ("warning", WARN)})
_CAUSES = words({"true": ("failed by itself", BAD), "false": ("ended with the others", NEUTRAL)})


def roots(number: int, height: int = 6) -> Table:
    """Return the table of what the verdict of each run speaks of: where, since when, what to do.

    Args:
        number: Id of the panel.
        height: In rows of the grid.
    """
    by = "job, run, kind, severity, place, op, remedy"
    parts = (
        one_of_each(
            of("ampwatch_root_info", having("severity", name)),
            by,
            "first_step, rank, instance",
            MAX_ROOTS,
        )
        for name in ("critical", "warning")
    )
    return Table(
        id=number,
        title="What broke, and what to do first",
        description=described(
            shows="The finding that the verdict on each run names: the earliest of what goes on,"
            " and explains the rest; of a run that ended broken or failed, what was wrong at its"
            " end. Ranks that say the same are one row, with one of them named.",
            good="empty.",
            act="do what the row says. A click on the finding explains it, one on the machine"
            " opens the page of its daemon at this run and rank.",
            metrics=["ampwatch_root_info"],
        ),
        unit="none",
        no_value="Nothing is wrong now with the chosen runs",
        height=height,
        keys=(
            Key(
                label="severity", title="Severity", mappings=(_SEVERITIES,), width=80, colored=True
            ),
            Key(label="run", title="Run", links=(_TO_RUN, _PAGE_OF_RANK), width=150),
            Key(label="kind", title=_FINDING, links=(_EXPLAINED,), width=180),
            Key(label="place", title="Where", width=170, wrap=True),
            Key(label="op", title="Op", width=110),
            Key(label="first_step", title="Since step", width=85),
            Key(label="remedy", title="What to do first", wrap=True),
            Key(label="rank", title="Rank", links=(_TO_RANK,), width=60),
            Key(label="instance", title=MACHINE, links=(_PAGE_OF_RANK,), width=150),
        ),
        sort_by="Severity",
        then_by="Run",
        columns=(Column(title="Ranks", expr=" or ".join(parts), decimals=0, width=65),),
    )


def ends(number: int, width: int, height: int = 6) -> Table:
    """Return the table of the ranks that failed, that which made the others end first.

    Args:
        number: Id of the panel.
        width: Of 24 columns.
        height: In rows of the grid.
    """
    return Table(
        id=number,
        title="Which rank made the others end?",
        description=described(
            shows="Ranks that failed: that which failed by itself, with its exception or death first of"
            " all, and those that ended with the others, of a lost connection or to be stopped. Ranks"
            " that failed alike are one row, with one of them named.",
            good="empty.",
            act="read the log of the rank that failed by itself; those of the others are about the"
            " connection that they lost. With none by itself it is not known, as where a machine has no"
            " daemon: look at the ranks that are missing.",
            metrics=["ampwatch_rank_failure_info"],
        ),
        unit="none",
        no_value="No rank has failed",
        width=width,
        height=height,
        keys=(
            Key(label="cause", title="What", mappings=(_CAUSES,), width=170, colored=True),
            Key(label="run", title="Run", links=(_TO_RUN, _PAGE_OF_RANK)),
            Key(label="error", title="Error"),
            Key(label="rank", title="Rank", links=(_TO_RANK,), width=60),
            Key(label="instance", title=MACHINE, links=(_PAGE_OF_RANK,)),
        ),
        sort_by="What",
        descending=True,
        columns=(
            Column(
                title="Ranks",
                expr=one_of_each(
                    of("ampwatch_rank_failure_info"),
                    "job, run, cause, error",
                    "rank, instance",
                    MAX_ENDS,
                ),
                decimals=0,
                width=65,
            ),
        ),
    )
