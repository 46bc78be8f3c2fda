"""Parts that all pictures by Plotly share: series, and a figure with a time axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

if TYPE_CHECKING:
    from tools.preview.fields import FieldLook
    from tools.preview.intervals import TimeSpan

GRID = "rgba(204,204,220,0.10)"
TEXT = "#9a9aa8"


@dataclass(slots=True)
class Line:
    """Series of a panel.

    Attributes:
        look: How it is shown.
        times: Unit: ms since 1970.
        values: ``None`` where there is a gap.
        step: Time between two points. Unit: ms.
    """

    look: FieldLook
    times: list[float]
    values: list[Any]
    step: float


def figure(span: TimeSpan, **layout: Any) -> Any:
    """Return an empty figure with a time axis."""
    return go.Figure(
        layout={
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"family": "Inter, Helvetica, Arial, sans-serif", "size": 11, "color": TEXT},
            "margin": {"l": 8, "r": 12, "t": 10, "b": 4},
            "showlegend": False,
            "xaxis": {
                "type": "date",
                "range": [span.start * 1e3, span.end * 1e3],
                "gridcolor": GRID,
                "ticks": "outside",
                "ticklen": 6,
                "tickcolor": "rgba(0,0,0,0)",
                "nticks": 8,
                "tickformat": "%H:%M" if span.seconds > 1200 else "%H:%M:%S",
                "automargin": True,
                "zeroline": False,
            },
            **layout,
        }
    )
