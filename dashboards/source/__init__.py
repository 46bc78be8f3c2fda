"""The Grafana dashboards as code: ``python -m dashboards.source`` writes their JSON one directory up.

``book`` lists the dashboards, one file each says what is on them. What they have in common is
in ``queries`` (PromQL), ``panels`` and ``fields`` (what a panel shows and how), ``links``,
``variables``, ``events`` and ``page`` (rows, layout, JSON). Wants Python 3.11 and the
package grafana-foundation-sdk.
"""
