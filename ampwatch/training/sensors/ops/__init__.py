"""Ops: the dtype that each ran in, and why."""
