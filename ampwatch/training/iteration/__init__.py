"""Iterations: how one is put together, and what is measured in which."""
