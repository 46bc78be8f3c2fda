"""The variables, the same on every dashboard and in the same order, so that links can keep them."""

from __future__ import annotations

from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as model

DATASOURCE = common.DataSourceRef(type_val="prometheus", uid="${datasource}")

_ALL = model.VariableOption(text="All", value="$__all", selected=True)


DAEMON = "ampwatch_build_info"
"""Metric that every scrape of a daemon has, and nothing else."""


def choice(name: str, label: str, description: str, series: str) -> model.VariableModel:
    """Return a variable of which one, several or all values can be chosen.

    Args:
        name: The label that it lists the values of, and what ``$name`` stands for.
        label: As Grafana shows it.
        description: What its values are.
        series: Selector of the series that have the label.
    """
    query = f"label_values({series}, {name})"
    return model.VariableModel(
        type_val=model.VariableType.QUERY,
        name=name,
        label=label,
        description=description,
        datasource=DATASOURCE,
        definition=query,
        query={"query": query, "refId": f"choice-{name}", "qryType": 1},
        refresh=model.VariableRefresh.ON_TIME_RANGE_CHANGED,
        sort=model.VariableSort.NATURAL_ASC,
        multi=True,
        include_all=True,
        all_value=".+",
        current=_ALL,
    )


def variables(*further: model.VariableModel) -> list[model.VariableModel]:
    """Return data source, job, instance, run, rank, further ones, and the ad hoc filters.

    Args:
        further: From ``choice``.
    """
    return [
        model.VariableModel(
            type_val=model.VariableType.DATASOURCE,
            name="datasource",
            label="Data source",
            description="The Prometheus that scrapes the ampwatch daemons.",
            query="prometheus",
        ),
        choice("job", "Job", "Scrape jobs with an ampwatch daemon.", DAEMON),
        choice(
            "instance",
            "Instance",
            "Daemons, one on each machine.",
            f'{DAEMON}{{job=~"$job"}}',
        ),
        choice(
            "run",
            "Run",
            "Trainings, by the name given to ampwatch.monitor().",
            'ampwatch_run_info{job=~"$job", instance=~"$instance"}',
        ),
        choice(
            "rank",
            "Rank",
            "Global ranks of the runs.",
            'ampwatch_run_info{job=~"$job", instance=~"$instance", run=~"$run"}',
        ),
        *further,
        model.VariableModel(
            type_val=model.VariableType.ADHOC,
            name="Filters",
            label="Filters",
            description="Further labels, added to every query.",
            datasource=DATASOURCE,
        ),
    ]
