"""The row of the dashboard Layers that says how much of the model its numbers are about."""

from __future__ import annotations

from dashboards.source.fields import BAD, GOOD, NEUTRAL, WARN, Step, described, thresholds
from dashboards.source.panels import Panel, Stat
from dashboards.source.queries import Query, increase, of
from dashboards.source.tables import Column, Key, Table

_STALE = thresholds(GOOD, Step(600, WARN), Step(3600, BAD))
"""Unit: s. At the default budget a sample comes every few seconds to minutes."""

_ANY_MISSING = thresholds(GOOD, Step(1, WARN))

_NO_SAMPLES = "No run that samples was chosen"


def trust() -> tuple[Panel, ...]:
    """Return what was left out, and how old and how exact the rest is."""
    return (
        _missing(
            601,
            "Modules without series",
            "ampwatch_modules_untracked",
            "Measured modules that have no series of their own here, because a rank has at most"
            " module_series of them: of the rank of each run that has most series, for the others"
            " leave to it what they measure alike (module_series_ranks). Of the run with most.",
            "raise AMPWATCH_MODULE_SERIES if Prometheus can bear it. The built-in page shows every"
            " module, and half of the series are kept back for modules that get into trouble.",
            each="min by (job, run)",
        ),
        _missing(
            602,
            "Modules not recorded",
            "ampwatch_modules_left_out",
            "Modules whose ranges were not recorded at all, because there are more than"
            " max_modules; most of any rank.",
            "raise AMPWATCH_MAX_MODULES, or monitor a part of the model.",
        ),
        Stat(
            id=603,
            title="Tensors not measured",
            description=described(
                shows="Integer, complex and meta tensors in the newest sample; most of any rank.",
                good="any number: an integer has no range to lose.",
                act="a number that grows is a change of the model.",
                metrics=["ampwatch_tensors_refused"],
            ),
            unit="short",
            no_value=_NO_SAMPLES,
            queries=(Query(f"max({of('ampwatch_tensors_refused')})"),),
            width=5,
        ),
        Stat(
            id=604,
            width=5,
            title="Sampling interval",
            description=described(
                shows="Iterations from one sampled one to the next, as the overhead budget has it;"
                " the longest of all ranks.",
                good="tens to hundreds.",
                act="thousands mean that a sample is dear compared with a step: raise the budget,"
                " or expect that short trouble is missed. Skips are counted in every step.",
                metrics=["ampwatch_sampling_interval_steps"],
            ),
            unit="short",
            no_value=_NO_SAMPLES,
            queries=(Query(f"max({of('ampwatch_sampling_interval_steps')})"),),
        ),
        Stat(
            id=605,
            title="Samples given up",
            course=False,
            description=described(
                shows="Measurements in the time range that were given up, because the device was"
                " too far behind: ampwatch never waits for it.",
                good="0, or few beside the samples that were made.",
                act="if it is most of them, the device is never idle long enough: raise"
                " AMPWATCH_SAMPLE_EVERY.",
                metrics=["ampwatch_samples_dropped_total"],
            ),
            unit="short",
            no_value=_NO_SAMPLES,
            queries=(Query(f"sum({increase('ampwatch_samples_dropped_total', over='$__range')})"),),
            decimals=0,
            thresholds=thresholds(GOOD, Step(1, NEUTRAL)),
        ),
        _samples(),
    )


def _missing(number: int, title: str, metric: str, shows: str, act: str, each: str = "") -> Stat:
    return Stat(
        id=number,
        width=5,
        title=title,
        course=False,
        description=described(shows=shows, good="0.", act=act, metrics=[metric]),
        unit="short",
        no_value=_NO_SAMPLES,
        queries=(Query(f"max({each} ({of(metric)}))" if each else f"max({of(metric)})"),),
        thresholds=_ANY_MISSING,
    )


def _samples() -> Table:
    last = "ampwatch_last_sample_timestamp_seconds"
    error = "ampwatch_sample_standard_error_ratio"
    made = "ampwatch_samples_total"
    return Table(
        id=606,
        title="Samples by what was measured",
        description=described(
            shows="How many samples the time range has, how old the newest is (of the rank that"
            " has not been sampled for longest), and by how much a share may be off where only a"
            " part of the elements was counted.",
            good="minutes old, and an error below 1 %. Largest magnitudes, NaN and infinities are"
            " always those of all elements.",
            act="an old sample describes an old state: look whether the run still steps, and"
            " whether the level is `light`, which samples nothing.",
            metrics=[made, last, error],
        ),
        unit="short",
        no_value=_NO_SAMPLES,
        keys=(Key(label="run", title="Run"), Key(label="topic", title="What")),
        columns=(
            Column(
                title="Samples",
                expr=f"sum by (run, topic) ({increase(made, over='$__range')})",
                unit="short",
                decimals=0,
            ),
            Column(
                title="Age of the newest",
                expr=f"time() - min by (run, topic) ({of(last)})",
                unit="s",
                thresholds=_STALE,
            ),
            Column(
                title="May be off by",
                expr=f"max by (run, topic) ({of(error)})",
                unit="percentunit",
                thresholds=thresholds(GOOD, Step(0.01, NEUTRAL), Step(0.05, WARN)),
            ),
        ),
        sort_by="Age of the newest",
        descending=True,
    )
