"""Sensors of time: where that of a step goes."""
