"""Precision plans: which product of which layer can be computed in which format."""
