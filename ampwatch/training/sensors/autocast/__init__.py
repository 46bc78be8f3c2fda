"""Autocast: its dtypes, its cache of casts, and backwards that meet stale ones."""
