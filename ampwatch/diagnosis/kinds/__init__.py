"""Kinds of findings: what a row holds, all rows, and the tables made of them."""
