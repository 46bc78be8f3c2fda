"""Findings about gradients: their range, their losses, their dtypes."""
