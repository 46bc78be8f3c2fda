"""Findings about speed: casts, float32 matmuls, idle tensor cores."""
