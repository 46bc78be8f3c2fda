"""Dashboards in a Grafana.

``boards`` has them as files, ``server`` asks a Grafana, ``work`` plans and does what there is to do.
"""
