"""Sensors of the memory that a training takes."""
