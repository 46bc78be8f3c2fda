"""Findings about the forward pass: births and ranges of activations."""
