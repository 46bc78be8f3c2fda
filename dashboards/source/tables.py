"""Tables: one row for each set of labels, one column for each query."""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.models import common, prometheus, table
from grafana_foundation_sdk.models import dashboard as model

from dashboards.source.fields import Override
from dashboards.source.panel import Panel
from dashboards.source.queries import Query


@dataclass(frozen=True, kw_only=True)
class Key:
    """A label that says which row it is.

    Args:
        label: Name of the label in the answers.
        title: Head of its column.
        mappings: Other words in place of the values.
        links: Where a click leads.
        width: Of the column, in pixels.
        wrap: Whether long text takes several lines. Not with ``mappings``: Grafana 13 makes a row as
            high as the value needs that the mapping replaces.
        colored: Whether the text has the colour of its mapping.
        no_value: What a row without the label says; else it would say what the empty table does.
    """

    label: str
    title: str
    mappings: tuple[model.ValueMapping, ...] = ()
    links: tuple[model.DashboardLink, ...] = ()
    width: int | None = None
    wrap: bool = False
    colored: bool = False
    no_value: str = "-"

    def properties(self) -> dict[str, Any]:
        """Return what Grafana is told about the column."""
        return _properties(
            {
                "noValue": self.no_value,
                "mappings": self.mappings,
                "links": self.links,
                "custom.width": self.width,
                "custom.cellOptions": {"type": "auto", "wrapText": True}
                if self.wrap
                else {"type": "color-text"}
                if self.colored
                else None,
            }
        )


@dataclass(frozen=True, kw_only=True)
class Column:
    """An instant query, aggregated to the labels of the keys of the table.

    Args:
        title: Head of the column.
        expr: PromQL.
        unit: Grafana's id of the unit.
        no_value: What an empty cell says.
        decimals: How many; Grafana chooses by itself without.
        thresholds: Colours of the text by value.
        mappings: Words in place of numbers.
        width: Of the column, in pixels.
    """

    title: str
    expr: str
    unit: str = "none"
    no_value: str = "-"
    decimals: int | None = None
    thresholds: model.ThresholdsConfig | None = None
    mappings: tuple[model.ValueMapping, ...] = ()
    width: int | None = None

    def properties(self) -> dict[str, Any]:
        """Return what Grafana is told about the column."""
        colored = self.thresholds is not None or self.mappings
        return _properties(
            {
                "unit": self.unit,
                "noValue": self.no_value,
                "decimals": self.decimals,
                "thresholds": self.thresholds,
                "mappings": self.mappings,
                "custom.width": self.width,
                "custom.cellOptions": {"type": "color-text"} if colored else None,
            }
        )


def _properties(values: dict[str, Any]) -> dict[str, Any]:
    """Leave out what is not set; Grafana wants lists where the dashboards have tuples."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
        if value not in (None, ())
    }


@dataclass(frozen=True, kw_only=True)
class Table(Panel):
    """Rows are sets of labels, columns are queries; ``queries`` stays empty.

    Args:
        keys: The labels that tell the rows apart, the first columns.
        columns: The queries. A row that one of them does not have stays empty there.
        sort_by: Title of the column to sort by.
        then_by: Title of the column that decides between equal values, in the same direction.
        descending: Whether the largest value comes first.
    """

    keys: tuple[Key, ...]
    columns: tuple[Column, ...]
    sort_by: str
    then_by: str = ""
    descending: bool = False
    width: int = 24

    kind = "table"

    def asked(self) -> tuple[Query, ...]:
        """Return the queries of the columns."""
        return tuple(Query(column.expr, instant=True) for column in self.columns)

    def target(self, query: Query, ref: str) -> prometheus.Dataquery:
        """Return a query that is answered with one frame of labels and values."""
        target = super().target(query, ref)
        target.format_val = prometheus.PromQueryFormat.TABLE
        return target

    def transformations(self) -> list[model.DataTransformerConfig]:
        """Join the answers on their labels, then name and order the columns.

        Grafana calls the value of a query ``Value #A``, and ``Value`` if there is one only.
        """
        letters = [f"Value #{letter}" for letter in string.ascii_uppercase[: len(self.columns)]]
        values = letters if len(letters) > 1 else ["Value"]
        names = [*(key.label for key in self.keys), *values]
        titles = [*(key.title for key in self.keys), *(column.title for column in self.columns)]
        options = {
            "excludeByName": {"Time": True},
            "indexByName": {name: index for index, name in enumerate(names)},
            "renameByName": dict(zip(names, titles, strict=True)),
        }
        return [
            model.DataTransformerConfig(id_val="merge", options={}),
            model.DataTransformerConfig(id_val="organize", options=options),
        ]

    def options(self) -> table.Options:
        """Return how the table is sorted."""
        return table.Options(
            show_header=True,
            sort_by=[
                common.TableSortByFieldState(display_name=name, desc=self.descending)
                for name in (self.sort_by, self.then_by)
                if name
            ],
            cell_height=common.TableCellHeight.SM,
        )

    def custom(self) -> common.TableFieldOptions:
        """Return plain cells with a filter in the head of each column."""
        return common.TableFieldOptions(
            align=common.FieldTextAlignment.AUTO,
            cell_options=common.TableAutoCellOptions(),
            filterable=True,
        )

    def all_overrides(self) -> tuple[Override, ...]:
        """Return what is particular to each column."""
        parts: tuple[Key | Column, ...] = (*self.keys, *self.columns)
        made = ((part.title, part.properties()) for part in parts)
        own = tuple(Override(title, properties) for title, properties in made if properties)
        return own + self.overrides
