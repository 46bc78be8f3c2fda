"""Which kernel names stand for tensor cores, and which do not."""
