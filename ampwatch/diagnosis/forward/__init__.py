"""Findings about the forward pass: origins and ranges of activations."""
