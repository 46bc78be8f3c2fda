"""Prometheus metrics: their catalogue and the readers of their values."""
