"""Draws the dashboards with the packages of Grafana's frontend: their own JSON, answers of a Prometheus.

A tool for those who change a dashboard, and the source of the pictures of docs/operate.md::

    make grafana-page                                 # Grafana's packages, from npm
    python -m tools.grafana.scene /tmp/scene          # trainings to look at: some eight minutes
    python -m tools.grafana --prometheus URL --out docs/images

It is Grafana's code that transforms the data and draws lines, tables and stats, but not Grafana:
``panels.jsx`` says what is its own.
"""
