"""Findings about the history of the loss scale."""
