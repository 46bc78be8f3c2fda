"""Findings about calls of AMP in the wrong place or order."""
