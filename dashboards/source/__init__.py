"""The Grafana dashboards as code: ``python -m dashboards.source`` writes their JSON one directory up.

``book`` lists the dashboards; the files named after them say what is on each. What they share:
``queries`` (PromQL and the variables in it), ``measures`` and ``states`` (what several of them ask,
and from where on it is bad), ``panel``, ``panels``, ``tables`` and ``fields`` (what is shown and
how), ``links``, ``variables``, ``events`` (annotations) and ``page`` (rows, layout, JSON).
Wants Python 3.11 and the package grafana-foundation-sdk.
"""
