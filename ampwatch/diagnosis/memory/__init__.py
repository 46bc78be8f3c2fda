"""Findings about the memory that a training takes."""
