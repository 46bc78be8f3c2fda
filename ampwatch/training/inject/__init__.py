"""Planted faults, for users who want to see an alert fire."""
