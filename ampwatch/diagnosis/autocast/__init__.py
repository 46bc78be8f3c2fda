"""Findings about autocast regions and their cached casts."""
