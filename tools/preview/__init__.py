"""Draws the dashboards without Grafana: their own JSON, answers of a real Prometheus, Plotly.

A tool for those who change a dashboard, and where the pictures of docs/operate.md come from::

    python -m tools.preview.scene /tmp/scene          # a run to look at: some five minutes
    python -m tools.preview --prometheus URL --out docs/images

It follows Grafana where the dashboards of this repository need it and refuses what they do not
use, so a panel is never drawn as something that it is not. It is not Grafana: layout, colours and
fonts are like it, not the same.
"""
