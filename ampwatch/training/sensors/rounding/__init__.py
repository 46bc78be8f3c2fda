"""Rounding losses: casts, sums, averages and accumulated gradients."""
