"""Tests of what is shipped for Grafana."""
