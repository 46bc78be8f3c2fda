"""Findings about the course of the loss scale."""
