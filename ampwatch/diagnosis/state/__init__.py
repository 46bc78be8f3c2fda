"""Findings about weights and optimizer state."""
