"""Dashboards in a Grafana.

``work`` has them as files, and plans and does what there is to do; ``server`` asks a Grafana.
"""
