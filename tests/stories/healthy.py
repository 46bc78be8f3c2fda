"""Trainings that are well."""
CONTROLS = []
