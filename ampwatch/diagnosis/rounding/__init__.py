"""Findings about values that rounding takes away."""
