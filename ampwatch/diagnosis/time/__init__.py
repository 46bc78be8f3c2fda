"""Findings about where the time of a step goes."""
