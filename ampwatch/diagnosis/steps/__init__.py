"""Findings about skipped steps and what is counted along with them."""
