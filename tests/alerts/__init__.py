"""Tests of the rules that Prometheus evaluates."""
